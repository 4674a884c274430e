//! Scenarios on a real node whose GPUs are shared in every mode, by profile and by HAMi's rules.

use std::process::ExitCode;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, world};
use aliquot_e2e::stack::Stack;
use anyhow::Result;

mod hami;
mod modes;
mod profiles;

fn main() -> ExitCode {
    let worlds = vec![
        world(hami::start, hami::scenarios()),
        world(modes::start, modes::scenarios()),
        world(profiles::start, profiles::scenarios()),
    ];
    scenario::main(cluster, worlds)
}

async fn cluster() -> Result<Stack> {
    let cluster = Cluster::with_node().extender();
    Stack::on(Box::pin(cluster.start()).await?).await
}

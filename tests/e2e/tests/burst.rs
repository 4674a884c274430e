//! Many pods at once on a control plane with fake nodes: as many pods as shares, then pods that
//! come as others go.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, scenario, world};
use aliquot_e2e::stack::Stack;
use anyhow::Result;

#[path = "burst/cycles.rs"]
mod cycles;
#[path = "burst/fill.rs"]
mod fill;
#[path = "burst/record.rs"]
mod record;

fn main() -> ExitCode {
    let all = vec![
        scenario(
            "two_thousand_pods_at_once_fill_two_thousand_shares",
            fill::exactly,
        ),
        scenario("reuses_freed_shares_at_once", cycles::on_a_full_cluster),
    ];
    scenario::main(cluster, vec![world(without_webhook, all)])
}

async fn cluster() -> Result<Stack> {
    Stack::on(Box::pin(Cluster::control_plane().extender().start()).await?).await
}

/// The pods here are complete; a webhook would only take time from the rest.
async fn without_webhook(stack: Arc<Stack>) -> Result<()> {
    stack.start_scheduler(&["--log", "warn"]).await
}

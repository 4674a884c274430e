//! Scenarios of the whole cluster on a real node: all of it restarted, and Aliquot's webhook away.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, scenario, world};
use aliquot_e2e::stack::{NODE, NodeOptions, Stack};
use anyhow::Result;

mod away;
mod restarted;
mod seen;
mod workloads;

fn main() -> ExitCode {
    let all = vec![
        scenario(
            "all_else_runs_while_webhook_outage_outlasts_certificates",
            away::for_long,
        ),
        scenario(
            "whole_cluster_recovers_in_the_order_of_a_boot",
            restarted::as_a_boot,
        ),
        scenario(
            "whole_cluster_recovers_in_opposite_order_after_kills",
            restarted::backwards,
        ),
        scenario(
            "whole_cluster_recovers_in_a_random_order",
            restarted::at_random,
        ),
    ];
    scenario::main(cluster, vec![world(parts, all)])
}

async fn cluster() -> Result<Stack> {
    let cluster = Cluster::with_node().node_name(NODE).extender();
    Stack::on(Box::pin(cluster.start()).await?).await
}

async fn parts(stack: Arc<Stack>) -> Result<()> {
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    stack.start_monitor(&NodeOptions::default(), &[]).await
}

//! Scenarios of the whole cluster on a real node: all of it restarted, and Aliquot's webhook away.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};
use anyhow::Result;

#[path = "whole/away.rs"]
mod away;
#[path = "whole/restarted.rs"]
mod restarted;
#[path = "whole/seen.rs"]
mod seen;
#[path = "whole/workloads.rs"]
mod workloads;

async fn start() -> Result<Stack> {
    let stack = Stack::with_node(NodeOptions::default()).await?;
    stack.start_monitor(&NodeOptions::default(), &[]).await?;
    Ok(stack)
}

fn main() -> ExitCode {
    scenario::main(
        start,
        vec![
            scenario(
                "without_the_webhook_for_longer_than_its_certificates_live_all_else_runs",
                away::for_long,
            ),
            scenario(
                "a_whole_cluster_comes_back_in_the_order_of_a_boot",
                restarted::as_a_boot,
            ),
            scenario(
                "a_whole_cluster_comes_back_in_the_opposite_order_its_containers_killed",
                restarted::backwards,
            ),
            scenario(
                "a_whole_cluster_comes_back_in_an_order_never_seen",
                restarted::at_random,
            ),
        ],
    )
}

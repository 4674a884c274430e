//! Scenarios on a real node: containers get what the scheduler booked.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};

#[path = "node/shares.rs"]
mod shares;

fn main() -> ExitCode {
    scenario::main(
        || Stack::with_node(NodeOptions::default()),
        vec![
            scenario("the_example_pod_gets_its_share", shares::example_pod),
            scenario("twelve_pods_at_once_are_not_mixed_up", shares::twelve_pods),
        ],
    )
}

//! Scenarios on three real nodes: three kubelets with an agent each.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};

#[path = "wishes/cases.rs"]
mod cases;
#[path = "nodes/wishes.rs"]
mod wishes;

fn main() -> ExitCode {
    scenario::main(
        || Stack::with_node(NodeOptions::default()),
        vec![scenario(
            "ranks_and_wishes_decide_among_three_real_nodes",
            wishes::on_real_nodes,
        )],
    )
}

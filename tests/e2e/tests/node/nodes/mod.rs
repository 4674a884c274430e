//! Scenarios on three real nodes: three kubelets with an agent each.

use aliquot_e2e::scenario::{Scenario, scenario};

#[path = "../../preferences/cases.rs"]
mod cases;
mod preferences;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![scenario(
        "ranks_and_preferences_decide_among_three_real_nodes",
        preferences::on_real_nodes,
    )]
}

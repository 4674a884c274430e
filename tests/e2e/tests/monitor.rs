//! Scenarios of the monitor on a real node: figures, who is unmanaged, what is ended.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};

#[path = "monitor/figures.rs"]
mod figures;
#[path = "monitor/lingers.rs"]
mod lingers;
#[path = "monitor/running.rs"]
mod running;
#[path = "monitor/strays.rs"]
mod strays;

fn main() -> ExitCode {
    scenario::main(
        || Stack::with_node(NodeOptions::default()),
        vec![
            scenario(
                "each_figure_of_four_pods_is_the_simulators_within_a_percent",
                figures::four_pods,
            ),
            scenario(
                "a_counters_file_that_is_cut_is_told_and_spoils_no_other_figure",
                figures::cut,
            ),
            scenario(
                "a_process_without_the_library_is_told_within_two_seconds_charged_and_ended",
                strays::told_and_ended,
            ),
            scenario(
                "above_the_limit_the_newest_grower_is_ended_and_the_pod_is_told",
                strays::above_the_limit,
            ),
            scenario(
                "a_force_deleted_pod_keeps_its_share_until_its_processes_are_gone",
                lingers::force_deleted,
            ),
        ],
    )
}

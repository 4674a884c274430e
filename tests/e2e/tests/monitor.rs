//! Scenarios of the monitor on a real node: figures, who is unmanaged, what is ended.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};

#[path = "monitor/attacks.rs"]
mod attacks;
#[path = "monitor/figures.rs"]
mod figures;
#[path = "monitor/lingers.rs"]
mod lingers;
#[path = "monitor/running.rs"]
mod running;
#[path = "monitor/seen.rs"]
mod seen;
#[path = "monitor/shed.rs"]
mod shed;
#[path = "monitor/strays.rs"]
mod strays;
#[path = "monitor/walls.rs"]
mod walls;

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
                "whoever_leaves_a_replaced_library_is_told_charged_and_ended",
                shed::replaced,
            ),
            scenario(
                "whoever_leaves_a_preloaded_library_is_told_charged_and_ended",
                shed::preloaded,
            ),
            scenario(
                "under_the_policy_that_evicts_the_pod_of_an_unmanaged_process_goes",
                attacks::evicted,
            ),
            scenario(
                "whatever_becomes_of_a_tenants_counters_no_other_figure_changes",
                attacks::spoiled,
            ),
            scenario(
                "who_writes_others_ids_into_its_counters_ends_nobody_but_itself",
                attacks::forged,
            ),
            scenario(
                "a_tenant_that_sheds_the_library_is_stopped_by_a_driver_that_has_limits",
                walls::held_by_the_driver,
            ),
            scenario(
                "above_the_limit_the_newest_grower_is_ended_and_the_pod_is_told",
                strays::above_the_limit,
            ),
            scenario(
                "a_force_deleted_pod_keeps_its_share_until_its_processes_are_gone",
                lingers::force_deleted,
            ),
            scenario(
                "every_query_of_the_dashboards_has_data_in_a_real_prometheus",
                seen::on_dashboards,
            ),
        ],
    )
}

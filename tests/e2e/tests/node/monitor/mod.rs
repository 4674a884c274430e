//! Scenarios of the monitor on a real node: figures, who is unmanaged, what is ended.

use aliquot_e2e::scenario::{Scenario, scenario};

mod attacks;
mod figures;
mod lingers;
mod running;
mod seen;
mod shed;
mod unmanaged;
mod walls;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "figures_of_four_pods_match_the_simulator_within_a_percent",
            figures::four_pods,
        ),
        scenario(
            "reports_a_truncated_counters_file_and_spares_other_figures",
            figures::truncated,
        ),
        scenario(
            "reports_charges_and_kills_a_process_without_the_limiter",
            unmanaged::reported_and_killed,
        ),
        scenario(
            "reports_charges_and_kills_a_process_that_evades_the_shim",
            shed::replaced,
        ),
        scenario(
            "reports_charges_and_kills_a_process_that_evades_the_preload",
            shed::preloaded,
        ),
        scenario(
            "evict_policy_evicts_the_pod_of_an_unmanaged_process",
            attacks::evicted,
        ),
        scenario(
            "spoiled_counters_of_a_tenant_change_no_other_figure",
            attacks::spoiled,
        ),
        scenario(
            "forged_ids_in_counters_get_only_the_forger_killed",
            attacks::forged,
        ),
        scenario(
            "driver_limits_stop_a_tenant_that_sheds_the_limiter",
            walls::enforced_by_driver,
        ),
        scenario(
            "above_the_limit_kills_the_newest_grower_and_notifies_the_pod",
            unmanaged::above_the_limit,
        ),
        scenario(
            "force_deleted_pod_keeps_its_share_until_its_processes_end",
            lingers::force_deleted,
        ),
        scenario(
            "every_dashboard_query_has_data_in_a_real_prometheus",
            seen::on_dashboards,
        ),
    ]
}

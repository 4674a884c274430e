//! Scenarios of the monitor on a real node: figures, unmanaged processes, kills.

use aliquot_e2e::scenario::{Scenario, scenario};

mod attacks;
mod driver_limits;
mod evasion;
mod figures;
mod lent;
mod orphaned;
mod running;
mod seen;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "figures_of_four_pods_match_the_simulator_within_a_percent",
            figures::four_pods,
        ),
        scenario(
            "reports_and_charges_a_process_that_evades_the_shim",
            evasion::evaded,
        ),
        scenario(
            "spoiled_counters_of_a_tenant_change_no_other_figure",
            attacks::spoiled,
        ),
        scenario(
            "driver_limits_stop_a_tenant_that_sheds_the_limiter",
            driver_limits::enforced_by_driver,
        ),
        scenario(
            "lent_memory_is_called_back_when_its_owner_needs_it",
            lent::called_back,
        ),
        scenario(
            "force_deleted_pod_keeps_its_share_until_its_processes_end",
            orphaned::force_deleted,
        ),
        scenario(
            "every_dashboard_query_has_data_in_a_real_prometheus",
            seen::on_dashboards,
        ),
    ]
}

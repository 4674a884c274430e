//! Scenarios of the monitor on a real node: unmanaged processes, kills, dashboards.

use aliquot_e2e::scenario::{Scenario, scenario};

mod driver_limits;
mod evasion;
mod running;
mod seen;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "reports_and_charges_a_process_that_evades_the_shim",
            evasion::attacks,
        ),
        scenario(
            "driver_limits_stop_a_tenant_that_sheds_the_limiter",
            driver_limits::enforced_by_driver,
        ),
        scenario(
            "every_dashboard_query_has_data_in_a_real_prometheus",
            seen::on_dashboards,
        ),
    ]
}

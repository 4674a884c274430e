//! Scenarios in which pods of high priority make room for themselves.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::Stack;

#[path = "preemption/beside.rs"]
mod beside;
#[path = "preemption/chosen.rs"]
mod chosen;
#[path = "preemption/killed.rs"]
mod killed;
#[path = "crash/proxied.rs"]
mod proxied;
#[path = "preemption/ranks.rs"]
mod ranks;

fn main() -> ExitCode {
    scenario::main(
        Stack::control_plane,
        vec![
            scenario(
                "sixty_thousand_mib_of_a_full_pair_end_the_fewest_right_pods",
                chosen::full_pair,
            ),
            scenario(
                "a_pair_without_a_free_seat_loses_no_pod_more",
                chosen::no_seat,
            ),
            scenario(
                "a_disruption_budget_in_the_way_makes_others_end",
                chosen::budget,
            ),
            scenario("a_pod_that_never_preempts_waits", chosen::never),
            scenario(
                "a_tainted_node_is_never_emptied_for_a_pod_that_cannot_go_there",
                chosen::tainted,
            ),
            scenario(
                "killed_between_two_evictions_no_second_set_of_victims_ends",
                killed::between_evictions,
            ),
            scenario(
                "killed_before_the_first_eviction_the_written_plan_is_carried_out",
                killed::before_evictions,
            ),
            scenario(
                "kube_scheduler_preempting_for_cpu_is_the_only_one_that_does",
                beside::for_cpu,
            ),
        ],
    )
}

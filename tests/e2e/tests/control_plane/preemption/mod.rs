//! Scenarios in which pods of high priority preempt others.

use aliquot_e2e::scenario::{Scenario, scenario, side_by_side};

mod beside;
mod chosen;
mod killed;
mod ranks;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "preemption_on_a_full_pair_evicts_the_right_pods",
            chosen::full_pair,
        ),
        scenario(
            "kill_between_two_evictions_chooses_no_second_victims",
            killed::between_evictions,
        ),
        side_by_side("only_kube_scheduler_preempts_for_cpu", beside::for_cpu),
    ]
}

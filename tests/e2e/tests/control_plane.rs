//! Scenarios on a control plane with made-up nodes: admission and placement.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::Stack;

#[path = "control_plane/books.rs"]
mod books;
#[path = "wishes/cases.rs"]
mod cases;
#[path = "control_plane/cordoned.rs"]
mod cordoned;
#[path = "control_plane/doctor.rs"]
mod doctor;
#[path = "control_plane/filled.rs"]
mod filled;
#[path = "control_plane/harmless.rs"]
mod harmless;
#[path = "control_plane/job.rs"]
mod job;
#[path = "control_plane/leader.rs"]
mod leader;
#[path = "control_plane/past.rs"]
mod past;
#[path = "control_plane/quota.rs"]
mod quota;
#[path = "control_plane/refused.rs"]
mod refused;
#[path = "control_plane/rotation.rs"]
mod rotation;
#[path = "control_plane/scraped.rs"]
mod scraped;
#[path = "control_plane/waiting.rs"]
mod waiting;
#[path = "control_plane/wishes.rs"]
mod wishes;

fn main() -> ExitCode {
    scenario::main(
        Stack::control_plane,
        vec![
            scenario(
                "forty_pods_of_one_job_are_bound_in_two_seconds",
                job::forty_pods,
            ),
            scenario(
                "what_a_pod_leaves_out_is_filled_in_and_said",
                filled::defaults,
            ),
            scenario("a_copied_allocation_is_stripped_and_said", filled::stripped),
            scenario(
                "pods_of_other_schedulers_are_left_alone",
                filled::schedulers,
            ),
            scenario(
                "bad_input_is_refused_with_field_value_and_accepted_form",
                refused::pods,
            ),
            scenario(
                "an_ephemeral_container_neither_asks_nor_escapes",
                refused::ephemeral_containers,
            ),
            scenario(
                "odd_but_harmless_pods_are_neither_reviewed_nor_touched",
                harmless::odd_pods,
            ),
            scenario(
                "neither_a_scheduler_nor_a_class_of_its_own_leads_a_pod_past_the_books",
                past::closed,
            ),
            scenario(
                "without_a_webhook_only_gpu_pods_wait",
                harmless::webhook_away,
            ),
            scenario(
                "a_refused_pod_is_told_why_and_runs_when_another_ends",
                waiting::until_another_ends,
            ),
            scenario(
                "every_end_of_a_pod_lets_the_next_one_run",
                waiting::hand_over,
            ),
            scenario(
                "a_refused_pod_of_high_priority_does_not_spin",
                waiting::high_priority,
            ),
            scenario(
                "an_unreadable_allocation_makes_its_node_full",
                books::unreadable,
            ),
            scenario("a_scheduler_without_books_places_nothing", books::not_ready),
            scenario(
                "certificates_change_under_load_unnoticed",
                rotation::under_load,
            ),
            scenario(
                "ranks_decide_and_wishes_of_the_pod_overrule_them",
                wishes::each_has_its_say,
            ),
            scenario(
                "quotas_hold_under_many_pods_and_wake_them_when_raised",
                quota::many_at_once,
            ),
            scenario(
                "a_quota_counts_init_containers_and_percentages_by_the_effective_rule",
                quota::init_containers,
            ),
            scenario(
                "every_documented_metric_is_scraped_and_no_other",
                scraped::against_the_reference,
            ),
            scenario(
                "the_doctor_looks_at_a_real_cluster_and_foretells_a_move",
                doctor::looks,
            ),
            scenario(
                "a_cordoned_card_gets_no_new_pods_until_it_is_let_on_again",
                cordoned::until_it_is_let_on_again,
            ),
            scenario("only_the_replica_with_the_lease_binds", leader::lease),
        ],
    )
}

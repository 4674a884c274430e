//! Scenarios in which the scheduler is killed, or the way to the API server
//! loses things: the books stay those of the pods that exist.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::Stack;

#[path = "crash/binding.rs"]
mod binding;
#[path = "crash/deletion.rs"]
mod deletion;
#[path = "crash/load.rs"]
mod load;
#[path = "crash/proxied.rs"]
mod proxied;
#[path = "crash/ready.rs"]
mod ready;
#[path = "crash/restart.rs"]
mod restart;
#[path = "crash/split.rs"]
mod split;

fn main() -> ExitCode {
    scenario::main(
        Stack::control_plane,
        vec![
            scenario(
                "a_restarted_scheduler_has_the_same_books_and_fills_the_rest_exactly",
                restart::fifty_pods,
            ),
            scenario(
                "killed_between_reserve_and_binding_leaves_nothing_behind",
                binding::killed_before,
            ),
            scenario(
                "a_binding_that_arrives_after_its_scheduler_was_killed_changes_nothing",
                binding::killed_and_late,
            ),
            scenario(
                "killed_between_binding_and_answer_keeps_the_booking",
                binding::killed_after,
            ),
            scenario("a_lost_answer_is_asked_for_again", binding::lost_answer),
            scenario(
                "a_server_error_after_the_commit_is_asked_about_again",
                binding::server_error,
            ),
            scenario(
                "a_post_that_commits_after_its_deadline_is_accepted",
                binding::late_commit,
            ),
            scenario(
                "a_post_that_arrives_after_its_repetition_changes_nothing",
                binding::late_duplicate,
            ),
            scenario(
                "an_answer_after_the_deletion_was_seen_books_nothing",
                deletion::seen_before_the_answer,
            ),
            scenario(
                "a_deletion_that_the_resumed_watch_shows_frees_the_share",
                deletion::seen_by_the_resumed_watch,
            ),
            scenario(
                "a_deletion_that_only_a_list_shows_frees_the_share",
                deletion::seen_by_a_list_only,
            ),
            scenario(
                "five_kills_while_sixty_pods_are_bound_lose_and_double_nothing",
                load::five_kills,
            ),
            scenario(
                "nothing_is_answered_before_the_first_list",
                ready::before_the_first_list,
            ),
            scenario(
                "nothing_is_answered_while_the_watch_is_stale",
                ready::while_stale,
            ),
        ],
    )
}

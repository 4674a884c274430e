//! Scenarios in which the scheduler is killed, or requests are lost: its ledger always matches the
//! pods that exist.

use aliquot_e2e::scenario::{Scenario, scenario};

mod binding;
mod deletion;
pub(crate) mod proxied;
mod ready;
mod restart;
mod split;

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "restarted_scheduler_rebuilds_its_ledger_exactly",
            restart::fifty_pods,
        ),
        scenario(
            "kill_between_reserve_and_binding_leaves_nothing_behind",
            binding::killed_before,
        ),
        scenario(
            "binding_of_a_killed_scheduler_changes_nothing",
            binding::killed_and_late,
        ),
        scenario(
            "kill_between_binding_and_response_keeps_the_allocation",
            binding::killed_after,
        ),
        scenario("retries_after_a_lost_response", binding::lost_answer),
        scenario(
            "checks_again_after_a_server_error_that_committed",
            binding::server_error,
        ),
        scenario(
            "accepts_a_post_that_commits_after_its_deadline",
            binding::late_commit,
        ),
        scenario(
            "post_that_arrives_after_its_retry_changes_nothing",
            binding::late_duplicate,
        ),
        scenario(
            "response_after_an_observed_deletion_allocates_nothing",
            deletion::seen_before_the_answer,
        ),
        scenario(
            "deletion_seen_by_the_resumed_watch_frees_the_share",
            deletion::seen_by_the_resumed_watch,
        ),
        scenario(
            "deletion_seen_only_by_a_list_frees_the_share",
            deletion::seen_by_a_list_only,
        ),
        scenario(
            "does_not_filter_before_the_first_list",
            ready::before_the_first_list,
        ),
        scenario(
            "does_not_filter_while_the_watch_is_stale",
            ready::while_stale,
        ),
    ]
}

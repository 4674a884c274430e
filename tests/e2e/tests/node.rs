//! Scenarios on a real node: containers get what the scheduler booked.

use std::process::ExitCode;

use aliquot_e2e::scenario::{self, Scenario, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};

#[path = "node/asked.rs"]
mod asked;
#[path = "node/at_once.rs"]
mod at_once;
#[path = "node/by_env.rs"]
mod by_env;
#[path = "node/disk.rs"]
mod disk;
#[path = "node/drained.rs"]
mod drained;
#[path = "node/limits.rs"]
mod limits;
#[path = "node/losses.rs"]
mod losses;
#[path = "node/past.rs"]
mod past;
#[path = "node/preempted.rs"]
mod preempted;
#[path = "node/preloads.rs"]
mod preloads;
#[path = "node/restarts.rs"]
mod restarts;
#[path = "node/running.rs"]
mod running;
#[path = "node/runtime.rs"]
mod runtime;
#[path = "node/shares.rs"]
mod shares;
#[path = "node/shown.rs"]
mod shown;
#[path = "node/sick.rs"]
mod sick;

fn main() -> ExitCode {
    let node = || {
        Stack::with_node(NodeOptions {
            users: true,
            ..NodeOptions::default()
        })
    };
    let mut all = shares_and_cards();
    all.extend(what_is_told());
    scenario::main(node, all)
}

fn shares_and_cards() -> Vec<Scenario> {
    vec![
        scenario("the_example_pod_gets_its_share", shares::example_pod),
        scenario("twelve_pods_at_once_are_not_mixed_up", shares::twelve_pods),
        scenario(
            "a_container_survives_plugin_restarts_with_its_share",
            restarts::plugin,
        ),
        scenario(
            "a_pod_created_while_an_agent_restarts_runs_within_seconds",
            restarts::created_meanwhile,
        ),
        scenario(
            "a_container_survives_kubelet_restarts_with_its_share",
            restarts::kubelet,
        ),
        scenario("hami_2_a_memory_limit_holds_in_a_pod", limits::held),
        scenario(
            "a_memory_limit_holds_for_every_kind_of_user_in_a_pod",
            limits::users,
        ),
        scenario(
            "hami_10_a_memory_limit_of_percents_holds_in_a_pod",
            limits::percents,
        ),
        scenario(
            "what_an_image_preloads_is_merged_with_ours_in_a_pod",
            preloads::merged,
        ),
        scenario(
            "a_lost_checkpoint_is_told_and_books_stay",
            losses::checkpoint,
        ),
        scenario(
            "a_lowered_memory_scaling_takes_nothing_from_running_pods",
            losses::scaling,
        ),
        scenario(
            "a_container_starts_again_while_the_api_server_is_away",
            losses::api_server,
        ),
        scenario(
            "a_sick_card_gets_no_new_pods_and_keeps_its_own",
            sick::keeps,
        ),
        scenario(
            "a_dead_cards_pods_leave_and_the_other_card_fills_to_its_last_seat",
            sick::evicts,
        ),
        scenario(
            "a_node_is_drained_of_gpu_pods_where_its_owner_wants_it",
            drained::drains,
        ),
    ]
}

fn what_is_told() -> Vec<Scenario> {
    vec![
        scenario(
            "labels_of_the_node_tell_its_cards_and_leave_those_of_others",
            shown::labels,
        ),
        scenario(
            "the_kubelet_counts_memory_where_it_is_published_and_ends_nobody",
            shown::capacity,
        ),
        scenario(
            "mig_16_pod_and_cards_stay_on_one_numa_node_where_the_kubelet_aligns",
            shown::aligned,
        ),
        scenario(
            "sixty_thousand_mib_of_a_full_real_pair_end_three_pods_and_run",
            preempted::full_pair,
        ),
        scenario(
            "a_user_asks_the_scheduler_in_its_pod_through_the_api_server",
            asked::in_its_pod,
        ),
        scenario(
            "a_pod_bound_by_hand_is_refused_with_words_and_evicted",
            past::by_hand,
        ),
        scenario(
            "a_static_pod_is_refused_with_words_and_left_in_place",
            past::static_pod,
        ),
        scenario(
            "mig_14_what_the_container_runtime_lacks_is_told_and_nothing_starts_without_cdi",
            runtime::lacks,
        ),
        scenario(
            "without_cdi_a_pod_gets_its_gpu_by_environment_and_its_limits_hold",
            by_env::handed_over,
        ),
        scenario("sixty_four_pods_start_at_once", at_once::sixty_four),
        scenario(
            "files_of_ended_pods_are_collected_and_no_others",
            disk::collected,
        ),
    ]
}

//! Scenarios on a control plane with fake nodes: admission and placement.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, scenario, side_by_side, world};
use aliquot_e2e::stack::Stack;
use anyhow::Result;

mod burst;
mod bypass;
mod harmless;
mod integrations;
mod job;
mod late_binding;
mod preemption;
mod preferences;
mod proxied;
mod waiting;

fn main() -> ExitCode {
    let all = vec![
        scenario(
            "forty_pods_of_one_job_are_bound_in_two_seconds",
            job::forty_pods,
        )
        .long(),
        scenario(
            "two_thousand_pods_at_once_fill_two_thousand_shares",
            burst::two_thousand,
        )
        .long(),
        scenario(
            "neither_reviews_nor_changes_odd_but_harmless_pods",
            harmless::odd_pods,
        ),
        scenario(
            "no_own_scheduler_or_priority_class_bypasses_the_ledger",
            bypass::closed,
        ),
        scenario(
            "in_place_resize_of_a_share_names_the_command_that_does_it",
            harmless::resizes,
        ),
        scenario("without_webhook_only_gpu_pods_wait", harmless::webhook_away),
        side_by_side(
            "every_way_a_pod_ends_lets_the_next_one_run",
            waiting::hand_over,
        ),
        side_by_side(
            "pod_that_kube_scheduler_refused_runs_on_a_new_node",
            waiting::node_added,
        ),
        scenario(
            "refused_pod_of_high_priority_is_not_retried_in_a_loop",
            waiting::high_priority,
        ),
        side_by_side(
            "hami_14_ranks_decide_unless_the_pod_states_a_preference",
            preferences::each_decides,
        ),
        side_by_side(
            "api_server_accepts_manifests_of_integrations",
            integrations::manifests,
        )
        .long(),
        scenario(
            "binding_of_a_killed_scheduler_changes_nothing",
            late_binding::of_a_killed_scheduler,
        ),
        scenario(
            "kill_between_two_evictions_chooses_no_second_victims",
            preemption::between_evictions,
        ),
    ];
    scenario::main(cluster, vec![world(parts, all)])
}

async fn cluster() -> Result<Stack> {
    Stack::on(Box::pin(Cluster::control_plane().extender().start()).await?).await
}

async fn parts(stack: Arc<Stack>) -> Result<()> {
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await
}

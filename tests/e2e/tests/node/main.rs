//! Scenarios on a real node: containers get what the scheduler allocated.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, Scenario, scenario, world};
use aliquot_e2e::stack::{NODE, NodeOptions, Stack};
use anyhow::Result;

mod at_once;
mod before_driver;
mod by_env;
mod bypass;
mod disk;
mod drained;
mod driver_upgrade;
mod limits;
mod losses;
mod monitor;
mod nvidia_runtime;
mod preempted;
mod preloads;
mod queries;
mod resized;
mod resized_kills;
mod restarts;
mod running;
mod runtime;
mod shares;
mod shown;
mod sick;

fn main() -> ExitCode {
    let mut containers = shares_and_gpus();
    containers.extend(reports());
    let worlds = vec![world(usual, containers), world(usual, monitor::scenarios())];
    scenario::main(cluster, worlds)
}

async fn cluster() -> Result<Stack> {
    let cluster = Cluster::with_node().node_name(NODE).extender();
    Stack::on(Box::pin(cluster.user_namespaces().start()).await?).await
}

/// All parts on two A100, without a monitor.
async fn usual(stack: Arc<Stack>) -> Result<()> {
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await?;
    stack.start_device_plugin(&NodeOptions::default()).await
}

fn shares_and_gpus() -> Vec<Scenario> {
    vec![
        scenario("example_pod_gets_its_share", shares::example_pod),
        scenario("twelve_pods_at_once_are_not_mixed_up", shares::twelve_pods),
        scenario(
            "runs_init_containers_whose_shares_are_an_annotation",
            shares::annotated_init_container,
        ),
        scenario("sixty_pods_in_a_row_are_not_mixed_up", shares::sixty_pods).long(),
        scenario(
            "container_keeps_its_share_through_plugin_restarts",
            restarts::plugin,
        ),
        scenario(
            "kubelet_serves_pods_after_the_agents_socket_was_removed",
            restarts::socket,
        ),
        scenario(
            "pod_created_during_an_agent_restart_runs_within_seconds",
            restarts::created_meanwhile,
        ),
        scenario(
            "container_keeps_its_share_through_kubelet_restarts",
            restarts::kubelet,
        ),
        scenario("hami_2_memory_limit_holds_in_a_pod", limits::memory_limit),
        scenario(
            "memory_limit_holds_for_every_kind_of_user_in_a_pod",
            limits::users,
        ),
        scenario(
            "hami_10_memory_limit_in_percent_holds_in_a_pod",
            limits::percents,
        ),
        scenario(
            "running_program_gets_more_and_less_without_a_restart",
            resized::program,
        ),
        scenario(
            "running_program_feels_growth_within_a_second",
            resized::hundred,
        )
        .long(),
        scenario(
            "random_resizes_survive_kills_at_every_fail_point",
            resized_kills::random,
        )
        .long(),
        scenario(
            "merges_the_preloads_of_an_image_with_ours",
            preloads::merged,
        ),
        scenario(
            "reports_a_lost_checkpoint_and_keeps_allocations",
            losses::checkpoint,
        ),
        scenario(
            "lowered_memory_scaling_takes_nothing_from_running_pods",
            losses::scaling,
        ),
        scenario(
            "container_restarts_while_the_api_server_is_down",
            losses::api_server,
        ),
        scenario(
            "unhealthy_gpu_gets_no_new_pods_and_keeps_its_own",
            sick::keeps,
        ),
        scenario(
            "dead_gpu_loses_its_pods_and_the_other_gpu_fills_up",
            sick::evicts,
        ),
        scenario(
            "drains_gpu_pods_from_a_node_where_its_owner_asks_for_it",
            drained::drains,
        ),
        scenario(
            "driver_upgrade_passes_after_the_node_is_drained",
            driver_upgrade::after_drain,
        ),
    ]
}

fn reports() -> Vec<Scenario> {
    vec![
        scenario(
            "labels_the_node_with_its_gpus_and_keeps_other_labels",
            shown::labels,
        ),
        scenario(
            "kubelet_counts_published_memory_and_evicts_nothing",
            shown::capacity,
        ),
        scenario(
            "mig_16_pod_and_gpus_share_the_numa_node_the_kubelet_aligns",
            shown::aligned,
        ),
        scenario(
            "preemption_on_a_full_real_pair_evicts_three_pods",
            preempted::full_pair,
        ),
        scenario(
            "user_queries_the_scheduler_through_the_api_server",
            queries::in_its_pod,
        ),
        scenario(
            "pod_bound_by_hand_is_refused_with_a_reason_and_evicted",
            bypass::by_hand,
        ),
        scenario(
            "static_pod_is_refused_with_a_reason_and_left_in_place",
            bypass::static_pod,
        ),
        scenario(
            "mig_14_reports_a_runtime_without_cdi_and_starts_no_container",
            runtime::lacks,
        ),
        scenario(
            "limits_hold_for_a_gpu_injected_by_environment",
            by_env::handed_over,
        ),
        scenario(
            "limits_hold_under_nvidias_runtime_as_the_default_one",
            nvidia_runtime::default_one,
        ),
        scenario(
            "agent_waits_for_the_driver_at_boot_and_serves_then",
            before_driver::waits,
        ),
        scenario("sixty_four_pods_start_at_once", at_once::sixty_four).long(),
        scenario("collects_the_files_of_ended_pods_only", disk::collected),
    ]
}

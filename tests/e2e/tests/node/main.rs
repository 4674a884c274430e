//! Scenarios on a real node: containers get what the scheduler allocated.

use std::process::ExitCode;
use std::sync::Arc;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, Scenario, scenario, world};
use aliquot_e2e::stack::{NodeOptions, Stack};
use anyhow::Result;

mod bypass;
mod limits;
mod losses;
mod monitor;
mod rebooted;
mod resized;
mod restarts;
mod running;
mod shares;
mod sick;

fn main() -> ExitCode {
    let worlds = vec![
        world(usual, containers()),
        world(usual, monitor::scenarios()),
        world(with_monitor, rebooted::scenarios()),
    ];
    scenario::main(cluster, worlds)
}

async fn cluster() -> Result<Stack> {
    let cluster = Cluster::with_node().extender();
    Stack::on(Box::pin(cluster.user_namespaces().start()).await?).await
}

/// All parts on two A100, without a monitor.
async fn usual(stack: Arc<Stack>) -> Result<()> {
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await?;
    stack.start_device_plugin(&NodeOptions::default()).await
}

async fn with_monitor(stack: Arc<Stack>) -> Result<()> {
    usual(stack.clone()).await?;
    stack.start_monitor().await
}

fn containers() -> Vec<Scenario> {
    vec![
        scenario("example_pod_gets_its_share", shares::example_pod),
        scenario("twelve_pods_at_once_are_not_mixed_up", shares::twelve_pods),
        scenario(
            "runs_init_containers_whose_shares_are_an_annotation",
            shares::annotated_init_container,
        ),
        scenario(
            "container_keeps_its_share_through_plugin_restarts",
            restarts::plugin,
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
            "limits_hold_where_the_state_directory_is_mounted_noexec",
            limits::noexec,
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
            "reports_a_lost_checkpoint_and_keeps_allocations",
            losses::checkpoint,
        ),
        scenario(
            "lowered_memory_scaling_takes_nothing_from_running_pods",
            losses::scaling,
        ),
        scenario(
            "dead_gpu_loses_its_pods_and_the_other_gpu_fills_up",
            sick::evicts,
        ),
        scenario(
            "pod_bound_by_hand_is_evicted_with_a_reason_and_a_static_pod_stays",
            bypass::static_pod,
        ),
    ]
}

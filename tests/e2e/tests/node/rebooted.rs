//! Every process of the cluster is killed while a pod with a share runs and another waits, and all are
//! started again, in different orders. A process must come up by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::Member;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_e2e::figures::{print_line, report};
use aliquot_e2e::http;
use aliquot_e2e::processes::{Process, ProcessSupervisor, node_is_ready};
use aliquot_e2e::scenario::{Scenario, scenario};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use crate::running::{Running, main_status};

const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("whole_cluster_recovers_in_the_order_of_a_boot", as_a_boot).long(),
        scenario(
            "whole_cluster_recovers_in_opposite_order_after_kills",
            backwards,
        )
        .long(),
        scenario("whole_cluster_recovers_in_a_random_order", at_random).long(),
    ]
}

/// From below: data first, ours last.
async fn as_a_boot(stack: Arc<Stack>) -> Result<()> {
    restarted(&stack, "boot", Process::all(), false).await
}

/// From above, with all containers ended: the machine lost its power.
async fn backwards(stack: Arc<Stack>) -> Result<()> {
    let mut order = Process::all();
    order.reverse();
    restarted(&stack, "backwards", order, true).await
}

async fn at_random(stack: Arc<Stack>) -> Result<()> {
    let seed = std::env::var("ALIQUOT_SEED").ok();
    let seed = seed.map_or_else(|| Ok(fastrand::u64(..)), |seed| seed.parse())?;
    print_line(&format!("seed {seed} (ALIQUOT_SEED)"));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut order = Process::all();
    random.shuffle(&mut order);
    restarted(&stack, "random", order, random.bool()).await
}

async fn restarted(
    stack: &Stack,
    space: &str,
    order: Vec<Process>,
    power_lost: bool,
) -> Result<()> {
    print_line(&format!("{order:?}, containers ended: {power_lost}"));
    stack.ledger_is_empty().await?;
    stack.cluster.namespace(space).await?;
    let holds = Running::start(stack, space, "holds", 30_000).await?;
    let mut processes = ProcessSupervisor::new(stack, NodeOptions::default());
    // No scheduler places the second pod before all has ended.
    let mut gone = vec![Process::Cluster(Member::Scheduler)];
    processes.end(gone[0]).await?;
    Running::create(stack, space, "waits", 20_000).await?;
    if power_lost {
        gone.push(Process::Cluster(Member::Kubelet));
        processes.end(gone[1]).await?;
        holds.exit(stack).await?;
    }
    // From above, so that no process repairs what goes.
    for process in order.iter().rev().filter(|one| !gone.contains(one)) {
        processes.end(*process).await?;
    }

    let began = Instant::now();
    for process in &order {
        processes.start(*process).await?;
    }
    processes.all_up(PATIENCE).await?;
    node_is_ready(stack, PATIENCE).await?;
    report("all killed, to all up", began.elapsed());
    print_line(&format!(
        "processes started once more meanwhile: {}",
        processes.restarts
    ));
    let holds = if power_lost {
        again(stack, holds).await?
    } else {
        holds.untouched(stack).await?;
        holds
    };
    let waits = Running::pod(space, "waits", 20_000);
    stack.runs_or_is_made_again(waits).await?;
    let waits = Running::created(stack, space, "waits").await?;
    report("all killed, to both pods running", began.elapsed());
    let ledger = stack.ledger_agrees().await?;
    ensure!(ledger.pods.len() == 2, "{ledger:?}");
    for pod in [holds, waits] {
        measured(stack, &pod.name).await?;
        pod.delete(stack).await?;
    }
    stack.ledger_agrees().await.map(drop)
}

/// A pod whose container had ended. A kubelet that took it up before a plugin was registered has failed
/// it: then it is made again.
async fn again(stack: &Stack, pod: Running) -> Result<Running> {
    let is_failed = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        phase == Some("Failed")
    };
    let (space, name) = (&pod.namespace, &pod.name);
    let what = format!("{name} to be started again or failed");
    let seen = stack.cluster.wait_pod(space, name, &what, |pod| {
        let restarted = main_status(pod).is_some_and(|main| main.restart_count > 0);
        Ok(restarted || is_failed(pod))
    });
    if is_failed(&seen.await?) {
        print_line("the kubelet failed the pod");
        let made = Running::pod(space, name, 30_000);
        stack.runs_or_is_made_again(made).await?;
        return Running::created(stack, space, name).await;
    }
    pod.back(stack).await?;
    Ok(pod)
}

/// Waits until the monitor knows the pod's limit.
async fn measured(stack: &Stack, pod: &str) -> Result<()> {
    let monitor = stack.address(Kind::Monitor);
    let of_pod = format!("pod=\"{pod}\"");
    let name = "aliquot_share_memory_limit_bytes";
    eventually(PATIENCE, "the monitor to see the pod", || async {
        let limit = http::metric(monitor, name, &[&of_pod]).await.or_not_yet()?;
        until!(limit > 0.0, "{limit}");
        Ok(Some(()))
    })
    .await
}

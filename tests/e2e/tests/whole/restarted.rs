//! Every process of the cluster is killed, a pod with a share runs and another waits, and all are
//! started again, in different orders. A process must come up by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::Member;
use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use aliquot_e2e::figures::{print_line, report};
use aliquot_e2e::http;
use aliquot_e2e::processes::{Process, ProcessSupervisor, node_is_ready};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Result, ensure};

use crate::seen;
use crate::workloads::cleared;

const PATIENCE: Duration = Duration::from_mins(3);

/// From below: data first, ours last.
pub(crate) async fn as_a_boot(stack: Arc<Stack>) -> Result<()> {
    restarted(&stack, "boot", Process::all(), false).await
}

/// From above, with all containers killed: the machine lost its power.
pub(crate) async fn backwards(stack: Arc<Stack>) -> Result<()> {
    let mut order = Process::all();
    order.reverse();
    restarted(&stack, "backwards", order, true).await
}

pub(crate) async fn at_random(stack: Arc<Stack>) -> Result<()> {
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
    namespace: &str,
    order: Vec<Process>,
    power_lost: bool,
) -> Result<()> {
    print_line(&format!("{order:?}, containers killed: {power_lost}"));
    stack.ledger_is_empty().await?;
    stack.cluster.namespace(namespace).await?;
    seen::create(stack, namespace, "holds", 30000).await?;
    let before = seen::runs(stack, (namespace, "holds"), |_| true).await?;

    let mut processes = ProcessSupervisor::new(stack, NodeOptions::default());
    // No scheduler places the second pod before all has ended.
    let placing = Process::Cluster(Member::Scheduler);
    processes.end(placing).await?;
    seen::create(stack, namespace, "waits", 20000).await?;
    if power_lost {
        let kubelet = Process::Cluster(Member::Kubelet);
        processes.end(kubelet).await?;
        // Without the kubelet, which is down.
        stack
            .cluster
            .signal_container(&before.container, "SIGKILL")
            .await?;
        end_all(&processes, &order, &[placing, kubelet]).await?;
    } else {
        end_all(&processes, &order, &[placing]).await?;
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

    let holds = seen::runs(stack, (namespace, "holds"), |now| {
        match (power_lost, now.pod == before.pod) {
            (false, _) => *now == before,
            (true, true) => now.restarts == 1 && now.share == before.share,
            // The kubelet took it up before the plugin was registered.
            (true, false) => now.restarts == 0,
        }
    });
    let holds = holds.await?;
    if holds.pod != before.pod {
        print_line("the kubelet failed the pod, its Deployment made another");
    }
    let waits = seen::runs(stack, (namespace, "waits"), |now| now.restarts == 0).await?;
    report("all killed, to both pods running", began.elapsed());
    let ledger = stack.ledger_agrees().await?;
    ensure!(ledger.pods.len() == 2, "{ledger:?}");
    for pod in [&holds.pod, &waits.pod] {
        measured(stack, pod).await?;
    }
    cleared(stack, namespace).await?;
    stack.ledger_agrees().await.map(drop)
}

/// From above, so that no process repairs what goes.
async fn end_all(
    processes: &ProcessSupervisor<'_>,
    order: &[Process],
    gone: &[Process],
) -> Result<()> {
    for process in order.iter().rev().filter(|one| !gone.contains(one)) {
        processes.end(*process).await?;
    }
    Ok(())
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

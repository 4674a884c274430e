//! The label moves between two profiles while short pods come and go; each pod is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aliquot_cluster::wait::eventually;
use aliquot_e2e::figures::report;
use aliquot_e2e::pods::{pod, simple, with_command};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use super::labels::{device, restarts};
use super::world::{LEFT, PATIENCE, RIGHT, USUAL, label, wait_modes, wait_offered};

const SPACE: &str = "moved";
const MOVES: usize = 100;
/// Pods of the load at one time.
const AT_ONCE: usize = 3;

/// How the pods of the load ended.
type Ends = BTreeMap<String, u32>;

pub(crate) async fn hundred(stack: Arc<Stack>) -> Result<()> {
    stack.ledger_is_empty().await?;
    stack.cluster.namespace(SPACE).await?;
    label(&stack, Some("left")).await?;
    wait_modes(&stack, &LEFT).await?;
    wait_offered(&stack, &[(USUAL, "24")]).await?;
    // They stay on the third GPU, which is the fullest for them, through all moves.
    let gpus = stack.inventory().await?.gpus;
    let neighbour = gpus[2].uuid.to_string();
    for name in ["stays-1", "stays-2"] {
        let mut stays = simple(
            SPACE,
            name,
            &[("gpu", "1"), ("gpumem", "1000"), ("gpucores", "10")],
        );
        stays["metadata"]["annotations"]["aliquot.dev/use-gpu"] = neighbour.as_str().into();
        stack.cluster.create_pod(stays).await?;
        stack.cluster.wait_running(SPACE, name).await?;
    }
    let over = Arc::new(AtomicBool::new(false));
    let load = |n: usize| tokio::spawn(load(Arc::clone(&stack), Arc::clone(&over), n));
    let loads: Vec<_> = (0..AT_ONCE).map(load).collect();
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    let moving = async {
        for turn in 0..MOVES {
            let (name, modes) = if turn % 2 == 0 {
                ("right", RIGHT)
            } else {
                ("left", LEFT)
            };
            let began = Instant::now();
            label(&stack, Some(name)).await?;
            let moved = wait_modes(&stack, &modes).await;
            moved.with_context(|| format!("move {turn}"))?;
            slowest = slowest.max(began.elapsed());
        }
        anyhow::Ok(())
    };
    let moved = moving.await;
    over.store(true, Ordering::Relaxed);
    let mut ends = Ends::new();
    for load in loads {
        for (end, n) in load.await?? {
            *ends.entry(end).or_default() += n;
        }
    }
    moved?;
    report(&format!("{MOVES} moves, pods {ends:?}"), began.elapsed());
    report("slowest move", slowest);
    ensure!(ends.keys().eq(["Succeeded"]), "{ends:?}");
    for name in ["stays-1", "stays-2"] {
        let pod = stack.cluster.wait_running(SPACE, name).await?;
        ensure!(restarts(&pod) == 0, "{name}: {:?}", pod.status);
        let device = device(&pod)?;
        ensure!(device == neighbour, "{name} is on {device}");
    }
    let ledger = stack.ledger_agrees().await?;
    ensure!(ledger.pods.len() == 2, "{ledger:?}");
    wait_offered(&stack, &[(USUAL, "24")]).await?;
    for name in ["stays-1", "stays-2"] {
        stack.cluster.delete_pod(SPACE, name).await?;
    }
    ensure!(stack.ledger_agrees().await?.pods.is_empty());
    label(&stack, None).await
}

/// Short pods one after the other, of a share and of a time slice; how they ended.
async fn load(stack: Arc<Stack>, over: Arc<AtomicBool>, n: usize) -> Result<Ends> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, SPACE);
    let mut ends = Ends::new();
    for turn in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let share = [("gpu", "1"), ("gpumem", "1000"), ("gpucores", "10")];
        let limits = if (n + turn).is_multiple_of(2) {
            &share[..]
        } else {
            &share[..1]
        };
        let name = format!("short-{n}-{turn}");
        let mut short = pod(SPACE, &name, &[with_command("main", limits, "sleep 0.2")]);
        short["spec"]["restartPolicy"] = "Never".into();
        stack.cluster.create_pod(short).await?;
        let end = eventually(PATIENCE, &format!("{name} to end"), || async {
            let pod = pods.get(&name).await?;
            let status = pod.status.as_ref();
            let phase = status
                .and_then(|status| status.phase.clone())
                .unwrap_or_default();
            let reason = status.and_then(|status| status.reason.clone());
            let message = status.and_then(|status| status.message.clone());
            let ended = matches!(phase.as_str(), "Succeeded" | "Failed");
            Ok(ended.then(|| match reason {
                Some(reason) => format!("{phase} {reason}: {}", message.unwrap_or_default()),
                None => phase,
            }))
        })
        .await;
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                let left = pods.list(&ListParams::default()).await?.items;
                let events = stack.event_texts(SPACE, &name).await?;
                return Err(error.context(format!("{} pods; {events:?}", left.len())));
            }
        };
        *ends.entry(end).or_default() += 1;
        pods.delete(&name, &DeleteParams::default().grace_period(0))
            .await?;
    }
    Ok(ends)
}

//! What must hold once all processes run again and no more pods come.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_e2e::ledger::{Amount, LedgerSummary, reported_ledger};
use aliquot_e2e::pods::allocation;
use aliquot_e2e::pool::node_of;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::ListParams;

use crate::load::{MADE_UP, NAMESPACE, NODES, RUN};
use crate::observer::Observer;
use crate::replicas::Replicas;

/// The specified time after the last kill.
pub const PROMISED: Duration = Duration::from_mins(1);

/// Waits until every pod is bound, or refused and still would not fit; and until the ledgers of
/// both replicas match the pods; each within `patience`. Returns how many pods are bound and how
/// many wait.
pub async fn reached(
    stack: &Stack,
    replicas: &Replicas,
    observer: &Observer,
    patience: Duration,
) -> Result<(usize, usize)> {
    let split = eventually(patience, "every pod to be bound or refused", || async {
        decided(stack).await.or_not_yet().map(Some)
    })
    .await?;
    let ledger = eventually(patience, "the ledger to match the pods", || async {
        let written = stack.annotated_ledger().await?;
        for pair in replicas.pairs() {
            same(pair.name, &written, &reported_ledger(pair.address).await?).or_not_yet()?;
        }
        Ok(Some(written))
    })
    .await?;
    let capacity = stack.capacity().await?;
    for (gpu, used) in &ledger.gpus {
        let total = capacity.get(gpu).copied().unwrap_or_default();
        ensure!(used.within(total), "{gpu}: {used:?} of {total:?} allocated");
    }
    running(stack, patience).await?;
    ensure!(
        observer.overcommitted().is_empty(),
        "overcommitted: {:?}",
        observer.overcommitted()
    );
    observer.check()?;
    Ok(split)
}

/// Waits until there are no pods, and nothing in any ledger.
pub async fn emptied(stack: &Stack, replicas: &Replicas) -> Result<()> {
    eventually(PATIENCE, "an empty ledger", || async {
        let written = stack.annotated_ledger().await?;
        until!(
            written == LedgerSummary::default(),
            "{} pods",
            written.pods.len()
        );
        for pair in replicas.pairs() {
            same(pair.name, &written, &reported_ledger(pair.address).await?).or_not_yet()?;
        }
        Ok(Some(()))
    })
    .await
}

/// Reports where they differ, not everything in them.
fn same(name: &str, annotated: &LedgerSummary, reported: &LedgerSummary) -> Result<()> {
    for (uid, pod) in &annotated.pods {
        let found = reported.pods.get(uid);
        ensure!(
            found == Some(pod),
            "{name}: {uid} is {pod:?}, ledger {found:?}"
        );
    }
    for (uid, pod) in &reported.pods {
        ensure!(
            annotated.pods.contains_key(uid),
            "{name} has {uid} on {pod:?}, reserved: {}",
            reported.reserved.contains(uid)
        );
    }
    ensure!(annotated == reported, "{name}: the sums of the GPUs differ");
    Ok(())
}

async fn decided(stack: &Stack) -> Result<(usize, usize)> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let all = pods.list(&ListParams::default()).await?.items;
    let (bound, waiting): (Vec<_>, Vec<_>) = all.iter().partition(|pod| node_of(pod).is_some());
    let used = stack.annotated_ledger().await?.gpus;
    let capacity = stack.capacity().await?;
    for pod in &waiting {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        ensure!(has_refusal(pod), "{name} waits without a refusal");
        if let Some(gpu) = fitting_gpu(pod, name, &used, &capacity) {
            bail!("{name} waits although it fits on {gpu}");
        }
    }
    Ok((bound.len(), waiting.len()))
}

fn has_refusal(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && message.contains("GPU request ")
    })
}

/// A GPU on which it would fit.
fn fitting_gpu<'a>(
    pod: &Pod,
    name: &str,
    used: &BTreeMap<String, Amount>,
    capacity: &'a BTreeMap<String, Amount>,
) -> Option<&'a String> {
    let limits = pod.spec.as_ref()?.containers.first()?.resources.as_ref()?;
    let number = |resource: &str| -> Option<u64> {
        let amount = limits.limits.as_ref()?.get(resource)?;
        match amount.0.strip_suffix('k') {
            Some(thousands) => Some(thousands.parse::<u64>().ok()? * 1000),
            None => amount.0.parse().ok(),
        }
    };
    let requested = Amount {
        replicas: 1,
        memory: number("nvidia.com/gpumem")?,
        cores: number("nvidia.com/gpucores")?,
    };
    let made_up = format!("GPU-{NODES}");
    let mut gpus = capacity.iter();
    let found = gpus.find(|(gpu, total)| {
        let mut sum = used.get(*gpu).copied().unwrap_or_default();
        sum += requested;
        gpu.starts_with(&made_up) == name.starts_with(MADE_UP) && sum.within(**total)
    });
    found.map(|(gpu, _)| gpu)
}

/// The memory limit of the first GPU on a container's limits page.
const LIMIT: [&str; 10] = [
    "od",
    "-A",
    "n",
    "-t",
    "u8",
    "-j",
    "104",
    "-N",
    "8",
    "/.aliquot/limits",
];

/// Whether the kubelet admitted the pod in the moment in which its plugin was dead, which fails the pod
/// (docs/guides/nodes.md). A plugin that refuses a share is another error.
fn met_no_plugin(status: &PodStatus) -> bool {
    let message = status.message.as_deref().unwrap_or_default();
    status.reason.as_deref() == Some("UnexpectedAdmissionError")
        && (message.contains("no healthy devices present")
            || message.contains("code = Unavailable"))
}

/// Waits until the real node runs what is bound there, with the limits of its allocation.
async fn running(stack: &Stack, patience: Duration) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    eventually(patience, "the real node to run its pods", || async {
        for pod in pods.list(&ListParams::default()).await? {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let status = pod.status.clone().unwrap_or_default();
            if !name.starts_with(RUN) || node_of(&pod).is_none() || met_no_plugin(&status) {
                continue;
            }
            let phase = status.phase.as_deref();
            until!(phase == Some("Running"), "{name} is {phase:?}");
            let granted = allocation(&pod)?.grants("main").context("a share")?[0].memory;
            let limit = stack.cluster.exec(NAMESPACE, name, "main", &LIMIT);
            let limit = limit.await?.success().or_not_yet()?;
            until!(
                limit.trim() == granted.bytes().to_string(),
                "{name} was granted {granted:?}, its limits page has {limit}"
            );
        }
        Ok(Some(()))
    })
    .await
}

//! What must hold when everybody lives again and nothing more comes.
//!
//! Fed by: lists of pods and both replicas' books. Must not: wait longer
//! than it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::books::{Amount, Books, stated};
use aliquot_e2e::pool::node_of;
use aliquot_e2e::stack::Stack;
use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use crate::load::{MADE_UP, NAMESPACE, NODES, RUN};
use crate::observer::Observer;
use crate::replicas::Replicas;

/// What is promised after the last kill.
pub const PROMISED: Duration = Duration::from_mins(1);

/// Waits until every pod is bound, or told why it is not and would still not fit;
/// and until the books of both replicas are those of the pods; each within `patience`. How many
/// are bound and how many wait.
pub async fn reached(
    stack: &Stack,
    replicas: &Replicas,
    observer: &Observer,
    patience: Duration,
) -> Result<(usize, usize)> {
    let split = eventually(patience, "every pod to be bound or told why", || async {
        decided(stack).await.map(Some)
    })
    .await?;
    let books = eventually(patience, "the books to be those of the pods", || async {
        let written = stack.written_books().await?;
        for pair in replicas.pairs() {
            same(pair.name, &written, &stated(pair.address).await?)?;
        }
        Ok(Some(written))
    })
    .await?;
    let capacity = stack.capacity().await?;
    for (card, used) in &books.cards {
        let total = capacity.get(card).copied().unwrap_or_default();
        ensure!(used.within(total), "{card} promised {used:?} of {total:?}");
    }
    running(stack, patience).await?;
    ensure!(
        observer.over_booked().is_empty(),
        "over-booked: {:?}",
        observer.over_booked()
    );
    observer.check()?;
    Ok(split)
}

/// Waits until there are no pods, and nothing in any books.
pub async fn emptied(stack: &Stack, replicas: &Replicas) -> Result<()> {
    eventually(PATIENCE, "empty books", || async {
        let written = stack.written_books().await?;
        ensure!(written == Books::default(), "{} pods", written.pods.len());
        for pair in replicas.pairs() {
            same(pair.name, &written, &stated(pair.address).await?)?;
        }
        Ok(Some(()))
    })
    .await
}

/// Where they differ, not all that they hold.
fn same(name: &str, written: &Books, stated: &Books) -> Result<()> {
    for (uid, pod) in &written.pods {
        let found = stated.pods.get(uid);
        ensure!(
            found == Some(pod),
            "{name}: {uid} is {pod:?}, books {found:?}"
        );
    }
    for (uid, pod) in &stated.pods {
        ensure!(
            written.pods.contains_key(uid),
            "{name} books {uid} on {pod:?}, reserved: {}",
            stated.reserved.contains(uid)
        );
    }
    ensure!(written == stated, "{name}: the sums of the cards differ");
    Ok(())
}

async fn decided(stack: &Stack) -> Result<(usize, usize)> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let all = pods.list(&ListParams::default()).await?.items;
    let (bound, waiting): (Vec<_>, Vec<_>) = all.iter().partition(|pod| node_of(pod).is_some());
    let used = stack.written_books().await?.cards;
    let capacity = stack.capacity().await?;
    for pod in &waiting {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        ensure!(is_told(pod), "{name} waits and is not told why");
        if let Some(card) = room(pod, name, &used, &capacity) {
            bail!("{name} waits although it fits on {card}");
        }
    }
    Ok((bound.len(), waiting.len()))
}

fn is_told(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && message.contains("can serve the GPU request")
    })
}

/// A card of its nodes that has room for it.
fn room<'a>(
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
    let asked = Amount {
        seats: 1,
        memory: number("nvidia.com/gpumem")?,
        cores: number("nvidia.com/gpucores")?,
    };
    let made_up = format!("GPU-{NODES}");
    let mut cards = capacity.iter();
    let found = cards.find(|(card, total)| {
        let mut sum = used.get(*card).copied().unwrap_or_default();
        sum += asked;
        card.starts_with(&made_up) == name.starts_with(MADE_UP) && sum.within(**total)
    });
    found.map(|(card, _)| card)
}

/// Waits until the real node runs what is bound there.
async fn running(stack: &Stack, patience: Duration) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    eventually(patience, "the real node to run its pods", || async {
        for pod in pods.list(&ListParams::default()).await? {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            let expected = name.starts_with(RUN) && node_of(&pod).is_some();
            ensure!(!expected || phase == Some("Running"), "{name} is {phase:?}");
        }
        Ok(Some(()))
    })
    .await
}

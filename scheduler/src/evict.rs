//! Evicts pods that their node refused to start (design 4.4): bound past the
//! scheduler, or over-booked by a late Binding of an old leader; and pods whose GPU
//! is out of service, where the node's owner wants that (design 9).
//!
//! Fed by: the `refused` and `evict` lists of the nodes' inventories.
//! Must not: evict a mirror pod (the kubelet owns it), a pod of another uid, or a pod
//! that is not on the node whose agent names it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::Refused;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::disruption::MIRROR;
use aliquot_k8s::event::{Note, Notes, PodRef};
use aliquot_k8s::pod;
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bind::Binder;
use crate::books::Books;
use crate::eviction::{self, Evicted};
use crate::fail_point::{self, Point};
use crate::leader::Leader;

const EVERY: Duration = Duration::from_secs(2);

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Refused,
    Sick,
}

impl Cause {
    /// Reason and beginning of the event.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Refused => ("EvictedRefused", "evicted: its node refused to start it"),
            Self::Sick => (
                "EvictedFromGpu",
                "evicted: its GPU is out of service or changes its mode",
            ),
        }
    }
}

/// Runs until `stop`; a pod is evicted when it was refused for `after`, and at once when
/// its card is sick and it must leave.
pub async fn run(
    books: Arc<Books>,
    binder: Arc<Binder>,
    client: Client,
    notes: Notes,
    leader: Leader,
    after: Duration,
    stop: CancellationToken,
) {
    let mut since = HashMap::new();
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if leader.fault().is_some() {
            continue;
        }
        let refused = due(&mut since, books.refused_by_nodes(), Instant::now(), after);
        let sick = books.evicted_by_nodes().into_iter();
        let sick = sick.map(|(node, pod)| (Cause::Sick, node, pod));
        let all = refused
            .into_iter()
            .map(|(node, pod)| (Cause::Refused, node, pod));
        for (cause, node, named) in all.chain(sick) {
            if let Err(error) = evict(&client, &binder, &notes, cause, &node, &named).await {
                tracing::warn!(pod = named.name, ?cause, error, "not evicted");
            }
        }
    }
}

/// The refused pods whose time has come; keeps `since` to those still refused.
fn due(
    since: &mut HashMap<PodUid, Instant>,
    refused: Vec<(NodeName, Refused)>,
    now: Instant,
    after: Duration,
) -> Vec<(NodeName, Refused)> {
    since.retain(|uid, _| refused.iter().any(|(_, r)| r.pod == *uid));
    let mut due = refused;
    due.retain(|(_, r)| now - *since.entry(r.pod.clone()).or_insert(now) >= after);
    due
}

async fn evict(
    client: &Client,
    binder: &Binder,
    notes: &Notes,
    cause: Cause,
    node: &NodeName,
    named: &Refused,
) -> Result<(), String> {
    let pod = PodRef {
        namespace: named.namespace.clone(),
        name: named.name.clone(),
        uid: named.pod.to_string(),
    };
    let Some(found) = binder.get(&pod).await? else {
        return Ok(());
    };
    if pod::annotation(&found, MIRROR).is_some() || found.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    if pod::node(&found).as_ref() != Some(node) {
        return Err(format!("{node} names it and it is not there"));
    }
    fail_point::at(Point::EvictBefore);
    match eviction::evict(client, &pod, false).await {
        Evicted::Ends => {}
        Evicted::Gone => return Ok(()),
        Evicted::Protected(why) | Evicted::Failed(why) => return Err(why),
    }
    fail_point::at(Point::EvictAfter);
    tracing::info!(pod = pod.name, namespace = pod.namespace, ?cause, "evicted");
    let (reason, words) = cause.words();
    notes.send(Note {
        pod,
        warning: true,
        reason,
        action: "Evicting",
        text: format!("{words}: {}", named.reason),
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_due_when_it_was_refused_without_a_break() {
        let refused = |uid: &str| {
            let refused = Refused {
                pod: uid.into(),
                namespace: "d".to_owned(),
                name: uid.to_owned(),
                reason: "r".to_owned(),
            };
            (NodeName::from("n"), refused)
        };
        let mut since = HashMap::new();
        let start = Instant::now();
        let mut check = |second: u64, refused: &[(NodeName, Refused)], expected: usize| {
            let now = start + Duration::from_secs(second);
            let after = Duration::from_secs(30);
            assert_eq!(
                due(&mut since, refused.to_vec(), now, after).len(),
                expected
            );
        };
        check(0, &[refused("a")], 0);
        check(29, &[refused("a"), refused("b")], 0);
        check(30, &[refused("a"), refused("b")], 1);
        check(40, &[refused("b")], 0);
        check(60, &[refused("a"), refused("b")], 1);
    }
}

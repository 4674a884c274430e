//! Requeues refused pods when capacity was freed.
//!
//! kube-scheduler retries a refused pod on cluster events, but it may see a pod's end before our
//! ledger does, have the pod refused once more, and then wait for minutes. A patched annotation on
//! exactly the pods that fit now is an event that puts only these back into its active queue. A pod
//! that still does not fit is never patched.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_core::decide::PendingPlacement;
use aliquot_core::fit;
use aliquot_core::quota::{Headroom, QuotaAmount};
use aliquot_core::score::Policies;
use aliquot_core::{Cluster, Demand, NodeState, PodUid};
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fail_point::{self, Point};
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::pending_pods::{CapacityEvent, Claim, FreedCapacity, PendingPod, place};
use crate::metrics::Metrics;
use crate::pod_client::{CallError, PodClient};

/// The annotation that is patched; its value is the time in milliseconds.
pub const REQUEUE_ANNOTATION: &str = "aliquot.dev/nudge";
/// Pause before pods whose requeueing failed are checked again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until `stop`.
pub async fn run(
    cache: Arc<LedgerCache>,
    pods: PodClient,
    leader: Leader,
    metrics: Metrics,
    stop: CancellationToken,
) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = cache.capacity_changed() => {}
        }
        // Only the leader requeues. Until then the events are kept: a new leader's list is in the
        // ledger before it leads.
        tokio::select! {
            () = stop.cancelled() => return,
            () = leader.leads() => {}
        }
        let mut failed = Vec::new();
        for (uid, pod) in take_requeueable(&cache) {
            let now = millis(SystemTime::now());
            fail_point::at(Point::RequeueBeforePatch);
            let answer = pods.annotate(&pod, REQUEUE_ANNOTATION, Some(&now)).await;
            fail_point::at(Point::RequeueAfterPatch);
            match answer {
                Ok(()) => {
                    metrics.requeues.inc();
                    tracing::info!(
                        pod = pod.name,
                        namespace = pod.namespace,
                        "requeued, the pod fits now"
                    );
                }
                Err(CallError::Failed(kube::Error::Api(status))) if status.code == 404 => {
                    cache.remove_pending(&uid);
                }
                // Also a conflict: of several writers, or because another pod has its name (uid
                // precondition). The watch will show which.
                Err(error) => {
                    tracing::warn!(pod = pod.name, namespace = pod.namespace, %error, "cannot requeue the pod, which fits now");
                    failed.push(uid);
                }
            }
        }
        if failed.is_empty() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
        for uid in &failed {
            requeue_failed(&cache, uid);
        }
    }
}

/// Milliseconds since 1970.
fn millis(now: SystemTime) -> String {
    let age = now.duration_since(UNIX_EPOCH);
    age.map_or(0, |age| age.as_millis()).to_string()
}

/// Takes the mark of refusal from those refused pods that fit together where capacity was
/// freed, highest priority first, and returns them.
pub fn take_requeueable(cache: &LedgerCache) -> Vec<(PodUid, PodRef)> {
    let (cluster, freed) = cache.pending.take_freed(|| cache.snapshot());
    if freed.is_empty() {
        return Vec::new();
    }
    let mut all = cache.pending.pods.lock();
    let refused = || all.iter().filter(|(_, pending)| pending.refused);
    let namespaces: HashSet<_> = refused().map(|(_, p)| p.pod.namespace.as_str()).collect();
    let headrooms = cache.read(|ledger| {
        let left = |name| Some((name, ledger.headroom(name)?));
        namespaces.into_iter().filter_map(left).collect()
    });
    // After the ledger: a pod that has reserved what it claimed claims it no longer.
    let now = Instant::now();
    let claims = cache.pending.claims.lock().all(now);
    let policies = cache.policies();
    let with_reservation = cache.read(|ledger| {
        let fits = |(uid, pending): (&PodUid, &PendingPod)| {
            let (slot, state) = ledger.node_seen_by_preemptor(uid)?;
            let fit = fit::fit(&state, &pending.demand, &policies).ok()?;
            let amount = QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
            let headroom = ledger.headroom(&pending.pod.namespace);
            let allowed = headroom.is_none_or(|left| left.allows(amount));
            (allowed && freed.slots.contains(&slot)).then(|| uid.clone())
        };
        let preemptors = ledger.reservations().map(|(uid, _)| uid);
        let preemptors = preemptors.filter_map(|uid| all.get_key_value(uid));
        let refused = preemptors.filter(|(_, pending)| pending.refused);
        refused.filter_map(fits).collect::<Vec<_>>()
    });
    let capacity = FreeCapacity {
        cluster: &cluster,
        freed: &freed,
        claims: &claims,
        headrooms,
        policies: &policies,
    };
    let others = refused().filter(|(uid, _)| !with_reservation.contains(uid));
    let together: Vec<_> = fit_together(others, capacity)
        .into_iter()
        .map(|(uid, placement)| (uid.clone(), placement))
        .collect();
    let mut requeueable = Vec::with_capacity(together.len());
    for uid in with_reservation {
        if let Some(pending) = all.get_mut(&uid) {
            pending.refused = false;
            requeueable.push((uid, pending.pod.clone()));
        }
    }
    for (uid, placement) in together {
        if let Some(pending) = all.get_mut(&uid) {
            pending.refused = false;
            let namespace = pending.pod.namespace.as_str().into();
            let claim = Claim {
                placement,
                namespace,
            };
            cache.put_claim(&uid, claim, now);
            requeueable.push((uid, pending.pod.clone()));
        }
    }
    requeueable
}

/// The pod could not be requeued: it is checked again.
fn requeue_failed(cache: &LedgerCache, pod: &PodUid) {
    if let Some(pending) = cache.pending.pods.lock().get_mut(pod) {
        pending.refused = true;
    }
    cache.end_claim(pod);
    cache.pending.add_event(CapacityEvent::Everywhere);
}

/// The nodes, and what of them and of the namespaces' quotas is free.
#[derive(Debug)]
struct FreeCapacity<'a> {
    cluster: &'a Cluster,
    /// Where capacity was freed.
    freed: &'a FreedCapacity,
    /// What other pods are about to take.
    claims: &'a [Claim],
    /// What the quotas leave, by namespace, without what is claimed.
    headrooms: HashMap<&'a str, Headroom>,
    /// For pods that choose none.
    policies: &'a Policies,
}

/// Those of `refused` that fit together where capacity was freed, highest priority first (then by
/// uid), each with its placement.
fn fit_together<'w>(
    refused: impl IntoIterator<Item = (&'w PodUid, &'w PendingPod)>,
    mut capacity: FreeCapacity<'_>,
) -> Vec<(&'w PodUid, PendingPlacement)> {
    let mut refused: Vec<_> = refused.into_iter().collect();
    refused.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let all: Vec<usize> = (0..capacity.cluster.slots()).collect();
    // Nodes that differ from the cluster's.
    let mut changed: HashMap<usize, NodeState> = HashMap::new();
    for claim in capacity.claims {
        let placement = &claim.placement;
        place(&mut changed, capacity.cluster, placement);
        if let Some(headroom) = capacity.headrooms.get_mut(claim.namespace.as_str()) {
            headroom.take(QuotaAmount::of(placement.uses.iter().map(|(_, used)| used)));
        }
    }
    // Capacity only shrinks here, so where a shape does not fit, it never will. Shapes are counted
    // separately for a namespace with quotas, or one whose quota was raised.
    let mut full: HashMap<(Option<&str>, Cow<'_, Demand>), HashSet<usize>> = HashMap::new();
    let mut placed = Vec::new();
    for (uid, pod) in refused {
        let namespace = pod.pod.namespace.as_str();
        let quota_raised = capacity.freed.namespaces.contains(namespace);
        let slots = if quota_raised {
            &all
        } else {
            &capacity.freed.slots
        };
        let headroom = capacity.headrooms.get_mut(namespace);
        let separate = (quota_raised || headroom.is_some()).then_some(namespace);
        let full = full
            .entry((
                separate,
                aliquot_core::decide::shape(&pod.demand, capacity.cluster),
            ))
            .or_default();
        if full.len() == slots.len() {
            continue;
        }
        let found = slots.iter().find_map(|&slot| {
            if !pod.offered.contains(slot) || full.contains(&slot) {
                return None;
            }
            let state = changed.get(&slot);
            let state = state.or_else(|| capacity.cluster.at(slot).map(AsRef::as_ref));
            let fit = fit::fit(state?, &pod.demand, capacity.policies).ok();
            let fit = fit.filter(|fit| {
                let amount = QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
                headroom.as_ref().is_none_or(|left| left.allows(amount))
            });
            if fit.is_none() {
                full.insert(slot);
            }
            fit.map(|fit| PendingPlacement::of(slot, fit, &pod.demand))
        });
        if let Some(placement) = found {
            place(&mut changed, capacity.cluster, &placement);
            if let Some(headroom) = headroom {
                headroom.take(QuotaAmount::of(placement.uses.iter().map(|(_, used)| used)));
            }
            placed.push((uid, placement));
        }
    }
    placed
}

#[cfg(test)]
#[path = "requeue_tests.rs"]
mod tests;

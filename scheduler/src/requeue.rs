//! Requeues refused pods when capacity was freed.
//!
//! kube-scheduler retries a refused pod on cluster events, but it may see a pod's end before our
//! ledger does, have the pod refused once more, and then wait for minutes. A patched annotation on
//! exactly the pods that fit now is an event that puts only these back into its active queue. A pod
//! that still does not fit is never patched.
//!
//! A pod that kube-scheduler refused without asking filter, for example for lack of CPU, ignores
//! its annotations since Kubernetes 1.32, and a new node too: kube-scheduler checks the node for all
//! resources of the pod, and no node publishes `nvidia.com/gpumem`. What it obeys is that another
//! pod leaves a node. So when a pod fits on a node that is new or changed, that node is nominated
//! for it and the nomination withdrawn, which kube-scheduler treats as such a pod's end.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_core::decide::PendingPlacement;
use aliquot_core::fit;
use aliquot_core::quota::{Headroom, QuotaAmount};
use aliquot_core::score::Policies;
use aliquot_core::{Cluster, Demand, NodeName, NodeState, PodUid};
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fail_point::{self, Point};
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;
use crate::ledger_cache::gangs::GangName;
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
        let requeueable = take_requeueable(&cache);
        // One nomination requeues all pods of the same and of lower priority.
        let first = requeueable
            .iter()
            .find_map(|(_, r)| Some((&r.pod, r.nominate.as_ref()?)));
        if let Some((pod, node)) = first
            && let Err(error) = pods.nominate(pod, node).await
        {
            tracing::warn!(pod = pod.name, namespace = pod.namespace, %node, %error, "cannot nominate the node for the pod, which fits there now");
        }
        for (uid, Requeueable { pod, .. }) in requeueable {
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

/// A refused pod that fits now.
#[derive(Clone, Debug)]
pub struct Requeueable {
    /// The pod.
    pub pod: PodRef,
    /// The node where it fits, if that is new or changed and kube-scheduler may ignore both it and
    /// the pod's annotations.
    pub nominate: Option<NodeName>,
}

/// Takes the mark of refusal from those refused pods that fit together where capacity was
/// freed, highest priority first, and returns them. Pods that kube-scheduler refused by itself are
/// checked on new and changed nodes only.
pub fn take_requeueable(cache: &LedgerCache) -> Vec<(PodUid, Requeueable)> {
    let (cluster, freed) = cache.pending.take_freed(|| cache.snapshot());
    if freed.is_empty() {
        return Vec::new();
    }
    let mut all = cache.pending.pods.lock();
    let now = Instant::now();
    // With a claim it was requeued just now, or is being bound.
    let by_kube_scheduler: HashSet<PodUid> = if freed.changed.is_empty() {
        HashSet::new()
    } else {
        let claims = cache.pending.claims.lock();
        let refused = all.iter().filter(|(uid, pending)| {
            pending.is_refused_by_kube_scheduler() && !claims.has(uid, now)
        });
        refused.map(|(uid, _)| uid.clone()).collect()
    };
    let by_kube_scheduler = &by_kube_scheduler;
    let refused = || {
        let refused = all.iter();
        refused.filter(move |(uid, p)| p.refused || by_kube_scheduler.contains(*uid))
    };
    let namespaces: HashSet<_> = refused().map(|(_, p)| p.pod.namespace.as_str()).collect();
    let headrooms = cache.read(|ledger| {
        let left = |name| Some((name, ledger.headroom(name)?));
        namespaces.into_iter().filter_map(left).collect()
    });
    // After the ledger: a pod that has reserved what it claimed claims it no longer.
    let claims = cache.pending.claims.lock().all(now);
    let policies = cache.policies();
    let with_reservation = cache.read(|ledger| {
        let fits = |(uid, pending): (&PodUid, &PendingPod)| {
            let (slot, state) = ledger.node_seen_by_preemptor(uid)?;
            let fit = fit::fit(&state, &pending.demand, &policies).ok()?;
            let amount = QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
            let headroom = ledger.headroom_for(uid, &pending.pod.namespace);
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
    let batches = batches(others, &all, |gang| cache.gangs.is_started(gang));
    let together: Vec<_> = fit_together(batches, capacity)
        .into_iter()
        .map(|(uid, placement)| (uid.clone(), placement))
        .collect();
    let mut requeueable = Vec::with_capacity(together.len());
    for uid in with_reservation {
        if let Some(pending) = all.get_mut(&uid) {
            pending.refused = false;
            let pod = pending.pod.clone();
            let nominate = None;
            requeueable.push((uid, Requeueable { pod, nominate }));
        }
    }
    for (uid, placement) in together {
        if let Some(pending) = all.get_mut(&uid) {
            let slot = placement.slot;
            let ignored = pending.preemption.unschedulable && freed.changed.contains(&slot);
            let node = cluster.named(slot).filter(|_| ignored);
            let nominate = node.map(|(name, _)| name.clone());
            let namespace = pending.pod.namespace.as_str().into();
            let claim = Claim {
                placement,
                namespace,
                offered: pending.refused,
            };
            cache.put_claim(&uid, claim, now);
            // Of a gang, those that nobody refused wait only for the others.
            let refused = std::mem::take(&mut pending.refused);
            if refused || by_kube_scheduler.contains(&uid) {
                let pod = pending.pod.clone();
                requeueable.push((uid, Requeueable { pod, nominate }));
            }
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

/// Pods that are requeued together or not at all: one pod, or all pending members of a gang.
type Batch<'w> = Vec<(&'w PodUid, &'w PendingPod)>;

/// The batches of these refused pods, highest priority first (then by uid). A member of a gang that
/// is started, with bound members, is a batch of its own.
fn batches<'w>(
    refused: impl Iterator<Item = (&'w PodUid, &'w PendingPod)>,
    all: &'w HashMap<PodUid, PendingPod>,
    is_started: impl Fn(&GangName) -> bool,
) -> Vec<Batch<'w>> {
    let mut refused: Vec<_> = refused.collect();
    refused.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let mut gangs: HashSet<&GangName> = HashSet::new();
    let batch = |(uid, pod): (&'w PodUid, &'w PendingPod)| match &pod.gang {
        Some(gang) if !is_started(gang) => gangs.insert(gang).then(|| {
            let members = all
                .iter()
                .filter(|(_, other)| other.gang.as_ref() == Some(gang));
            let mut members: Batch<'w> = members.collect();
            members.sort_by_key(|(uid, _)| *uid);
            members
        }),
        _ => Some(vec![(uid, pod)]),
    };
    refused.into_iter().filter_map(batch).collect()
}

/// The nodes where pods of a shape do not fit. Shapes are counted separately for a namespace with
/// quotas, or one whose quota was raised, and for pods that filter refused.
type FullNodes<'w> = HashMap<(Option<&'w str>, bool, Cow<'w, Demand>), HashSet<usize>>;

/// Those of `batches` that fit together where capacity was freed, each pod with its placement. A gang
/// may use capacity that was free before, too.
fn fit_together<'w>(
    batches: Vec<Batch<'w>>,
    mut capacity: FreeCapacity<'w>,
) -> Vec<(&'w PodUid, PendingPlacement)> {
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
    // Capacity only shrinks here, so where a shape does not fit, it never will.
    let mut full = FullNodes::new();
    let mut placed = Vec::new();
    for batch in batches {
        let [(uid, pod)] = batch[..] else {
            placed.extend(place_gang(&batch, &all, &mut capacity, &mut changed));
            continue;
        };
        let namespace = pod.pod.namespace.as_str();
        let slots = if !pod.refused {
            &capacity.freed.changed
        } else if capacity.freed.namespaces.contains(namespace) {
            &all
        } else {
            &capacity.freed.slots
        };
        if let Some(placement) = capacity.place(pod, slots, &mut changed, &mut full) {
            placed.push((uid, placement));
        }
    }
    placed
}

/// The placements of all members, or of none.
fn place_gang<'w>(
    members: &[(&'w PodUid, &'w PendingPod)],
    all: &[usize],
    capacity: &mut FreeCapacity<'w>,
    changed: &mut HashMap<usize, NodeState>,
) -> Vec<(&'w PodUid, PendingPlacement)> {
    // Without what was freed, the gang did not fit before.
    let fits = |slot: usize, pod: &PendingPod| {
        let node = capacity.cluster.at(slot);
        node.is_some_and(|node| fit::fit(node, &pod.demand, capacity.policies).is_ok())
    };
    let uses_freed = members.iter().any(|(_, pod)| {
        let namespace = pod.pod.namespace.as_str();
        capacity.freed.namespaces.contains(namespace)
            || capacity.freed.slots.iter().any(|slot| fits(*slot, pod))
    });
    if !uses_freed {
        return Vec::new();
    }
    let before = (changed.clone(), capacity.headrooms.clone());
    let mut full = FullNodes::new();
    let mut placed = Vec::with_capacity(members.len());
    for (uid, pod) in members {
        let Some(placement) = capacity.place(pod, all, changed, &mut full) else {
            (*changed, capacity.headrooms) = before;
            return Vec::new();
        };
        placed.push((*uid, placement));
    }
    placed
}

impl<'w> FreeCapacity<'w> {
    /// Places the pod on the first of these nodes where it fits.
    fn place(
        &mut self,
        pod: &'w PendingPod,
        slots: &[usize],
        changed: &mut HashMap<usize, NodeState>,
        full: &mut FullNodes<'w>,
    ) -> Option<PendingPlacement> {
        let namespace = pod.pod.namespace.as_str();
        let quota_raised = self.freed.namespaces.contains(namespace);
        let mut headroom = self.headrooms.get_mut(namespace);
        let separate = (quota_raised || headroom.is_some()).then_some(namespace);
        let shape = aliquot_core::decide::shape(&pod.demand, self.cluster);
        let full = full.entry((separate, pod.refused, shape)).or_default();
        if full.len() == slots.len() {
            return None;
        }
        let found = slots.iter().find_map(|&slot| {
            if full.contains(&slot) {
                return None;
            }
            let state = changed.get(&slot);
            let (name, unchanged) = self.cluster.named(slot)?;
            let state = state.unwrap_or(unchanged);
            // Filter was offered these nodes; what kube-scheduler refused may have been for lack
            // of CPU or memory.
            let offered = if pod.refused {
                pod.offered.contains(slot)
            } else {
                state.host.free().covers(pod.demand.host) && self.freed.may_select(pod, slot, name)
            };
            if !offered {
                return None;
            }
            let fit = fit::fit(state, &pod.demand, self.policies).ok();
            let fit = fit.filter(|fit| {
                let amount = QuotaAmount::of(fit.uses.iter().map(|(_, used)| used));
                headroom.as_ref().is_none_or(|left| left.allows(amount))
            });
            if fit.is_none() {
                full.insert(slot);
            }
            fit.map(|fit| PendingPlacement::of(slot, fit, &pod.demand))
        });
        if let Some(placement) = &found {
            place(changed, self.cluster, placement);
            if let Some(headroom) = &mut headroom {
                headroom.take(QuotaAmount::of(placement.uses.iter().map(|(_, used)| used)));
            }
        }
        found
    }
}

#[cfg(test)]
#[path = "requeue_tests.rs"]
mod tests;

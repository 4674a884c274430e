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
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::quota::{Headroom, QuotaAmount};
use aliquot_core::score::Policies;
use aliquot_core::{Cluster, Demand, Ledger, Namespace, NodeName, NodeState, PodUid, decide, fit};
use aliquot_k8s::event::PodRef;
use aliquot_serve::fail_point;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leader::Leader;
use crate::ledger_cache::gangs::GangName;
use crate::ledger_cache::pending_pods::{
    CLAIM_LIFETIME, CapacityEvent, Claim, FreedCapacity, PendingPod,
};
use crate::ledger_cache::{LedgerCache, State};
use crate::metrics::Metrics;
use crate::pod_client::{CallError, PodClient, shortened};

/// The annotation that is patched; its value is the time in milliseconds.
pub const REQUEUE_ANNOTATION: &str = "aliquot.dev/requeue";
/// Pause before pods whose requeueing failed are checked again.
const RETRY: Duration = Duration::from_secs(1);
/// The same for one whose patch the API server rejects, as for the size of the pod's annotations:
/// meanwhile others get what was free for it.
const REJECTED: Duration = Duration::from_mins(1);

pub async fn run(
    cache: Arc<LedgerCache>,
    pods: PodClient,
    leader: Leader,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut rejected: VecDeque<(Instant, PodUid)> = VecDeque::new();
    loop {
        let next = rejected.front().map(|(due, _)| *due);
        tokio::select! {
            () = stop.cancelled() => return,
            () = cache.capacity_changed() => {}
            () = until(next) => {}
        }
        // Only the leader requeues. Until then the events are kept: a new leader's list is in the
        // ledger before it leads.
        tokio::select! {
            () = stop.cancelled() => return,
            () = leader.until_leading() => {}
        }
        let now = Instant::now();
        while rejected.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, uid)) = rejected.pop_front()
        {
            requeue_failed(&cache, &uid, None);
        }
        let mut failed = Vec::new();
        let requeueable = take_requeueable(&cache);
        nominate_first(&pods, &requeueable).await;
        for (uid, Requeueable { pod, again, .. }) in requeueable {
            // Those before it took time.
            if !leader.leads() {
                failed.push((uid, again));
                continue;
            }
            match patch(&pods, &pod).await {
                Patched::Done => {
                    metrics.requeues.inc();
                }
                Patched::Gone => cache.lock().remove_pending(&uid),
                Patched::Rejected => rejected.push_back((Instant::now() + REJECTED, uid)),
                Patched::Failed => failed.push((uid, again)),
            }
        }
        if failed.is_empty() {
            continue;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
        for (uid, again) in failed {
            requeue_failed(&cache, &uid, again);
        }
    }
}

/// One nomination requeues all pods of the same and of lower priority.
async fn nominate_first(pods: &PodClient, requeueable: &[(PodUid, Requeueable)]) {
    let mut all = requeueable.iter();
    let first = all.find_map(|(_, one)| Some((&one.pod, one.nominate.as_ref()?)));
    if let Some((pod, node)) = first
        && let Err(error) = pods.nominate(pod, node).await
    {
        tracing::warn!(pod = pod.name, namespace = pod.namespace, %node, %error, "cannot nominate the node for the pod, which fits there now");
    }
}

/// The answer to the patch of a pod.
enum Patched {
    Done,
    /// There is no such pod.
    Gone,
    Rejected,
    Failed,
}

async fn patch(pods: &PodClient, pod: &PodRef) -> Patched {
    let now = Timestamp::now().as_millisecond().to_string();
    fail_point::at("RequeueBeforePatch");
    let answer = pods.annotate(pod, REQUEUE_ANNOTATION, Some(&now)).await;
    fail_point::at("RequeueAfterPatch");
    let (name, namespace) = (&pod.name, &pod.namespace);
    match answer {
        Ok(()) => {
            tracing::info!(pod = name, namespace, "requeued, the pod fits now");
            Patched::Done
        }
        Err(CallError::Failed(kube::Error::Api(status))) if status.code == 404 => Patched::Gone,
        Err(CallError::Failed(kube::Error::Api(status)))
            if matches!(status.code, 400 | 403 | 413 | 422) =>
        {
            let why = shortened(&status.message);
            tracing::warn!(pod = name, namespace, %why, "may not requeue the pod, which fits now");
            Patched::Rejected
        }
        // Also a conflict: of several writers, or because another pod has its name (uid
        // precondition). The watch will show which.
        Err(error) => {
            tracing::warn!(pod = name, namespace, %error, "cannot requeue the pod, which fits now");
            Patched::Failed
        }
    }
}

/// Returns at this time; never without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A refused pod that fits now.
#[derive(Clone, Debug)]
pub struct Requeueable {
    pub pod: PodRef,
    /// The node where it fits, if that is new or changed and kube-scheduler may ignore both it and
    /// the pod's annotations.
    pub nominate: Option<NodeName>,
    /// The change of that node, where kube-scheduler refused the pod by itself.
    again: Option<CapacityEvent>,
}

/// Takes the mark of refusal from those refused pods that fit together where capacity was
/// freed, highest priority first, and returns them. Pods that kube-scheduler refused by itself are
/// checked on new and changed nodes only.
pub fn take_requeueable(cache: &LedgerCache) -> Vec<(PodUid, Requeueable)> {
    let now = Instant::now();
    let Some(check) = Check::begin(&mut cache.lock(), now) else {
        return Vec::new();
    };
    let chosen = check.choose();
    check.requeue(&mut cache.lock(), chosen, now)
}

/// The pod could not be requeued: it is checked again, as after the same change if a node changed.
fn requeue_failed(cache: &LedgerCache, pod: &PodUid, again: Option<CapacityEvent>) {
    let mut state = cache.lock();
    if let Some(pending) = state.pending.get_mut(pod).map(Arc::make_mut) {
        if again.is_some() {
            pending.claimed = None;
        } else {
            pending.refused = true;
        }
    }
    let event = again.unwrap_or(CapacityEvent::Everywhere);
    state.events.add(event);
}

/// A check of the refused pods, on a snapshot: of many pods it takes a while.
#[derive(Debug)]
struct Check {
    cluster: Cluster,
    freed: FreedCapacity,
    pending: HashMap<PodUid, Arc<PendingPod>>,
    /// Those of them that kube-scheduler refused, and that are to be checked.
    by_kube_scheduler: HashSet<PodUid>,
    /// Refused pods that fit where a plan has assumed a share for them.
    planned: Vec<PodUid>,
    claims: Vec<Claim>,
    /// Of the namespaces of pending pods.
    headrooms: HashMap<String, Headroom>,
    started: HashSet<GangName>,
    policies: Arc<Policies>,
}

impl Check {
    /// Takes the nodes and namespaces where capacity was freed; `None` where no pod waits for it.
    fn begin(state: &mut State, now: Instant) -> Option<Self> {
        let cluster = state.ledger.cluster().clone();
        let freed = state.events.take(cluster.slots());
        if freed.is_empty() {
            return None;
        }
        let mut any_refused = false;
        let mut by_kube_scheduler = HashSet::new();
        let (mut planned, mut claims) = (Vec::new(), Vec::new());
        for (uid, pending) in &state.pending {
            if pending.refused {
                any_refused = true;
                if let Some(amount) = fits_as_planned(state, uid, pending, &freed) {
                    planned.push((uid, &**pending, amount));
                }
                continue;
            }
            // With an assumed share it is being bound.
            if state.ledger.assumed(uid).is_some() {
                continue;
            }
            // What it was requeued for just now.
            let claim = pending.claimed.as_ref().filter(|(_, until)| *until > now);
            if let Some((claim, _)) = claim {
                if state.ledger.pod_entry(uid).is_none() {
                    claims.push(claim.clone());
                }
            } else if !freed.changed.is_empty() && pending.may_be_nominated(now) {
                by_kube_scheduler.insert(uid.clone());
            }
        }
        if by_kube_scheduler.is_empty() && !any_refused {
            return None;
        }
        let namespaces: HashSet<&String> = state
            .pending
            .values()
            .map(|one| &one.pod.namespace)
            .collect();
        let headrooms = namespaces
            .into_iter()
            .filter_map(|name| Some((name.clone(), state.ledger.headroom(name)?)));
        let mut headrooms: HashMap<String, Headroom> = headrooms.collect();
        let planned = within_quotas(planned, &state.ledger, &mut headrooms);
        Some(Self {
            headrooms,
            cluster,
            freed,
            pending: state.pending.clone(),
            by_kube_scheduler,
            planned,
            claims,
            started: state.gangs.started(),
            policies: state.policies.clone(),
        })
    }

    /// The pods that fit together, each with what it would take.
    fn choose(&self) -> Vec<(PodUid, Claim)> {
        let capacity = FreeCapacity {
            cluster: &self.cluster,
            freed: &self.freed,
            claims: &self.claims,
            headrooms: self.headrooms.clone(),
            policies: &self.policies,
        };
        let all = self.pending.iter().map(|(uid, pending)| (uid, &**pending));
        let waiting = all.filter(|(uid, pending)| {
            (pending.refused || self.by_kube_scheduler.contains(*uid))
                && !self.planned.contains(uid)
        });
        let batches = batches(waiting, &self.pending, |gang| self.started.contains(gang));
        let chosen = fit_together(batches, capacity).into_iter();
        chosen.map(|(uid, claim)| (uid.clone(), claim)).collect()
    }

    /// Takes the mark of refusal from these pods and from the planned ones, if they still have it,
    /// and returns them.
    fn requeue(
        self,
        state: &mut State,
        chosen: Vec<(PodUid, Claim)>,
        now: Instant,
    ) -> Vec<(PodUid, Requeueable)> {
        let mut requeueable = Vec::with_capacity(chosen.len());
        for uid in self.planned {
            let pending = state.pending.get_mut(&uid);
            if let Some(pending) = pending.filter(|pending| pending.refused) {
                Arc::make_mut(pending).refused = false;
                let requeued = Requeueable {
                    pod: pending.pod.clone(),
                    nominate: None,
                    again: None,
                };
                requeueable.push((uid, requeued));
                let namespace = Namespace::from(pending.pod.namespace.as_str());
                if state.ledger.namespaces().has_quota(namespace.as_str()) {
                    let event = CapacityEvent::Namespace(namespace);
                    state.events.add_after_claim(now, event);
                }
            }
        }
        for (uid, claim) in chosen {
            let Some(pending) = state.pending.get_mut(&uid) else {
                continue;
            };
            let ignored =
                pending.preemption.unschedulable && self.freed.changed.contains(&claim.slot);
            let node = self.cluster.named(claim.slot).filter(|_| ignored);
            let nominate = node.map(|(name, _)| name.clone());
            let (slot, namespace) = (claim.slot, claim.namespace.clone());
            // Of a gang, those that nobody refused wait only for the others.
            let by_kube_scheduler = self.by_kube_scheduler.contains(&uid);
            if pending.refused || by_kube_scheduler {
                let labels = self.freed.labels.get(&slot).filter(|_| by_kube_scheduler);
                let requeued = Requeueable {
                    pod: pending.pod.clone(),
                    nominate,
                    again: labels.map(|labels| CapacityEvent::Node(slot, labels.clone())),
                };
                requeueable.push((uid, requeued));
            }
            let pending = Arc::make_mut(pending);
            pending.refused = false;
            pending.claimed = Some((claim, now + CLAIM_LIFETIME));
            let events = &mut state.events;
            events.add_after_claim(now, CapacityEvent::Slot(slot));
            if state.ledger.namespaces().has_quota(namespace.as_str()) {
                events.add_after_claim(now, CapacityEvent::Namespace(namespace));
            }
        }
        requeueable
    }
}

/// What the pod would take of its namespace's quotas, if it fits where a plan has assumed a share
/// for it, and something was freed there or in its namespace.
fn fits_as_planned(
    state: &State,
    uid: &PodUid,
    pod: &PendingPod,
    freed: &FreedCapacity,
) -> Option<QuotaAmount> {
    let namespace = pod.pod.namespace.as_str();
    let quota_freed = freed.namespaces.contains(namespace);
    let planned = state.ledger.node_without_assumed(uid);
    let (_, node) = planned.filter(|(slot, _)| quota_freed || freed.slots.contains(slot))?;
    let fit = fit::fit(&node, &pod.demand, &state.policies).ok()?;
    Some(fit.amount())
}

/// Those of the pods with plans that fit into their namespaces' quotas together, highest priority
/// first. What they will take is no longer left for others.
fn within_quotas(
    mut planned: Vec<(&PodUid, &PendingPod, QuotaAmount)>,
    ledger: &Ledger,
    headrooms: &mut HashMap<String, Headroom>,
) -> Vec<PodUid> {
    planned.sort_by(|(a, x, _), (b, y, _)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let mut taken: HashMap<&str, Vec<QuotaAmount>> = HashMap::new();
    planned.retain(|(uid, pod, amount)| {
        let namespace = pod.pod.namespace.as_str();
        let Some(mut left) = ledger.headroom_for(uid, namespace) else {
            return true;
        };
        let taken = taken.entry(namespace).or_default();
        for before in taken.iter() {
            left.take(*before);
        }
        let fits = left.allows(*amount);
        if fits {
            taken.push(*amount);
        }
        fits
    });
    for (namespace, taken) in taken {
        if let Some(left) = headrooms.get_mut(namespace) {
            for amount in taken {
                left.take(amount);
            }
        }
    }
    planned.into_iter().map(|(uid, ..)| uid.clone()).collect()
}

/// The nodes, and what of them and of the namespaces' quotas is free.
#[derive(Debug)]
struct FreeCapacity<'a> {
    cluster: &'a Cluster,
    freed: &'a FreedCapacity,
    /// What other pods are about to take.
    claims: &'a [Claim],
    /// What the quotas leave, by namespace, without what is claimed.
    headrooms: HashMap<String, Headroom>,
    /// For pods that choose none.
    policies: &'a Policies,
}

/// Pods that are requeued together or not at all: one pod, or all pending members of a gang.
type Batch<'w> = Vec<(&'w PodUid, &'w PendingPod)>;

/// The batches of these refused pods, highest priority first (then by uid). A member of a gang that
/// is started, with bound members, is a batch of its own.
fn batches<'w>(
    refused: impl Iterator<Item = (&'w PodUid, &'w PendingPod)>,
    all: &'w HashMap<PodUid, Arc<PendingPod>>,
    is_started: impl Fn(&GangName) -> bool,
) -> Vec<Batch<'w>> {
    let mut refused: Vec<_> = refused.collect();
    refused.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let mut gangs: HashSet<&GangName> = HashSet::new();
    let batch = |(uid, pod): (&'w PodUid, &'w PendingPod)| match &pod.gang {
        Some(gang) if !is_started(gang) => gangs.insert(gang).then(|| {
            let mut members: Batch<'w> = all
                .iter()
                .filter(|(_, other)| other.gang.as_ref() == Some(gang))
                .map(|(uid, one)| (uid, &**one))
                .collect();
            members.sort_by_key(|(uid, _)| *uid);
            members
        }),
        _ => Some(vec![(uid, pod)]),
    };
    refused.into_iter().filter_map(batch).collect()
}

/// The nodes where pods of a shape do not fit. A shape counts separately in a namespace with
/// quotas, in one whose quota was raised, and for pods that filter refused.
type FullNodes<'w> = HashMap<(Option<&'w str>, bool, Cow<'w, Demand>), HashSet<usize>>;

/// Those of `batches` that fit together where capacity was freed, each pod with its placement. A gang
/// may use capacity that was free before, too.
fn fit_together<'w>(
    batches: Vec<Batch<'w>>,
    mut capacity: FreeCapacity<'w>,
) -> Vec<(&'w PodUid, Claim)> {
    let all: Vec<usize> = (0..capacity.cluster.slots()).collect();
    // Nodes that differ from the cluster's.
    let mut changed: HashMap<usize, NodeState> = HashMap::new();
    for claim in capacity.claims {
        place(&mut changed, capacity.cluster, claim);
        if let Some(headroom) = capacity.headrooms.get_mut(claim.namespace.as_str()) {
            headroom.take(claim.fit.amount());
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
        if let Some(claim) = capacity.place(pod, slots, &mut changed, &mut full) {
            placed.push((uid, claim));
        }
    }
    placed
}

/// Adds a claim to its node in `changed`, the nodes that differ from the cluster's.
fn place(changed: &mut HashMap<usize, NodeState>, cluster: &Cluster, claim: &Claim) {
    if let Some(node) = cluster.at(claim.slot) {
        let state = changed.entry(claim.slot);
        let state = state.or_insert_with(|| (**node).clone());
        *state = claim.on(state);
    }
}

/// The claims of all members, or of none.
fn place_gang<'w>(
    members: &[(&'w PodUid, &'w PendingPod)],
    all: &[usize],
    capacity: &mut FreeCapacity<'w>,
    changed: &mut HashMap<usize, NodeState>,
) -> Vec<(&'w PodUid, Claim)> {
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
        let Some(claim) = capacity.place(pod, all, changed, &mut full) else {
            (*changed, capacity.headrooms) = before;
            return Vec::new();
        };
        placed.push((*uid, claim));
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
    ) -> Option<Claim> {
        let namespace = pod.pod.namespace.as_str();
        let quota_raised = self.freed.namespaces.contains(namespace);
        let mut headroom = self.headrooms.get_mut(namespace);
        let separate = (quota_raised || headroom.is_some()).then_some(namespace);
        let shape = decide::shape(&pod.demand, self.cluster);
        let full = full.entry((separate, pod.refused, shape)).or_default();
        if full.len() == slots.len() {
            return None;
        }
        let found = slots.iter().find_map(|&slot| {
            if full.contains(&slot) {
                return None;
            }
            let (name, unchanged) = self.cluster.named(slot)?;
            let state = changed.get(&slot).unwrap_or(unchanged);
            // Filter was offered these nodes; what kube-scheduler refused may have been for lack
            // of CPU or memory.
            let offered = if pod.refused {
                pod.offered.contains(slot)
            } else {
                state.host.free().covers(pod.demand.host)
                    && self.freed.may_select(pod, slot, name)
                    && pod.tolerates(&state.taints)
            };
            if !offered {
                return None;
            }
            let fit = fit::fit(state, &pod.demand, self.policies).ok();
            let fit = fit.filter(|fit| {
                let headroom = headroom.as_ref();
                headroom.is_none_or(|left| left.allows(fit.amount()))
            });
            if fit.is_none() {
                full.insert(slot);
            }
            fit.map(|fit| Claim {
                slot,
                fit,
                replicas: pod.demand.replicas(),
                namespace: namespace.into(),
            })
        });
        if let Some(claim) = &found {
            place(changed, self.cluster, claim);
            if let Some(headroom) = &mut headroom {
                headroom.take(claim.fit.amount());
            }
        }
        found
    }
}

#[cfg(test)]
#[path = "requeue_tests.rs"]
mod tests;

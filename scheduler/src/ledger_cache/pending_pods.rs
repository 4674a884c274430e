//! Pending pods that request a share, and when a refused one is checked again: after a capacity
//! event, unless another pod claims that capacity.
//!
//! The pod watch shows them, or filter, where kube-scheduler's watch is ahead of ours.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::cluster::NodeSet;
use aliquot_core::decide::PendingPlacement;
use aliquot_core::preemption::record::{PREEMPTION, PlanState, PreemptionRecord};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::{Cluster, Demand, Namespace, NodeName, NodeState, PodUid};
use aliquot_k8s::disruption::{self, Labels};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use aliquot_k8s::selection::NodeSelection;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::gangs::GangName;

/// The pending pods, the claims of some of them, and the capacity events since the refused ones
/// were last checked.
#[derive(Debug, Default)]
pub struct PendingPods {
    pub(crate) pods: Mutex<HashMap<PodUid, PendingPod>>,
    pub(crate) claims: Mutex<Claims>,
    events: Mutex<CapacityEvents>,
    event_added: Notify,
}

impl PendingPods {
    /// The pod as the watch last showed it.
    pub fn get(&self, pod: &PodUid) -> Option<PendingPod> {
        self.pods.lock().get(pod).cloned()
    }

    /// How many there are, and how many of these filter refused.
    pub fn counts(&self) -> (usize, usize) {
        let all = self.pods.lock();
        (all.len(), all.values().filter(|w| w.refused).count())
    }

    /// Records that filter refused `pod` on the nodes in `waiting.offered`.
    pub(super) fn refuse(&self, pod: &PodUid, waiting: PendingPod) {
        let mut all = self.pods.lock();
        let before = all.get(pod).and_then(|known| known.refusals.as_ref());
        let refusals = waiting.refusals.clone().map(|one| one.after(before));
        let offered = waiting.offered.clone();
        let entry = all.entry(pod.clone()).or_insert(waiting);
        entry.refused = true;
        entry.offered = offered;
        entry.refusals = refusals;
    }

    /// What all other pods claim.
    pub fn claims_of_others(&self, pod: &PodUid) -> Vec<PendingPlacement> {
        self.claims.lock().others(pod, Instant::now())
    }

    /// How many capacity events there were.
    pub fn event_count(&self) -> u64 {
        self.events.lock().count
    }

    /// Adds a capacity event.
    pub(crate) fn add_event(&self, event: CapacityEvent) {
        self.events.lock().add(event);
        self.event_added.notify_one();
    }

    /// Repeats the events after the first `count`.
    pub(super) fn replay_events_since(&self, count: u64) {
        if self.events.lock().replay_since(count) {
            self.event_added.notify_one();
        }
    }

    /// Returns after a capacity event, when a node is due to be checked again, or with the claims
    /// that have expired.
    pub(super) async fn changed(&self) -> Vec<Claim> {
        let expiry = self.claims.lock().next_expiry();
        let recheck = self.events.lock().next_recheck();
        let due = async {
            match expiry.into_iter().chain(recheck).min() {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.event_added.notified() => Vec::new(),
            () = due => {
                let now = Instant::now();
                self.events.lock().mark_due(now);
                self.claims.lock().expire(now)
            }
        }
    }

    /// Takes where pods have to be checked again; `snapshot` takes the nodes with all of it. Both
    /// under one lock: an event between the two would be taken without being in the nodes.
    pub(crate) fn take_freed(
        &self,
        snapshot: impl FnOnce() -> Cluster,
    ) -> (Cluster, FreedCapacity) {
        let mut events = self.events.lock();
        let cluster = snapshot();
        let freed = events.take(cluster.slots());
        (cluster, freed)
    }
}

/// A pod that requests a share and is not bound.
#[derive(Clone, Debug)]
pub struct PendingPod {
    /// The pod.
    pub pod: PodRef,
    /// What it requests.
    pub demand: Demand,
    /// Its annotation has the amounts of its request.
    pub annotated: bool,
    /// `spec.priority`.
    pub priority: i32,
    /// The gang that it is a member of.
    pub gang: Option<GangName>,
    /// Bytes of its annotations, keys and values.
    pub annotation_bytes: usize,
    /// Filter refused it and it has not been requeued since.
    pub refused: bool,
    /// The watch or a list has shown it, so that a list without it tells of its deletion. Filter may
    /// know a pod earlier.
    pub(crate) listed: bool,
    /// The nodes of the last filter call: the others have a taint, a label or too little CPU. All,
    /// before the first call.
    pub offered: NodeSet,
    /// The nodes that its spec selects; all, without one.
    pub(crate) selection: Option<Box<NodeSelection>>,
    /// Its refusals, if filter refused it.
    pub refusals: Option<RefusalRecord>,
    /// What its spec and status say about preemption.
    pub preemption: PreemptionStatus,
}

/// The refusals of one pod that this replica remembers.
#[derive(Clone, Debug)]
pub struct RefusalRecord {
    /// How many.
    pub times: u32,
    /// The first one.
    pub first: Instant,
    /// The last one.
    pub last: Instant,
    /// The text of the last one.
    pub text: String,
}

impl RefusalRecord {
    /// One refusal.
    pub fn new(text: String, now: Instant) -> Self {
        Self {
            times: 1,
            first: now,
            last: now,
            text,
        }
    }

    /// This refusal added to the previous ones.
    pub fn after(self, before: Option<&Self>) -> Self {
        Self {
            times: before.map_or(0, |before| before.times) + self.times,
            first: before.map_or(self.first, |before| before.first),
            ..self
        }
    }
}

/// What a pending pod's spec and status say about preemption.
#[derive(Clone, Debug, Default)]
pub struct PreemptionStatus {
    /// `preemptionPolicy` forbids it.
    pub never: bool,
    /// kube-scheduler reports it as unschedulable.
    pub unschedulable: bool,
    /// kube-scheduler preempts for it on this node (`nominatedNodeName`).
    pub nominated: Option<NodeName>,
    /// The last node that kube-scheduler nominated.
    pub nominated_last: Option<NodeName>,
    /// The plan in its annotation.
    pub plan: Option<RecordedPlan>,
}

/// The annotation `aliquot.dev/preemption` of a pending pod.
#[derive(Clone, Debug)]
pub enum RecordedPlan {
    /// An open plan.
    Open(Arc<PreemptionRecord>),
    /// A plan that was given up: there may be another after a pause.
    GivenUp(Arc<PreemptionRecord>),
    /// There will be no other.
    Unreadable,
}

impl PreemptionStatus {
    /// Which of the pod's plans the next one would be; `None` where it may not get one at this time,
    /// in seconds since 1970.
    pub(crate) fn next_attempt(&self, now: i64) -> Option<u32> {
        match &self.plan {
            None => Some(1),
            Some(RecordedPlan::GivenUp(last)) => {
                let is_over = u64::try_from(now).is_ok_and(|now| last.until <= now);
                is_over.then(|| last.attempt.saturating_add(1))
            }
            Some(RecordedPlan::Open(_) | RecordedPlan::Unreadable) => None,
        }
    }

    /// Whether this plan is open on the pod.
    pub(crate) fn shows(&self, plan: &PreemptionRecord) -> bool {
        matches!(&self.plan, Some(RecordedPlan::Open(shown)) if **shown == *plan)
    }
}

fn preemption(pod: &Pod) -> PreemptionStatus {
    let nominated: Option<NodeName> = disruption::nominated(pod).map(Into::into);
    let plan = pod::annotation(pod, PREEMPTION).map(|text| match PreemptionRecord::decode(text) {
        Ok(record) if record.state == PlanState::Open => RecordedPlan::Open(Arc::new(record)),
        Ok(record) => RecordedPlan::GivenUp(Arc::new(record)),
        Err(error) => {
            tracing::error!(pod = ?pod.metadata.name, %error, "invalid annotation aliquot.dev/preemption; the pod does not preempt again");
            RecordedPlan::Unreadable
        }
    });
    PreemptionStatus {
        never: !disruption::may_preempt(pod),
        unschedulable: disruption::unschedulable(pod),
        nominated_last: nominated.clone(),
        nominated,
        plan,
    }
}

impl PendingPod {
    /// Whether kube-scheduler reports it as unschedulable, for a reason that filter did not give,
    /// or after it was requeued.
    pub(crate) fn is_refused_by_kube_scheduler(&self) -> bool {
        !self.refused && self.preemption.unschedulable
    }

    /// Reads a pod with this demand.
    pub fn read(pod: &Pod, demand: Demand, refused: bool) -> Self {
        let annotations = pod.metadata.annotations.iter().flatten();
        Self {
            pod: pod::reference(pod),
            demand,
            annotated: pod::annotation(pod, REQUEST).is_some(),
            priority: disruption::priority(pod),
            gang: GangName::of(pod),
            annotation_bytes: annotations
                .map(|(key, value)| key.len() + value.len())
                .sum(),
            refused,
            listed: false,
            offered: NodeSet::default(),
            selection: NodeSelection::of(pod).map(Box::new),
            refusals: None,
            preemption: preemption(pod),
        }
    }
}

/// How long a claim lasts at most.
pub const CLAIM_LIFETIME: Duration = Duration::from_secs(2);

/// The capacity that a pod is about to take: kube-scheduler was given the node as its best, or the
/// pod was requeued for it. A claim makes no node infeasible; it lowers the node's score for other
/// pods and keeps other refused pods from being requeued for the same capacity.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The node and its devices.
    pub placement: PendingPlacement,
    /// The namespace whose quotas it uses.
    pub namespace: Namespace,
    /// kube-scheduler has offered the node for the pod. Otherwise the pod may have to go elsewhere,
    /// and the claim lowers no score.
    pub offered: bool,
}

/// One claim per pod.
#[derive(Debug, Default)]
pub struct Claims(HashMap<PodUid, (Claim, Instant)>);

impl Claims {
    /// Replaces the pod's claim. A different previous claim is returned: its capacity is free for
    /// others.
    #[must_use = "the capacity of the previous claim is free for other pods"]
    pub fn put(&mut self, pod: &PodUid, claim: Claim, now: Instant) -> Option<Claim> {
        let placement = claim.placement.clone();
        let old = self.0.insert(pod.clone(), (claim, now + CLAIM_LIFETIME));
        old.map(|(old, _)| old)
            .filter(|old| old.placement != placement)
    }

    /// Ends the pod's claim.
    pub fn end(&mut self, pod: &PodUid) -> Option<Claim> {
        self.0.remove(pod).map(|(claim, _)| claim)
    }

    /// The claims of all other pods that have not expired.
    pub fn others(&self, pod: &PodUid, now: Instant) -> Vec<PendingPlacement> {
        let others = self.0.iter();
        let others = others.filter(|(uid, (claim, _))| *uid != pod && claim.offered);
        let alive = others.filter(|(_, (_, until))| *until > now);
        alive
            .map(|(_, (claim, _))| claim.placement.clone())
            .collect()
    }

    /// Removes the expired claims.
    pub fn expire(&mut self, now: Instant) -> Vec<Claim> {
        let expired = self.0.extract_if(|_, (_, until)| *until <= now);
        expired.map(|(_, (claim, _))| claim).collect()
    }

    /// When the next claim expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.0.values().map(|(_, until)| *until).min()
    }

    /// Whether the pod has a claim that has not expired.
    pub fn has(&self, pod: &PodUid, now: Instant) -> bool {
        self.0.get(pod).is_some_and(|(_, until)| *until > now)
    }

    /// Every claim that has not expired.
    pub fn all(&self, now: Instant) -> Vec<Claim> {
        let alive = self.0.values().filter(|(_, until)| *until > now);
        alive.map(|(claim, _)| claim.clone()).collect()
    }
}

/// Adds a placement to its node in `changed`, the nodes that differ from the cluster's.
pub(crate) fn place(
    changed: &mut HashMap<usize, NodeState>,
    cluster: &Cluster,
    placement: &PendingPlacement,
) {
    if let Some(node) = cluster.at(placement.slot) {
        let state = changed.entry(placement.slot);
        let state = state.or_insert_with(|| (**node).clone());
        *state = placement.on(state);
    }
}

/// Events that are remembered one by one; a call that is older counts as having missed one
/// everywhere.
const REMEMBERED: usize = 1024;

/// When a node that is new or grew is checked again: kube-scheduler may see the node later than we
/// do, or report only then that it refused a pod.
const RECHECKS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(6),
];

/// A change that may let a pending pod fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapacityEvent {
    /// The node in this slot is new, or publishes something else than before; its labels.
    Node(usize, Arc<Labels>),
    /// The node in this slot has more capacity, for the pods of all namespaces.
    Slot(usize),
    /// The quotas of this namespace leave more, on all nodes.
    Namespace(Namespace),
    /// Anything may have changed.
    Everywhere,
}

/// Where refused pods have to be checked again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FreedCapacity {
    /// On these nodes, all pods.
    pub slots: Vec<usize>,
    /// Those of them that are new or changed, in order.
    pub changed: Vec<usize>,
    /// Their labels, where these are known.
    pub labels: BTreeMap<usize, Arc<Labels>>,
    /// On all nodes, the pods of these namespaces.
    pub namespaces: BTreeSet<Namespace>,
}

impl FreedCapacity {
    /// Nothing has to be checked.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.namespaces.is_empty()
    }

    /// Whether the pod selects this node, as far as the node's labels are known.
    pub(crate) fn may_select(&self, pod: &PendingPod, slot: usize, name: &NodeName) -> bool {
        match (&pod.selection, self.labels.get(&slot)) {
            (Some(selection), Some(labels)) => selection.selects(name.as_str(), labels),
            _ => true,
        }
    }
}

/// Capacity events: since refused pods were last checked, and since a filter call that is still
/// being answered took its snapshot.
#[derive(Debug, Default)]
struct CapacityEvents {
    count: u64,
    recent: VecDeque<CapacityEvent>,
    everywhere: bool,
    slots: BTreeSet<usize>,
    changed: BTreeSet<usize>,
    namespaces: BTreeSet<Namespace>,
    /// The nodes that changed a short time ago.
    rechecks: BTreeMap<usize, Recheck>,
}

/// A node that changed, and is checked again.
#[derive(Debug)]
struct Recheck {
    since: Instant,
    /// How often it was checked again.
    done: usize,
    labels: Arc<Labels>,
}

impl Recheck {
    /// When the next check is due.
    fn due(&self) -> Option<Instant> {
        Some(self.since + *RECHECKS.get(self.done)?)
    }
}

impl CapacityEvents {
    /// Adds an event.
    fn add(&mut self, event: CapacityEvent) {
        self.count += 1;
        if let CapacityEvent::Node(slot, labels) = &event {
            let recheck = Recheck {
                since: Instant::now(),
                done: 0,
                labels: labels.clone(),
            };
            self.rechecks.insert(*slot, recheck);
        }
        self.recent.push_back(event.clone());
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        self.mark(event);
    }

    /// When the next node is due to be checked again.
    fn next_recheck(&self) -> Option<Instant> {
        self.rechecks.values().filter_map(Recheck::due).min()
    }

    /// Marks the nodes that are due to be checked again.
    fn mark_due(&mut self, now: Instant) {
        for (slot, recheck) in &mut self.rechecks {
            if recheck.due().is_some_and(|due| due <= now) {
                recheck.done += 1;
                self.slots.insert(*slot);
                self.changed.insert(*slot);
            }
        }
    }

    /// Marks everything after the first `count` events to be checked again. `false` when there was
    /// none.
    fn replay_since(&mut self, count: u64) -> bool {
        let missed = usize::try_from(self.count - count).unwrap_or(usize::MAX);
        if missed > self.recent.len() {
            self.mark(CapacityEvent::Everywhere);
        } else {
            let first = self.recent.len() - missed;
            let missed: Vec<_> = self.recent.range(first..).cloned().collect();
            for event in missed {
                self.mark(event);
            }
        }
        missed > 0
    }

    /// Takes what has to be checked, among this many slots.
    fn take(&mut self, slot_count: usize) -> FreedCapacity {
        let slots = std::mem::take(&mut self.slots);
        let changed = std::mem::take(&mut self.changed);
        let namespaces = std::mem::take(&mut self.namespaces);
        let labels = |(slot, recheck): (&usize, &Recheck)| (*slot, recheck.labels.clone());
        let labels = self.rechecks.iter().map(labels).collect();
        self.rechecks.retain(|_, recheck| recheck.due().is_some());
        if std::mem::take(&mut self.everywhere) {
            return FreedCapacity {
                slots: (0..slot_count).collect(),
                changed: (0..slot_count).collect(),
                labels,
                namespaces: BTreeSet::new(),
            };
        }
        FreedCapacity {
            slots: slots.into_iter().collect(),
            changed: changed.into_iter().collect(),
            labels,
            namespaces,
        }
    }

    fn mark(&mut self, event: CapacityEvent) {
        match event {
            CapacityEvent::Node(slot, _) => {
                self.slots.insert(slot);
                self.changed.insert(slot);
            }
            CapacityEvent::Slot(slot) => drop(self.slots.insert(slot)),
            CapacityEvent::Namespace(namespace) => drop(self.namespaces.insert(namespace)),
            CapacityEvent::Everywhere => self.everywhere = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_only_events_that_a_call_missed() {
        let mut events = CapacityEvents::default();
        events.add(CapacityEvent::Slot(3));
        let count = events.count;
        assert_eq!(events.take(9).slots, [3]);
        assert!(!events.replay_since(count));
        assert_eq!(events.take(9).slots, [0; 0]);
        events.add(CapacityEvent::Slot(5));
        events.add(CapacityEvent::Slot(5));
        assert_eq!(events.take(9).slots, [5]);
        assert!(events.replay_since(count));
        assert_eq!(events.take(9).slots, [5]);
        events.add(CapacityEvent::Everywhere);
        assert_eq!(events.take(3).slots, [0, 1, 2]);
        for _ in 0..2 * REMEMBERED {
            events.add(CapacityEvent::Slot(1));
        }
        assert_eq!(events.take(3).slots, [1]);
        assert!(events.replay_since(count));
        assert_eq!(events.take(3).slots, [0, 1, 2]);
        events.add(CapacityEvent::Namespace("team".into()));
        let freed = events.take(3);
        assert_eq!(freed.slots, [0; 0]);
        assert_eq!(freed.namespaces, ["team".into()].into());
        assert!(events.take(3).is_empty());
    }

    #[test]
    fn checks_a_changed_node_again_for_some_seconds() {
        let mut events = CapacityEvents::default();
        events.add(CapacityEvent::Node(2, Arc::default()));
        events.add(CapacityEvent::Slot(1));
        let freed = events.take(3);
        assert_eq!((freed.slots, freed.changed), (vec![1, 2], vec![2]));
        for _ in RECHECKS {
            let due = events.next_recheck().unwrap();
            events.mark_due(due - Duration::from_millis(1));
            assert!(events.take(3).is_empty());
            events.mark_due(due);
            assert_eq!(events.take(3).changed, [2]);
        }
        assert_eq!(events.next_recheck(), None);
    }
}

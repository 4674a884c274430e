//! Pending pods that request a share, and when a refused one is checked again: after a capacity
//! event, unless another pod claims that capacity.
//!
//! The pod watch shows them, or filter, where kube-scheduler's watch is ahead of ours.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::cluster::NodeSet;
use aliquot_core::fit::Fit;
use aliquot_core::preemption::record::{PREEMPTION, PlanState, PreemptionRecord};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::{Demand, Namespace, NodeName, NodeState, Replicas};
use aliquot_k8s::disruption::{self, Labels};
use aliquot_k8s::event::PodRef;
use aliquot_k8s::selection::NodeSelection;
use aliquot_k8s::view::PodView;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::gangs::GangName;

/// A pod that requests a share and is not bound.
#[derive(Clone, Debug)]
pub struct PendingPod {
    pub pod: PodRef,
    pub demand: Demand,
    /// Its annotation has the amounts of its request.
    pub annotated: bool,
    pub created: Option<Time>,
    /// `spec.priority`.
    pub priority: i32,
    pub gang: Option<GangName>,
    /// Bytes of its annotations, keys and values.
    pub annotation_bytes: usize,
    /// Filter refused it and it has not been requeued since.
    pub refused: bool,
    /// What it was requeued for, and until when that is kept for it.
    pub(crate) claimed: Option<(Claim, Instant)>,
    /// The watch or a list has shown it, so a list without it means that it was deleted. Filter may
    /// know a pod earlier.
    pub(crate) listed: bool,
    /// The nodes of the last filter call: the others have a taint, a label or too little CPU. All,
    /// before the first call.
    pub offered: NodeSet,
    /// The nodes that its spec allows; `None` if its text about them is too long to keep.
    pub(crate) selection: Option<Box<NodeSelection>>,
    pub refusals: Option<RefusalRecord>,
    /// What its spec and status say about preemption.
    pub preemption: PreemptionStatus,
}

/// The refusals of one pod that this replica remembers.
#[derive(Clone, Debug)]
pub struct RefusalRecord {
    pub times: u32,
    pub first: Instant,
    pub last: Instant,
    pub text: String,
}

impl RefusalRecord {
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
    pub plan: Option<RecordedPlan>,
}

/// The annotation `aliquot.dev/preemption` of a pending pod.
#[derive(Clone, Debug)]
pub enum RecordedPlan {
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

fn preemption(pod: &PodView) -> PreemptionStatus {
    let nominated: Option<NodeName> = disruption::nominated(pod).map(Into::into);
    let plan = pod.annotation(PREEMPTION).map(|text| match PreemptionRecord::decode(text) {
        Ok(record) if record.state == PlanState::Open => RecordedPlan::Open(Arc::new(record)),
        Ok(record) => RecordedPlan::GivenUp(Arc::new(record)),
        Err(error) => {
            tracing::error!(pod = pod.name(), %error, "invalid annotation aliquot.dev/preemption; the pod does not preempt again");
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

    /// Whether a node that is new or changed may be nominated for it now: where nothing says that the
    /// node is for it, no more often than kube-scheduler retries it anyway.
    pub(crate) fn may_be_nominated(&self, now: Instant) -> bool {
        let claimed = self.claimed.as_ref();
        let paused = claimed.is_none_or(|(_, until)| *until + KUBE_SCHEDULER_RETRY <= now);
        self.is_refused_by_kube_scheduler() && (self.selection.is_some() || paused)
    }

    /// Whether it tolerates these taints, as far as its tolerations are known.
    pub(crate) fn tolerates(&self, taints: &[String]) -> bool {
        let selection = self.selection.as_ref();
        selection.is_none_or(|selection| selection.tolerates(taints))
    }

    pub fn read(pod: &PodView, demand: Demand, refused: bool) -> Self {
        let annotations = pod.annotations();
        Self {
            pod: pod.reference(),
            demand,
            annotated: pod.annotation(REQUEST).is_some(),
            created: pod.created().cloned(),
            priority: disruption::priority(pod),
            gang: GangName::read(pod),
            annotation_bytes: annotations
                .map(|(key, value)| key.len() + value.len())
                .sum(),
            refused,
            claimed: None,
            listed: false,
            offered: NodeSet::default(),
            selection: NodeSelection::read_short(pod).map(Box::new),
            refusals: None,
            preemption: preemption(pod),
        }
    }
}

/// How long kube-scheduler leaves an unschedulable pod alone at most.
const KUBE_SCHEDULER_RETRY: Duration = Duration::from_mins(5);

/// How long a claim lasts at most.
pub const CLAIM_LIFETIME: Duration = Duration::from_secs(2);

/// The capacity that a pod was requeued for. Until filter decides on the pod, no other refused pod is
/// requeued for it; whether the pod took it is seen when the claim is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub slot: usize,
    pub fit: Fit,
    /// The kubelet's replicas that it would use.
    pub replicas: Replicas,
    /// The namespace whose quotas it would use.
    pub namespace: Namespace,
}

impl Claim {
    pub fn on(&self, node: &NodeState) -> NodeState {
        node.with(&self.fit.uses, &self.fit.instances, &self.replicas)
    }
}

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
    /// Anything may have changed, but no node's publication.
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

/// The capacity events since refused pods were last checked.
#[derive(Debug, Default)]
pub(crate) struct CapacityEvents {
    pub(super) added: Arc<Notify>,
    everywhere: bool,
    slots: BTreeSet<usize>,
    changed: BTreeSet<usize>,
    namespaces: BTreeSet<Namespace>,
    /// The nodes that changed a short time ago.
    rechecks: BTreeMap<usize, Recheck>,
    /// When claims are over, the next one first.
    later: VecDeque<(Instant, CapacityEvent)>,
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
    pub(crate) fn add(&mut self, event: CapacityEvent) {
        match event {
            CapacityEvent::Node(slot, labels) => {
                let (since, done) = (Instant::now(), 0);
                let recheck = Recheck {
                    since,
                    done,
                    labels,
                };
                self.rechecks.insert(slot, recheck);
                self.slots.insert(slot);
                self.changed.insert(slot);
            }
            CapacityEvent::Slot(slot) => drop(self.slots.insert(slot)),
            CapacityEvent::Namespace(namespace) => drop(self.namespaces.insert(namespace)),
            CapacityEvent::Everywhere => self.everywhere = true,
        }
        self.added.notify_one();
    }

    /// Adds an event when a claim from now is over.
    pub(crate) fn add_after_claim(&mut self, now: Instant, event: CapacityEvent) {
        self.later.push_back((now + CLAIM_LIFETIME, event));
    }

    /// When the next claim is over, or the next node is due to be checked again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let rechecks = self.rechecks.values().filter_map(Recheck::due);
        let later = self.later.front().map(|(at, _)| *at);
        rechecks.chain(later).min()
    }

    /// Marks what is due to be checked again.
    pub(crate) fn mark_due(&mut self, now: Instant) {
        while self.later.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, event)) = self.later.pop_front()
        {
            self.add(event);
        }
        for (slot, recheck) in &mut self.rechecks {
            if recheck.due().is_some_and(|due| due <= now) {
                recheck.done += 1;
                self.slots.insert(*slot);
                self.changed.insert(*slot);
            }
        }
    }

    /// Takes what has to be checked, among this many slots.
    pub(crate) fn take(&mut self, slot_count: usize) -> FreedCapacity {
        let slots = std::mem::take(&mut self.slots);
        let changed = std::mem::take(&mut self.changed);
        let namespaces = std::mem::take(&mut self.namespaces);
        let labels = |(slot, recheck): (&usize, &Recheck)| (*slot, recheck.labels.clone());
        let labels = self.rechecks.iter().map(labels).collect();
        self.rechecks.retain(|_, recheck| recheck.due().is_some());
        let (slots, namespaces) = if std::mem::take(&mut self.everywhere) {
            ((0..slot_count).collect(), BTreeSet::new())
        } else {
            (slots.into_iter().collect(), namespaces)
        };
        FreedCapacity {
            slots,
            changed: changed.into_iter().collect(),
            labels,
            namespaces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_each_event_once() {
        let mut events = CapacityEvents::default();
        events.add(CapacityEvent::Slot(5));
        events.add(CapacityEvent::Slot(5));
        assert_eq!(events.take(9).slots, [5]);
        assert!(events.take(9).is_empty());
        events.add(CapacityEvent::Everywhere);
        let freed = events.take(3);
        assert_eq!((freed.slots, freed.changed), (vec![0, 1, 2], vec![]));
        events.add(CapacityEvent::Namespace("team".into()));
        let freed = events.take(3);
        assert_eq!(freed.slots, [0; 0]);
        assert_eq!(freed.namespaces, ["team".into()].into());
    }

    #[test]
    fn checks_a_changed_node_again_for_some_seconds() {
        let mut events = CapacityEvents::default();
        events.add(CapacityEvent::Node(2, Arc::default()));
        events.add(CapacityEvent::Slot(1));
        let freed = events.take(3);
        assert_eq!((freed.slots, freed.changed), (vec![1, 2], vec![2]));
        for _ in RECHECKS {
            let due = events.next_due().unwrap();
            events.mark_due(due - Duration::from_millis(1));
            assert!(events.take(3).is_empty());
            events.mark_due(due);
            assert_eq!(events.take(3).changed, [2]);
        }
        assert_eq!(events.next_due(), None);
    }
}

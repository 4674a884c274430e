//! Pods that wait for their shares, and which of them fit when room appears.
//!
//! Fed by: the pod watch, and filter where kube-scheduler's watch was ahead.
//! Must not: read a clock, or wake; [`crate::nudge`] does.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use aliquot_core::cluster::NodeSet;
use aliquot_core::decide::SoftNote;
use aliquot_core::fit::{self, Policies};
use aliquot_core::preemption::record::{PREEMPTION, Record, State};
use aliquot_core::quota::{Amount, Headroom};
use aliquot_core::{Cluster, Demand, NodeName, NodeState, PodUid};
use aliquot_k8s::disruption;
use aliquot_k8s::event::PodRef;
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use crate::claims::Claim;
use crate::grown::Places;

/// A pod that asks for a share and is not bound.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Which pod.
    pub pod: PodRef,
    /// What it asks for.
    pub demand: Demand,
    /// `spec.priority`.
    pub priority: i32,
    /// Bytes of its annotations, keys and values.
    pub annotation_bytes: usize,
    /// Filter refused it and nothing has woken it since.
    pub refused: bool,
    /// The nodes that filter was last asked for: the others have a taint, a
    /// label or too little CPU against it. All, before it was asked.
    pub offered: NodeSet,
    /// What filter told it, if it refused it.
    pub told: Option<Told>,
    /// What it says of preemption.
    pub preemption: Preemption,
}

/// The refusals of one pod, as far as this replica remembers.
#[derive(Clone, Debug)]
pub struct Told {
    /// How many.
    pub times: u32,
    /// The first one.
    pub first: Instant,
    /// The last one.
    pub last: Instant,
    /// What that said.
    pub text: String,
}

impl Told {
    /// One refusal.
    pub fn once(text: String, now: Instant) -> Self {
        Self {
            times: 1,
            first: now,
            last: now,
            text,
        }
    }

    /// This refusal, after those before it.
    pub fn after(self, before: Option<&Self>) -> Self {
        Self {
            times: before.map_or(0, |before| before.times) + self.times,
            first: before.map_or(self.first, |before| before.first),
            ..self
        }
    }
}

/// What a waiting pod says of preemption.
#[derive(Clone, Debug, Default)]
pub struct Preemption {
    /// `preemptionPolicy` forbids it.
    pub never: bool,
    /// kube-scheduler has said that no node can take it.
    pub unschedulable: bool,
    /// kube-scheduler makes room for it here (`nominatedNodeName`).
    pub nominated: Option<NodeName>,
    /// The last node of which it said so.
    pub nominated_last: Option<NodeName>,
    /// The plan that its annotation carries.
    pub plan: Option<Noted>,
}

/// The annotation `aliquot.dev/preemption` of a waiting pod.
#[derive(Clone, Debug)]
pub enum Noted {
    /// A plan that goes on.
    Open(Arc<Record>),
    /// One that was given up, or cannot be read: there will be no other.
    Closed,
}

fn preemption(pod: &Pod) -> Preemption {
    let nominated: Option<NodeName> = disruption::nominated(pod).map(Into::into);
    let plan = pod::annotation(pod, PREEMPTION).map(|text| match Record::decode(text) {
        Ok(record) if record.state == State::Open => Noted::Open(Arc::new(record)),
        Ok(_) => Noted::Closed,
        Err(error) => {
            tracing::error!(pod = ?pod.metadata.name, %error, "its preemption cannot be read; it makes no other");
            Noted::Closed
        }
    });
    Preemption {
        never: !disruption::may_preempt(pod),
        unschedulable: disruption::unschedulable(pod),
        nominated_last: nominated.clone(),
        nominated,
        plan,
    }
}

/// A pod's entry among those that wait.
pub fn waiting(pod: &Pod, demand: Demand, refused: bool) -> Waiting {
    let annotations = pod.metadata.annotations.iter().flatten();
    Waiting {
        pod: reference(pod),
        demand,
        priority: disruption::priority(pod),
        annotation_bytes: annotations
            .map(|(key, value)| key.len() + value.len())
            .sum(),
        refused,
        offered: NodeSet::default(),
        told: None,
        preemption: preemption(pod),
    }
}

/// The pod as events name it.
pub fn reference(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

/// The nodes, and what of them and of the namespaces' quotas is to be given away.
#[derive(Debug)]
pub struct Room<'a> {
    /// The nodes.
    pub cluster: &'a Cluster,
    /// Where something became free.
    pub places: &'a Places,
    /// What others are about to take.
    pub claimed: &'a [Claim],
    /// What the quotas leave, by namespace, without what is claimed.
    pub headrooms: HashMap<&'a str, Headroom>,
    /// For pods that choose none.
    pub policies: &'a Policies,
}

/// Those of `refused` that fit together where something became free, best claim
/// first (priority, then uid), each with the place it was given.
pub fn fit_together<'w>(
    refused: impl IntoIterator<Item = (&'w PodUid, &'w Waiting)>,
    mut room: Room<'_>,
) -> Vec<(&'w PodUid, SoftNote)> {
    let mut refused: Vec<_> = refused.into_iter().collect();
    refused.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let all: Vec<usize> = (0..room.cluster.slots()).collect();
    // Nodes that are not as the cluster has them.
    let mut changed: HashMap<usize, NodeState> = HashMap::new();
    for claim in room.claimed {
        let note = &claim.note;
        add(&mut changed, room.cluster, note);
        if let Some(headroom) = room.headrooms.get_mut(claim.namespace.as_str()) {
            headroom.take(Amount::of(note.uses.iter().map(|(_, used)| used)));
        }
    }
    // Room only shrinks here: where a shape did not fit, it will not. Within a
    // namespace that has quotas, or that was enlarged, on its own account.
    let mut full: HashMap<(Option<&str>, Cow<'_, Demand>), HashSet<usize>> = HashMap::new();
    let mut placed = Vec::new();
    for (uid, pod) in refused {
        let namespace = pod.pod.namespace.as_str();
        let enlarged = room.places.namespaces.contains(namespace);
        let slots = if enlarged { &all } else { &room.places.slots };
        let headroom = room.headrooms.get_mut(namespace);
        let apart = (enlarged || headroom.is_some()).then_some(namespace);
        let full = full
            .entry((apart, pod.demand.shape(room.cluster)))
            .or_default();
        if full.len() == slots.len() {
            continue;
        }
        let found = slots.iter().find_map(|&slot| {
            if !pod.offered.contains(slot) || full.contains(&slot) {
                return None;
            }
            let state = changed.get(&slot);
            let state = state.or_else(|| room.cluster.at(slot).map(AsRef::as_ref));
            let fit = fit::fit(state?, &pod.demand, room.policies).ok();
            let fit = fit.filter(|fit| {
                let amount = Amount::of(fit.uses.iter().map(|(_, used)| used));
                headroom.as_ref().is_none_or(|left| left.allows(amount))
            });
            if fit.is_none() {
                full.insert(slot);
            }
            fit.map(|fit| SoftNote::of(slot, fit, &pod.demand))
        });
        if let Some(note) = found {
            add(&mut changed, room.cluster, &note);
            if let Some(headroom) = headroom {
                headroom.take(Amount::of(note.uses.iter().map(|(_, used)| used)));
            }
            placed.push((uid, note));
        }
    }
    placed
}

fn add(changed: &mut HashMap<usize, NodeState>, cluster: &Cluster, note: &SoftNote) {
    if let Some(node) = cluster.at(note.slot) {
        let state = changed.entry(note.slot);
        let state = state.or_insert_with(|| (**node).clone());
        *state = note.on(state);
    }
}

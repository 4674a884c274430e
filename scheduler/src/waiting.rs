//! Pods that wait for their shares, and which of them fit when room appears.
//!
//! Fed by: the pod watch, and filter where kube-scheduler's watch was ahead.
//! Must not: read a clock, or wake; [`crate::nudge`] does.

use std::collections::{HashMap, HashSet};

use aliquot_core::cluster::NodeSet;
use aliquot_core::decide::SoftNote;
use aliquot_core::fit::{self, Policies};
use aliquot_core::{Cluster, Demand, NodeState, PodUid};
use aliquot_k8s::event::PodRef;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

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

/// A pod's entry among those that wait.
pub fn waiting(pod: &Pod, demand: Demand, refused: bool) -> Waiting {
    let annotations = pod.metadata.annotations.iter().flatten();
    Waiting {
        pod: reference(pod),
        demand,
        priority: pod
            .spec
            .as_ref()
            .and_then(|spec| spec.priority)
            .unwrap_or(0),
        annotation_bytes: annotations
            .map(|(key, value)| key.len() + value.len())
            .sum(),
        refused,
        offered: NodeSet::default(),
        told: None,
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

/// Those of `refused` that fit together on the nodes in `slots`, best claim
/// first (priority, then uid), each with the place it was given. What `claimed`
/// says is taken by others already.
pub fn fit_together<'w>(
    refused: impl IntoIterator<Item = (&'w PodUid, &'w Waiting)>,
    cluster: &Cluster,
    slots: &[usize],
    claimed: &[SoftNote],
    policies: &Policies,
) -> Vec<(&'w PodUid, SoftNote)> {
    let mut refused: Vec<_> = refused.into_iter().collect();
    refused.sort_by(|(a, x), (b, y)| y.priority.cmp(&x.priority).then_with(|| a.cmp(b)));
    let mut states: Vec<(usize, NodeState)> = Vec::with_capacity(slots.len());
    for &slot in slots {
        if let Some(node) = cluster.at(slot) {
            let notes = claimed.iter().filter(|note| note.slot == slot);
            let state = notes.fold((**node).clone(), |state, note| state.with(&note.uses));
            states.push((slot, state));
        }
    }
    // Room only shrinks here: where a shape did not fit, it will not.
    let mut full: HashMap<&Demand, HashSet<usize>> = HashMap::new();
    let mut placed = Vec::new();
    for (uid, pod) in refused {
        let full = full.entry(&pod.demand).or_default();
        for (slot, state) in &mut states {
            if !pod.offered.contains(*slot) || full.contains(slot) {
                continue;
            }
            let Ok(found) = fit::fit(state, &pod.demand, policies) else {
                full.insert(*slot);
                continue;
            };
            *state = state.with(&found.uses);
            let note = SoftNote {
                slot: *slot,
                uses: found.uses,
            };
            placed.push((uid, note));
            break;
        }
    }
    placed
}

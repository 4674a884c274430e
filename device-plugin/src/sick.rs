//! What follows from sick cards: which seats the kubelet keeps counting, who is told
//! what, who must leave, what the node's condition says (design 9, "GPU sick").
//!
//! Fed by: the driver's health, the table of XIDs, the kubelet's checkpoint, accepted
//! shares and the node's pods. Must not: read or write anything; it is all values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::{Gpu, Refused};
use aliquot_core::mig::published::Placed;
use aliquot_core::{GpuUuid, PodUid};
use aliquot_k8s::event::{Note, PodRef};
use aliquot_nvml as nvml;
use clap::ValueEnum;

use crate::accepted::Accepted;
use crate::checkpoint::Entry;
use crate::pod::{Phase, Pod};
use crate::units::Held;
use crate::xid::{Action, Actions, meaning};

/// What becomes of the pods on a card that is out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SickPods {
    /// They stay, and end or go on by themselves.
    #[default]
    Keep,
    /// They are evicted, within their disruption budgets.
    Evict,
    /// The same, and where a card needs that its node is drained, so are those on its other
    /// cards, and the node takes no pod any more.
    Drain,
}

/// A card that is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sick {
    /// The card.
    pub gpu: GpuUuid,
    /// Why, for people: `XID 79 (GPU has fallen off the bus)`.
    pub why: String,
    /// What it needs.
    pub action: Action,
}

/// All that the node shows because of sick cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sickness {
    /// The cards, by uuid.
    pub cards: Vec<Sick>,
    /// Pods that must leave.
    pub evict: Vec<Refused>,
    /// Why the whole node is drained.
    pub drained: Option<String>,
}

/// The card because of which the whole node is drained.
pub fn drained(cards: &[Sick], policy: SickPods) -> Option<&Sick> {
    let mut cards = cards.iter().filter(|_| policy == SickPods::Drain);
    cards.find(|sick| sick.action == Action::DrainNode)
}

/// The sick cards with the instances of each, and with all units of a node that is drained.
pub fn touched(cards: &[Sick], units: &[Gpu], policy: SickPods) -> Vec<Sick> {
    let mut all = cards.to_vec();
    let drained = drained(cards, policy);
    for unit in units {
        let part = unit.mig.as_ref().and_then(|mig| mig.part());
        let card = part.map_or(&unit.uuid, |part| &part.parent);
        if all.iter().any(|sick| sick.gpu == unit.uuid) {
            continue;
        }
        let gpu = unit.uuid.clone();
        if let Some(sick) = cards.iter().find(|sick| sick.gpu == *card) {
            all.push(Sick {
                gpu,
                ..sick.clone()
            });
        } else if let Some(sick) = drained {
            all.push(Sick {
                gpu,
                why: format!("its node is drained because of {}: {}", sick.gpu, sick.why),
                action: sick.action,
            });
        }
    }
    all
}

/// Why this card is out of service and what it needs; `None` when it is well.
/// A card that is lost needs what XID 79 needs.
pub fn diagnosis(card: &nvml::CardHealth, actions: &Actions) -> Option<Sick> {
    let (why, action) = match &card.health {
        nvml::Health::Ok => return None,
        nvml::Health::Lost(words) => (format!("lost: {words}"), Action::DrainNode),
        nvml::Health::RecoveryAsked(2) => {
            let why = "the driver asks for a restart of the node";
            (why.to_owned(), Action::DrainNode)
        }
        nvml::Health::RecoveryAsked(_) => {
            let why = "the driver asks for a reset of the GPU";
            (why.to_owned(), Action::ResetGpu)
        }
        nvml::Health::Xid(code) => (xid_text(*code), actions.of(*code)),
    };
    Some(Sick {
        gpu: card.uuid.as_str().into(),
        why,
        action,
    })
}

/// `XID 79 (GPU has fallen off the bus)`.
pub fn xid_text(code: u64) -> String {
    format!("XID {code} ({})", meaning(code))
}

/// The seats of pods that live here: never shown unhealthy nor taken away, whatever became of
/// their card, so that the kubelet's count of what is free stays right. A pod's real card may be
/// another. Before the pods are known all seats in the checkpoint count.
pub fn held(entries: &[Entry], pods: &[Arc<Pod>], synced: bool) -> Held {
    let alive: BTreeSet<&PodUid> = living(pods).map(|pod| &pod.kubelet_uid).collect();
    let mut held = Held::new();
    for entry in entries.iter().filter(|e| !synced || alive.contains(&e.pod)) {
        let ids = held.entry(entry.resource.clone()).or_default();
        ids.extend(entry.ids.iter().cloned());
    }
    held
}

fn living(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter().filter(|pod| pod.phase != Phase::Ended)
}

/// The name under which an instance is booked that is ill by itself: on a card that is cut as
/// pods come, its place.
pub fn as_booked(uuid: &GpuUuid, facts: &nvml::Inventory) -> Option<GpuUuid> {
    facts.cards.iter().find_map(|card| {
        let mut all = card.cut.instances.iter();
        let found = all.find(|one| one.device().is_some_and(|d| d.uuid == uuid.as_str()))?;
        let place = Placed {
            profile: found.profile.clone(),
            start: found.start,
        };
        Some(place.unit(&card.uuid.as_str().into()))
    })
}

/// The living pods whose accepted share is on this card, or on an instance that was made of it.
pub fn on_card(gpu: &GpuUuid, shares: &[Accepted], pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let of_it = |unit: &GpuUuid| Placed::of(unit).is_some_and(|(card, _)| card == gpu.as_str());
    let here = |unit: &GpuUuid| unit == gpu || of_it(unit);
    let there = shares.iter().filter(|share| share.uses().keys().any(here));
    let there: BTreeSet<&PodUid> = there.map(|share| &share.pod).collect();
    let found = living(pods).filter(|pod| there.contains(&pod.kubelet_uid));
    found.cloned().collect()
}

/// Each pod with each sick card that it is on.
pub fn concerned(cards: &[Sick], shares: &[Accepted], pods: &[Arc<Pod>]) -> Vec<(Arc<Pod>, Sick)> {
    let each = |sick: &Sick| {
        let pods = on_card(&sick.gpu, shares, pods);
        let sick = sick.clone();
        pods.into_iter().map(move |pod| (pod, sick.clone()))
    };
    cards.iter().flat_map(each).collect()
}

/// The pods that must leave, each once, by uid. Static pods cannot.
pub fn evict(concerned: &[(Arc<Pod>, Sick)]) -> Vec<Refused> {
    let mut found: BTreeMap<&PodUid, Refused> = BTreeMap::new();
    for (pod, sick) in concerned.iter().filter(|(pod, _)| !pod.mirror) {
        found.entry(&pod.uid).or_insert_with(|| Refused {
            pod: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            reason: format!("{}: {}", sick.gpu, sick.why),
        });
    }
    found.into_values().collect()
}

/// What pods have been told, so that each thing is said once.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<(PodUid, GpuUuid), String>);

impl Told {
    /// What is to be said now: of cards that fell sick, or for another reason, and of
    /// cards that are well again.
    pub fn news(
        &mut self,
        concerned: &[(Arc<Pod>, Sick)],
        pods: &[Arc<Pod>],
        policy: SickPods,
    ) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut now = BTreeMap::new();
        for (pod, sick) in concerned {
            let key = (pod.uid.clone(), sick.gpu.clone());
            if self.0.get(&key) != Some(&sick.why) {
                notes.push(fell_sick(pod, sick, policy));
            }
            now.insert(key, sick.why.clone());
        }
        for ((uid, gpu), why) in &self.0 {
            let found = living(pods).find(|pod| pod.uid == *uid);
            let well = !concerned.iter().any(|(_, sick)| sick.gpu == *gpu);
            if let Some(pod) = found.filter(|_| well) {
                let text = format!("{gpu} is in service again after {why}");
                notes.push(note(pod, false, "GpuRecovered", text));
            }
        }
        self.0 = now;
        notes
    }
}

fn fell_sick(pod: &Pod, sick: &Sick, policy: SickPods) -> Note {
    let fate = match policy {
        SickPods::Evict | SickPods::Drain if !pod.mirror => "this pod is evicted",
        _ => "this pod keeps its share",
    };
    let text = format!(
        "{}: {}; needs {}; it takes no new share until the driver says that it is well; {fate}",
        sick.gpu, sick.why, sick.action
    );
    note(pod, true, "GpuSick", text)
}

/// An error that leaves the card in service. `shared`: MPS lets it hit all who are on the card.
pub fn application_error(pod: &Pod, gpu: &GpuUuid, code: u64, shared: bool) -> Note {
    let whose = if shared {
        "MPS shares errors, so every application on this GPU, this pod's too, must start again"
    } else {
        "an application on this GPU must start again"
    };
    let text = format!(
        "{gpu}: {}; {whose}; the GPU stays in service",
        xid_text(code)
    );
    note(pod, true, "GpuError", text)
}

/// An event on a pod.
pub(crate) fn note(pod: &Pod, warning: bool, reason: &'static str, text: String) -> Note {
    Note {
        pod: PodRef {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.to_string(),
        },
        warning,
        reason,
        action: "Watching",
        text,
    }
}

/// Status, reason and message of the node's condition.
pub fn condition(cards: &[Sick]) -> [String; 3] {
    let Some(worst) = cards.iter().map(|sick| sick.action).max() else {
        return ["False", "GpusWell", "every GPU is in service"].map(str::to_owned);
    };
    let reason = match worst {
        Action::DrainNode => "DrainNeeded",
        Action::Ignore | Action::RestartApplication => "DaemonDown",
        Action::ResetGpu => "ResetNeeded",
    };
    let each = cards
        .iter()
        .map(|sick| format!("{}: {}; needs {}", sick.gpu, sick.why, sick.action));
    let message: Vec<String> = each.collect();
    ["True".to_owned(), reason.to_owned(), message.join(". ")]
}

#[cfg(test)]
#[path = "sick_tests.rs"]
mod tests;

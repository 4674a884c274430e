//! What may be thrown away, who lost their checkpoint entry, who lingers and
//! who is foreign: the agent's housekeeping as functions.
//!
//! Fed by: the checkpoint, the synced pods, the accepted shares, names on disk.
//! Must not: be asked before the pods are synced or while the checkpoint cannot
//! be read; remove what a pod or an entry still needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::{Foreign, Lingering};
use aliquot_core::{GpuUuid, PodUid};

use crate::accepted::Accepted;
use crate::checkpoint::Entry;
use crate::hami;
use crate::pod::{Phase, Pod};
use crate::seat::Seat;

/// What housekeeping found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Names whose spec and directory nobody needs.
    pub names: BTreeSet<String>,
    /// Pods whose accepted share nobody needs.
    pub pods: BTreeSet<PodUid>,
}

/// The names and accepted shares whose pod is gone, whose processes are gone
/// (`alive`), and that no checkpoint entry refers to. While a share that is needed is `damaged`,
/// nobody knows which names are its own.
pub fn garbage<'a>(
    entries: &[Entry],
    pods: &[Arc<Pod>],
    accepted: impl Iterator<Item = &'a Accepted>,
    damaged: &BTreeSet<PodUid>,
    alive: &BTreeSet<PodUid>,
    on_disk: &BTreeSet<String>,
) -> Garbage {
    let present = uids(pods);
    let held: BTreeSet<&PodUid> = entries.iter().map(|entry| &entry.pod).collect();
    let needed = |uid: &PodUid| present.contains(uid) || held.contains(uid) || alive.contains(uid);
    let mut garbage = Garbage::default();
    let mut kept: BTreeSet<&str> = entries
        .iter()
        .filter_map(|entry| Some(entry.name.as_ref()?.as_str()))
        .collect();
    for share in accepted {
        if needed(&share.pod) {
            kept.extend(share.names.iter().map(String::as_str));
        } else {
            garbage.pods.insert(share.pod.clone());
        }
    }
    let (unclear, gone): (Vec<&PodUid>, Vec<&PodUid>) = damaged.iter().partition(|uid| needed(uid));
    garbage.pods.extend(gone.into_iter().cloned());
    let known = unclear.is_empty();
    garbage.names = on_disk
        .iter()
        .filter(|_| known)
        .filter(|name| !kept.contains(name.as_str()))
        .cloned()
        .collect();
    garbage
}

/// Accepted pods that run here while the kubelet's checkpoint does not know
/// them: it lost its file. Their shares stay booked.
pub fn lost<'a>(
    entries: &[Entry],
    pods: &[Arc<Pod>],
    accepted: impl Iterator<Item = &'a Accepted>,
) -> BTreeSet<PodUid> {
    let held: BTreeSet<&PodUid> = entries.iter().map(|entry| &entry.pod).collect();
    let running: BTreeSet<&PodUid> = pods
        .iter()
        .filter(|pod| pod.phase == Phase::Running)
        .map(|pod| &pod.kubelet_uid)
        .collect();
    accepted
        .map(|share| &share.pod)
        .filter(|uid| running.contains(uid) && !held.contains(uid))
        .cloned()
        .collect()
}

/// Accepted pods whose object is gone: their processes may still run.
pub fn departed<'a>(
    pods: &[Arc<Pod>],
    accepted: impl Iterator<Item = &'a PodUid>,
) -> BTreeSet<PodUid> {
    let present = uids(pods);
    accepted
        .filter(|uid| !present.contains(uid))
        .cloned()
        .collect()
}

/// What the departed pods with living processes still hold, by pod and card.
pub fn lingering<'a>(
    alive: &BTreeSet<PodUid>,
    accepted: impl Iterator<Item = &'a Accepted>,
) -> Vec<Lingering> {
    accepted
        .filter(|share| alive.contains(&share.pod))
        .flat_map(|share| {
            share
                .uses()
                .clone()
                .into_iter()
                .map(|(gpu, used)| Lingering {
                    pod: share.pod.clone(),
                    gpu,
                    seats: used.seats,
                    memory: used.memory,
                    cores: used.cores,
                })
        })
        .collect()
}

/// Cards held by pods of another plugin that served our resource: their
/// Allocate answer is not ours. NVIDIA's ids are a uuid, or `<uuid>::<n>`;
/// HAMi's are `<uuid>-<n>`, and where its annotation says what a pod holds, the
/// card is not held whole ([`crate::hami`]). `units` has the unit that is booked for each name of
/// the driver's ([`crate::inventory::Node::booked_as`]).
pub fn foreign(
    entries: &[Entry],
    pods: &[Arc<Pod>],
    units: &BTreeMap<GpuUuid, GpuUuid>,
) -> Vec<Foreign> {
    let mut found = Vec::new();
    for entry in entries.iter().filter(|entry| entry.name.is_none()) {
        let holder = pods.iter().find(|pod| pod.kubelet_uid == entry.pod);
        let Some(pod) = holder.filter(|pod| pod.phase != Phase::Ended) else {
            continue;
        };
        if hami::given(pod).is_some() {
            continue;
        }
        for id in &entry.ids {
            let whole = GpuUuid::from(id.as_str());
            let seat = Seat::parse(id).map(|seat| seat.gpu);
            let theirs = || hami::card_of(id).filter(|_| !units.contains_key(&whole));
            let name = seat.or_else(theirs).unwrap_or(whole);
            let Some(gpu) = units.get(&name).cloned() else {
                continue;
            };
            let pod = pod.full_name();
            let card = Foreign { gpu, pod };
            if !found.contains(&card) {
                found.push(card);
            }
        }
    }
    found.sort_by(|a, b| (&a.gpu, &a.pod).cmp(&(&b.gpu, &b.pod)));
    found
}

/// Every unit, held by those whose processes live, whose object is gone, and whose share cannot be
/// read back.
pub fn unclear(
    damaged: &BTreeSet<PodUid>,
    alive: &BTreeSet<PodUid>,
    units: &[GpuUuid],
) -> Vec<Foreign> {
    let living = damaged.iter().filter(|uid| alive.contains(*uid));
    let each = living.flat_map(|uid| {
        let pod = format!("pod {uid}, whose accepted share cannot be read back");
        let unit = move |gpu: &GpuUuid| Foreign {
            gpu: gpu.clone(),
            pod: pod.clone(),
        };
        units.iter().map(unit)
    });
    each.collect()
}

fn uids(pods: &[Arc<Pod>]) -> BTreeSet<&PodUid> {
    pods.iter().map(|pod| &pod.kubelet_uid).collect()
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;

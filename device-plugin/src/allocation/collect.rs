//! Housekeeping as pure functions: which files nobody needs, which pods lost their checkpoint
//! entry, which still run without a pod object, which belong to another plugin, and which have device
//! ids without a readable allocation. Valid only once the pods are synced and while the checkpoint can
//! be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::{ForeignAllocation, OrphanedShare};
use aliquot_core::{GpuUuid, PodUid};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::checkpoint::CheckpointEntry;
use aliquot_node_state::device_id::{AnswerName, DeviceId};

use crate::pods::pod::{Phase, Pod};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Names whose spec and directory nobody needs.
    pub names: BTreeSet<String>,
    /// Pods whose accepted allocation nobody needs.
    pub pods: BTreeSet<PodUid>,
}

/// The names and accepted allocations of pods that are gone and not `used`: none of their processes
/// is left, and they were not accepted a moment ago. The kubelet's checkpoint may still list such a
/// pod, until the next pod is admitted. While a needed allocation is `damaged`, its names are
/// unknown, so no name is garbage.
pub fn garbage<'a>(
    entries: &[CheckpointEntry],
    pods: &[Arc<Pod>],
    accepted: impl Iterator<Item = &'a AcceptedAllocation>,
    damaged: &BTreeSet<PodUid>,
    used: &BTreeSet<PodUid>,
    on_disk: &BTreeSet<String>,
) -> Garbage {
    let present = uids(pods);
    let needed = |uid: &PodUid| present.contains(uid) || used.contains(uid);
    let mut garbage = Garbage::default();
    let mut needed_names: BTreeSet<&str> = BTreeSet::new();
    for share in accepted {
        if needed(&share.pod) {
            needed_names.extend(share.names.iter().map(|one| one.name.as_str()));
        } else {
            garbage.pods.insert(share.pod.clone());
        }
    }
    let (unclear, gone): (Vec<&PodUid>, Vec<&PodUid>) = damaged.iter().partition(|uid| needed(uid));
    garbage.pods.extend(gone.into_iter().cloned());
    // Those of pods that are not accepted yet.
    let starting = |entry: &&CheckpointEntry| !garbage.pods.contains(&entry.pod);
    for entry in entries.iter().filter(starting) {
        needed_names.extend(entry.name.as_ref().map(AnswerName::as_str));
    }
    if unclear.is_empty() {
        let gone = |name: &&String| !needed_names.contains(name.as_str());
        garbage.names = on_disk.iter().filter(gone).cloned().collect();
    }
    garbage
}

/// Accepted pods that run here while the kubelet's checkpoint does not list them: it lost its file.
/// Their devices stay allocated.
pub fn lost<'a>(
    entries: &[CheckpointEntry],
    pods: &[Arc<Pod>],
    accepted: impl Iterator<Item = &'a AcceptedAllocation>,
) -> BTreeSet<PodUid> {
    let in_checkpoint: BTreeSet<&PodUid> = entries.iter().map(|entry| &entry.pod).collect();
    let running: BTreeSet<&PodUid> = pods
        .iter()
        .filter(|pod| pod.phase == Phase::Running)
        .map(|pod| &pod.kubelet_uid)
        .collect();
    accepted
        .map(|share| &share.pod)
        .filter(|uid| running.contains(uid) && !in_checkpoint.contains(uid))
        .cloned()
        .collect()
}

/// Accepted pods whose object is gone, or that have ended: their processes may still run.
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

/// What departed pods with live processes still use, by pod and device.
pub fn orphaned<'a>(
    alive: &BTreeSet<PodUid>,
    accepted: impl Iterator<Item = &'a AcceptedAllocation>,
) -> Vec<OrphanedShare> {
    accepted
        .filter(|share| alive.contains(&share.pod))
        .flat_map(|share| {
            share
                .uses()
                .clone()
                .into_iter()
                .map(|(gpu, used)| OrphanedShare {
                    pod: share.pod.clone(),
                    gpu,
                    replicas: used.replicas,
                    memory: used.memory,
                    cores: used.cores,
                })
        })
        .collect()
}

/// Devices of pods of another plugin that served our resource: their Allocate answer is not ours.
/// NVIDIA's ids are a UUID, or `<uuid>::<n>`. HAMi's plugin does not follow the ids that the
/// kubelet chose, so a pod of HAMi may be on any GPU: one such pod is named at each. `devices` has the
/// allocatable device for each of the driver's UUIDs.
pub fn foreign(
    entries: &[CheckpointEntry],
    pods: &[Arc<Pod>],
    devices: &BTreeMap<GpuUuid, GpuUuid>,
) -> Vec<ForeignAllocation> {
    let mut found = BTreeSet::new();
    let mut of_hami = BTreeSet::new();
    for entry in entries.iter().filter(|entry| entry.name.is_none()) {
        let holder = pods.iter().find(|pod| pod.kubelet_uid == entry.pod);
        let Some(pod) = holder.filter(|pod| pod.phase != Phase::Ended) else {
            continue;
        };
        for id in &entry.ids {
            let ours = DeviceId::parse(id).map(|id| id.gpu);
            if let Some(gpu) = devices.get(&ours.unwrap_or_else(|| id.as_str().into())) {
                found.insert((gpu, pod.full_name()));
            } else if is_of_hami(id) {
                of_hami.insert(pod.full_name());
            }
        }
    }
    if let Some(pod) = of_hami.first() {
        found.extend(devices.values().map(|gpu| (gpu, pod.clone())));
    }
    let foreign = found.into_iter().map(|(gpu, pod)| ForeignAllocation {
        gpu: gpu.clone(),
        pod,
    });
    foreign.collect()
}

/// Whether this is a device id of HAMi's plugin, `<uuid>-<n>`. The last part of a UUID is longer.
fn is_of_hami(id: &str) -> bool {
    let number = id.rsplit_once('-').map_or("", |(_, number)| number);
    (1..12).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// The pods that have device ids of our resources and whose allocation cannot be read.
pub fn unreadable(entries: &[CheckpointEntry], pods: &[Arc<Pod>]) -> Vec<PodUid> {
    let has_ids = |pod: &Pod| entries.iter().any(|entry| entry.pod == pod.kubelet_uid);
    let mut found: Vec<PodUid> = pods
        .iter()
        .filter(|pod| pod.phase != Phase::Ended && pod.has_unreadable_allocation() && has_ids(pod))
        .map(|pod| pod.uid.clone())
        .collect();
    found.sort_unstable();
    found
}

/// Counts every device as used by each pod that has live processes but no pod object, and whose
/// accepted allocation cannot be read.
pub fn foreign_of_damaged(
    damaged: &BTreeSet<PodUid>,
    alive: &BTreeSet<PodUid>,
    devices: &[GpuUuid],
) -> Vec<ForeignAllocation> {
    let live = damaged.iter().filter(|uid| alive.contains(*uid));
    let each = live.flat_map(|uid| {
        let pod = format!("pod {uid} (its accepted allocation cannot be read)");
        let device = move |gpu: &GpuUuid| ForeignAllocation {
            gpu: gpu.clone(),
            pod: pod.clone(),
        };
        devices.iter().map(device)
    });
    each.collect()
}

/// The pods that have not ended.
fn uids(pods: &[Arc<Pod>]) -> BTreeSet<&PodUid> {
    let present = pods.iter().filter(|pod| pod.phase != Phase::Ended);
    present.map(|pod| &pod.kubelet_uid).collect()
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;

//! Pods of HAMi that still run on a node that this agent took over. They are the checkpoint entries
//! whose Allocate answer is not ours. HAMi's plugin does not follow the device ids, so only the
//! annotation of a pod that has device ids counts.

use std::sync::Arc;

use aliquot_core::usage::AllocatedUse;
use aliquot_core::{GpuUuid, PodUid, hami};
use aliquot_node_state::checkpoint::CheckpointEntry;

use crate::pods::pod::{Phase, Pod};

/// What each of these pods has allocated, by the kubelet's UID.
pub fn pod_allocations(
    entries: &[CheckpointEntry],
    pods: &[Arc<Pod>],
) -> Vec<(PodUid, AllocatedUse)> {
    let theirs = |pod: &&Arc<Pod>| {
        let mut entries = entries.iter().filter(|entry| entry.name.is_none());
        pod.phase != Phase::Ended && entries.any(|entry| entry.pod == pod.kubelet_uid)
    };
    let usage = |pod: &Arc<Pod>| Some((pod.kubelet_uid.clone(), uses(pod)?));
    pods.iter().filter(theirs).filter_map(usage).collect()
}

/// What HAMi's annotation says, on a pod without an allocation of ours.
pub fn uses(pod: &Pod) -> Option<AllocatedUse> {
    let text = pod.hami_allocation.as_deref();
    let text = text.filter(|_| pod.allocation.is_none())?;
    let stages: Vec<_> = pod.stages().map(|(_, stage)| stage).collect();
    Some(hami::uses(text, &stages).map_or(AllocatedUse::Unreadable, AllocatedUse::Known))
}

/// The GPU in a device id of HAMi's plugin, `<uuid>-<n>`.
pub fn gpu_of(id: &str) -> Option<GpuUuid> {
    let (gpu, number) = id.rsplit_once('-')?;
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| gpu.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, pod};

    fn check(change: impl FnOnce(&mut Pod), name: Option<&str>, expected: &str) {
        let mut theirs = pod("u1");
        theirs.hami_allocation = Some("GPU-a,NVIDIA,3000,30:;".to_owned());
        change(&mut theirs);
        let entries = [entry("u1", name, &["GPU-b-3"])];
        let found = pod_allocations(&entries, &[Arc::new(theirs), Arc::new(pod("other"))]);
        let shown = found.iter().map(|(pod, usage)| match usage {
            AllocatedUse::Known(uses) => {
                let shares = uses.iter();
                let shares = shares.map(|(gpu, used)| format!("{pod} {gpu} {}", used.memory));
                shares.collect()
            }
            _ => format!("{pod} unreadable"),
        });
        assert_eq!(shown.collect::<String>(), expected);
    }

    #[test]
    fn counts_hami_pod_by_annotation_not_by_device_ids() {
        check(|_| {}, None, "u1 GPU-a 3000 MiB");
        let unreadable = |pod: &mut Pod| pod.hami_allocation = Some("?".to_owned());
        check(unreadable, None, "u1 unreadable");
        // Device ids of ours, a pod that ended, an allocation of ours, no annotation.
        check(|_| {}, Some("n1"), "");
        check(|pod| pod.phase = Phase::Ended, None, "");
        check(|pod| pod.allocation = Some("{}".to_owned()), None, "");
        check(|pod| pod.hami_allocation = None, None, "");
    }
}

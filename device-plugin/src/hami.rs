//! Pods of HAMi that still run on a node that this agent took over.
//!
//! Fed by: the checkpoint (entries whose Allocate answer is not ours) and the
//! pods' annotations. Must not: believe the annotation of a pod that holds no
//! seat, or the ids of the seats: HAMi's plugin does not follow them.

use std::sync::Arc;

use aliquot_core::ledger::Held;
use aliquot_core::{GpuUuid, PodUid, hami};

use crate::checkpoint::Entry;
use crate::pod::{Phase, Pod};

/// What each of them holds, by the kubelet's uid.
pub fn holders(entries: &[Entry], pods: &[Arc<Pod>]) -> Vec<(PodUid, Held)> {
    let theirs = |pod: &&Arc<Pod>| {
        let mut entries = entries.iter().filter(|entry| entry.name.is_none());
        pod.phase != Phase::Ended && entries.any(|entry| entry.pod == pod.kubelet_uid)
    };
    let held = |pod: &Arc<Pod>| {
        let text = given(pod)?;
        let stages: Vec<_> = pod.stages().map(|(_, stage)| stage).collect();
        let held = hami::uses(text, &stages).map_or(Held::Unreadable, Held::Uses);
        Some((pod.kubelet_uid.clone(), held))
    };
    pods.iter().filter(theirs).filter_map(held).collect()
}

/// HAMi's annotation, where it counts: on a pod without one of ours.
pub fn given(pod: &Pod) -> Option<&str> {
    pod.hamis.as_deref().filter(|_| pod.allocation.is_none())
}

/// The card in an id of HAMi's plugin, `<uuid>-<n>`.
pub fn card_of(id: &str) -> Option<GpuUuid> {
    let (card, number) = id.rsplit_once('-')?;
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| card.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{entry, pod};

    fn check(change: impl FnOnce(&mut Pod), name: Option<&str>, expected: &str) {
        let mut theirs = pod("u1");
        theirs.hamis = Some("GPU-a,NVIDIA,3000,30:;".to_owned());
        change(&mut theirs);
        let entries = [entry("u1", name, &["GPU-b-3"])];
        let found = holders(&entries, &[Arc::new(theirs), Arc::new(pod("other"))]);
        let shown = found.iter().map(|(pod, held)| match held {
            Held::Unreadable => format!("{pod} unreadable"),
            Held::Uses(uses) => {
                let shares = uses.iter();
                let shares = shares.map(|(gpu, used)| format!("{pod} {gpu} {}", used.memory));
                shares.collect()
            }
        });
        assert_eq!(shown.collect::<String>(), expected);
    }

    #[test]
    fn a_pod_of_hami_holds_what_its_annotation_says_wherever_its_seats_are() {
        check(|_| {}, None, "u1 GPU-a 3000 MiB");
        check(
            |pod| pod.hamis = Some("?".to_owned()),
            None,
            "u1 unreadable",
        );
        // A seat of ours, an ended pod, one with an allocation of ours, no annotation.
        check(|_| {}, Some("n1"), "");
        check(|pod| pod.phase = Phase::Ended, None, "");
        check(|pod| pod.allocation = Some("{}".to_owned()), None, "");
        check(|pod| pod.hamis = None, None, "");
    }

    #[test]
    fn hamis_ids_name_a_card_and_a_number() {
        let card = |id| card_of(id).map(|card| card.to_string());
        assert_eq!(card("GPU-8f-11").as_deref(), Some("GPU-8f"));
        assert_eq!(card("GPU-8f"), None);
        assert_eq!(card("GPU"), None);
    }
}

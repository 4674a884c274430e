//! Which device ids the kubelet should take: those on the devices that the scheduler granted to the
//! pod it is about to serve, so that its own accounting agrees with ours. A hint only; the
//! allocation decides.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::repeat_n;
use std::sync::Arc;

use aliquot_core::{Allocation, GpuUuid, Grant};
use aliquot_node_state::checkpoint::CheckpointEntry;
use aliquot_node_state::device_id::DeviceId;

use crate::pods::pod::{Phase, Pod};

/// A granted device, and under dynamic MIG the start of the granted placement.
pub type GrantedDevice = (GpuUuid, Option<u32>);

/// The devices of the oldest container that was granted `count` replicas and has no device ids yet;
/// `pods` come oldest first. The kubelet admits pods in this order and a pod's containers in
/// theirs, all before the first one runs.
pub fn next_waiting_grant(
    pods: &[Arc<Pod>],
    served: &[CheckpointEntry],
    resource: &str,
    count: usize,
) -> Option<Vec<GrantedDevice>> {
    let served: BTreeSet<(&str, &str)> = served
        .iter()
        .filter(|entry| entry.resource == resource)
        .map(|entry| (entry.pod.as_str(), entry.container.as_str()))
        .collect();
    pods.iter()
        .filter(|pod| pod.phase == Phase::Starting)
        .find_map(|pod| {
            let allocation = Allocation::decode(pod.allocation.as_deref()?).ok()?;
            pod.containers.iter().find_map(|container| {
                let grants = allocation.grants(&container.name)?.iter();
                let grants: Vec<&Grant> =
                    grants.filter(|grant| grant.resource == resource).collect();
                let each = grants.iter().copied().map(replicas);
                let all = each.fold(0, usize::saturating_add);
                let waits = !served.contains(&(pod.kubelet_uid.as_str(), &container.name));
                (waits && all == count).then(|| granted_devices(&grants))
            })
        })
}

/// Each device as often as the share has replicas of it.
fn granted_devices(grants: &[&Grant]) -> Vec<GrantedDevice> {
    let each = grants.iter().flat_map(|grant| {
        let start = grant.mig.as_ref().map(|one| u32::from(one.start));
        repeat_n((grant.gpu.clone(), start), replicas(grant))
    });
    each.collect()
}

fn replicas(grant: &Grant) -> usize {
    usize::try_from(grant.replicas).unwrap_or(usize::MAX)
}

/// `size` of the `available` ids: all of `must`, then one replica of each granted device, then
/// replicas of as many different devices as possible. The lowest number of each device first, so
/// that the same request gives the same answer.
pub fn preferred_ids(
    available: &[String],
    must: &[String],
    size: usize,
    granted: &[GrantedDevice],
) -> Vec<String> {
    let mut chosen: Vec<String> = must.to_vec();
    let mut free: BTreeMap<GpuUuid, BTreeMap<u32, &String>> = BTreeMap::new();
    for id in available.iter().filter(|id| !must.contains(id)) {
        if let Some(replica) = DeviceId::parse(id) {
            free.entry(replica.gpu)
                .or_default()
                .insert(replica.number, id);
        }
    }
    let mut covered: Vec<GpuUuid> = must
        .iter()
        .filter_map(|id| Some(DeviceId::parse(id)?.gpu))
        .collect();
    for (gpu, start) in granted {
        if let Some(position) = covered.iter().position(|other| other == gpu) {
            covered.swap_remove(position);
            continue;
        }
        let Some(replicas) = free.get_mut(gpu).filter(|_| chosen.len() < size) else {
            continue;
        };
        let start = start.and_then(|start| replicas.remove(&start));
        let replica = start.or_else(|| Some(replicas.pop_first()?.1));
        chosen.extend(replica.cloned());
    }
    while chosen.len() < size {
        let before = chosen.len();
        let used: BTreeSet<GpuUuid> = chosen
            .iter()
            .filter_map(|id| Some(DeviceId::parse(id)?.gpu))
            .collect();
        let mut devices: Vec<_> = free.iter_mut().collect();
        devices.sort_by_key(|(gpu, _)| used.contains(*gpu));
        for (_, replicas) in devices {
            if chosen.len() < size
                && let Some((_, id)) = replicas.pop_first()
            {
                chosen.push(id.clone());
            }
        }
        if chosen.len() == before {
            break;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use aliquot_core::usage::Stage;

    use super::*;
    use crate::testing::{RESOURCE, allocation, container, entry, grant, instance_grant, pod};

    fn check(available: &[&str], must: &[&str], size: usize, granted: &[&str], expected: &[&str]) {
        let texts = |ids: &[&str]| -> Vec<String> { ids.iter().map(|&i| i.to_owned()).collect() };
        let granted = granted.iter().map(|text| match text.split_once('@') {
            None => (GpuUuid::from(*text), None),
            Some((gpu, start)) => (gpu.into(), start.parse().ok()),
        });
        let granted: Vec<GrantedDevice> = granted.collect();
        assert_eq!(
            preferred_ids(&texts(available), &texts(must), size, &granted),
            texts(expected)
        );
    }

    #[test]
    fn prefers_granted_gpus_then_spread_then_low_numbers() {
        let all = ["a::0", "a::1", "a::10", "b::2", "b::1", "c::0"];
        check(&all, &[], 1, &["b"], &["b::1"]);
        check(&all, &[], 2, &["c", "b"], &["c::0", "b::1"]);
        check(&all, &[], 2, &["b", "b"], &["b::1", "b::2"]);
        check(&all, &[], 1, &[], &["a::0"]);
        check(&all, &[], 2, &[], &["a::0", "b::1"]);
        check(&all, &[], 4, &[], &["a::0", "b::1", "c::0", "a::1"]);
        check(&all, &[], 2, &["z"], &["a::0", "b::1"]);
        check(&all, &[], 2, &["a"], &["a::0", "b::1"]);
    }

    #[test]
    fn includes_required_ids_and_counts_them() {
        let all = ["a::0", "a::1", "b::0", "b::1"];
        check(&all, &["b::1"], 1, &["a"], &["b::1"]);
        check(&all, &["b::1"], 2, &["b", "a"], &["b::1", "a::0"]);
        check(&all, &["b::1"], 2, &[], &["b::1", "a::0"]);
        check(&all[..1], &[], 3, &[], &["a::0"]);
    }

    #[test]
    fn prefers_granted_start_of_dynamic_mig() {
        let all = ["a::0", "a::4", "b::4"];
        check(&all, &[], 1, &["a@4"], &["a::4"]);
        // The number differs where somebody else took the granted one.
        check(&all, &[], 1, &["a@6"], &["a::0"]);
        let pods = [waiting("u1", &[instance_grant("a", "3g.20gb", 4)])];
        assert_eq!(devices(&pods, &[], 1), ["a@4"]);
    }

    fn waiting(uid: &str, grants: &[aliquot_core::Grant]) -> Arc<Pod> {
        let mut pod = pod(uid).with(&allocation(&[("main", grants)]));
        pod.phase = Phase::Starting;
        Arc::new(pod)
    }

    fn served(pod: &str, container: &str) -> CheckpointEntry {
        CheckpointEntry {
            container: container.to_owned(),
            ..entry(pod, None, &[])
        }
    }

    fn devices(pods: &[Arc<Pod>], entries: &[CheckpointEntry], count: usize) -> Vec<String> {
        let found = next_waiting_grant(pods, entries, RESOURCE, count);
        let found = found.unwrap_or_default();
        let text = |(gpu, start): &GrantedDevice| match start {
            None => gpu.to_string(),
            Some(start) => format!("{gpu}@{start}"),
        };
        found.iter().map(text).collect()
    }

    #[test]
    fn serves_oldest_matching_pod_first() {
        let one = [grant("a", 1, 1)];
        let two = [grant("b", 1, 1), grant("c", 1, 1)];
        let pods = [
            Arc::new(pod("no-gpu")),
            waiting("u1", &one),
            waiting("u2", &two),
            waiting("u3", &[grant("d", 1, 1)]),
        ];
        assert_eq!(devices(&pods, &[], 1), ["a"]);
        assert_eq!(devices(&pods, &[], 2), ["b", "c"]);
        assert_eq!(devices(&pods, &[served("u1", "main")], 1), ["d"]);
        assert_eq!(devices(&pods, &[], 3), [""; 0]);
        // A running pod has had its ids, whatever the checkpoint lost.
        let mut running = (*pods[1]).clone();
        running.phase = Phase::Running;
        assert_eq!(devices(&[Arc::new(running)], &[], 1), [""; 0]);
    }

    #[test]
    fn prefers_one_device_for_several_replicas_of_it() {
        let mut same = grant("a", 2, 2);
        same.replicas = 2;
        let two = [grant("b", 1, 1), grant("c", 1, 1)];
        let pods = [waiting("u1", &[same]), waiting("u2", &two)];
        assert_eq!(devices(&pods, &[], 2), ["a", "a"]);
        assert_eq!(devices(&pods, &[served("u1", "main")], 2), ["b", "c"]);
        assert_eq!(devices(&pods, &[], 1), [""; 0]);
    }

    #[test]
    fn serves_containers_of_a_pod_in_order() {
        let mut both = allocation(&[("main", &[grant("b", 1, 1)])]);
        both.init
            .insert("z-first".to_owned(), vec![grant("a", 1, 1)]);
        let mut pod = pod("u1").with(&both);
        pod.phase = Phase::Starting;
        pod.containers.insert(0, container("z-first", Stage::Init));
        let pods = [Arc::new(pod)];
        assert_eq!(devices(&pods, &[], 1), ["a"]);
        assert_eq!(devices(&pods, &[served("u1", "z-first")], 1), ["b"]);
    }
}

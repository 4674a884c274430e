//! Which seats the kubelet should take: those on the cards that the pod it is
//! about to serve was given, so that its own books agree with ours.
//!
//! Fed by: the node's pods in order, the checkpoint, the kubelet's request.
//! Must not: be relied on. It is a hint; the allocation decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::{Allocation, GpuUuid, Grant};

use crate::checkpoint::Entry;
use crate::pod::{Phase, Pod};
use crate::seat::Seat;

/// A card, and of one that is cut as pods come the start that was granted.
pub type Wanted = (GpuUuid, Option<u32>);

/// The cards of the oldest container that was given `count` of them and holds no
/// seats yet; `pods` come oldest first. The kubelet admits pods in this order
/// and a pod's containers in theirs, all before the first one runs.
pub fn oldest_unserved(
    pods: &[Arc<Pod>],
    served: &[Entry],
    resource: &str,
    count: usize,
) -> Option<Vec<Wanted>> {
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
                let cards = grants.filter(|grant| grant.resource == resource);
                let start = |grant: &Grant| grant.mig.as_ref().map(|one| one.start.into());
                let cards: Vec<Wanted> = cards
                    .map(|grant| (grant.gpu.clone(), start(grant)))
                    .collect();
                let waits = !served.contains(&(pod.kubelet_uid.as_str(), &container.name));
                (waits && cards.len() == count).then_some(cards)
            })
        })
}

/// `size` of the `available` ids: all of `must`, then one seat on each wanted
/// card, then seats on as many different cards as there are. The lowest number
/// of each card first, so that the same request gives the same answer.
pub fn prefer(
    available: &[String],
    must: &[String],
    size: usize,
    wanted: &[Wanted],
) -> Vec<String> {
    let mut chosen: Vec<String> = must.to_vec();
    let mut free: BTreeMap<GpuUuid, BTreeMap<u32, &String>> = BTreeMap::new();
    for id in available.iter().filter(|id| !must.contains(id)) {
        if let Some(seat) = Seat::parse(id) {
            free.entry(seat.gpu).or_default().insert(seat.number, id);
        }
    }
    let mut covered: Vec<GpuUuid> = must
        .iter()
        .filter_map(|id| Some(Seat::parse(id)?.gpu))
        .collect();
    for (gpu, start) in wanted {
        if let Some(position) = covered.iter().position(|other| other == gpu) {
            covered.swap_remove(position);
            continue;
        }
        let Some(seats) = free.get_mut(gpu).filter(|_| chosen.len() < size) else {
            continue;
        };
        let start = start.and_then(|start| seats.remove(&start));
        let seat = start.or_else(|| Some(seats.pop_first()?.1));
        chosen.extend(seat.cloned());
    }
    while chosen.len() < size {
        let before = chosen.len();
        let used: BTreeSet<GpuUuid> = chosen
            .iter()
            .filter_map(|id| Some(Seat::parse(id)?.gpu))
            .collect();
        let mut cards: Vec<_> = free.iter_mut().collect();
        cards.sort_by_key(|(gpu, _)| used.contains(*gpu));
        for (_, seats) in cards {
            if chosen.len() < size
                && let Some((_, id)) = seats.pop_first()
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
    use aliquot_core::demand::Stage;

    use super::*;
    use crate::testing::{RESOURCE, allocation, container, grant, pod};

    fn check(available: &[&str], must: &[&str], size: usize, wanted: &[&str], expected: &[&str]) {
        let texts = |ids: &[&str]| -> Vec<String> { ids.iter().map(|&i| i.to_owned()).collect() };
        let wanted = wanted.iter().map(|text| match text.split_once('@') {
            None => (GpuUuid::from(*text), None),
            Some((gpu, start)) => (gpu.into(), start.parse().ok()),
        });
        let wanted: Vec<Wanted> = wanted.collect();
        assert_eq!(
            prefer(&texts(available), &texts(must), size, &wanted),
            texts(expected)
        );
    }

    #[test]
    fn prefers_the_wanted_cards_then_different_cards_then_low_numbers() {
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
    fn includes_what_must_be_and_counts_it_as_the_wanted_card() {
        let all = ["a::0", "a::1", "b::0", "b::1"];
        check(&all, &["b::1"], 1, &["a"], &["b::1"]);
        check(&all, &["b::1"], 2, &["b", "a"], &["b::1", "a::0"]);
        check(&all, &["b::1"], 2, &[], &["b::1", "a::0"]);
        check(&all[..1], &[], 3, &[], &["a::0"]);
    }

    #[test]
    fn an_instance_is_taken_by_the_start_that_was_granted() {
        let all = ["a::0", "a::4", "b::4"];
        check(&all, &[], 1, &["a@4"], &["a::4"]);
        // The kubelet's number is another where somebody else took the right one.
        check(&all, &[], 1, &["a@6"], &["a::0"]);
        let placed = |gpu: &str, start| aliquot_core::Grant {
            mig: Some(aliquot_core::mig::published::Placed {
                profile: "3g.20gb".to_owned(),
                start,
            }),
            ..grant(gpu, 1, 1)
        };
        let pods = [waiting("u1", &[placed("a", 4)])];
        assert_eq!(cards(&pods, &[], 1), ["a@4"]);
    }

    fn waiting(uid: &str, grants: &[aliquot_core::Grant]) -> Arc<Pod> {
        let mut pod = pod(uid).with(&allocation(&[("main", grants)]));
        pod.phase = Phase::Starting;
        Arc::new(pod)
    }

    fn served(pod: &str, container: &str) -> Entry {
        Entry {
            pod: pod.into(),
            container: container.to_owned(),
            resource: RESOURCE.to_owned(),
            ids: std::collections::BTreeSet::new(),
            name: None,
            by_env: None,
        }
    }

    fn cards(pods: &[Arc<Pod>], entries: &[Entry], count: usize) -> Vec<String> {
        let found = oldest_unserved(pods, entries, RESOURCE, count);
        let found = found.unwrap_or_default();
        let said = |(gpu, start): &Wanted| match start {
            None => gpu.to_string(),
            Some(start) => format!("{gpu}@{start}"),
        };
        found.iter().map(said).collect()
    }

    #[test]
    fn the_oldest_pod_of_this_shape_without_seats_is_next() {
        let one = [grant("a", 1, 1)];
        let two = [grant("b", 1, 1), grant("c", 1, 1)];
        let pods = [
            Arc::new(pod("no-gpu")),
            waiting("u1", &one),
            waiting("u2", &two),
            waiting("u3", &[grant("d", 1, 1)]),
        ];
        assert_eq!(cards(&pods, &[], 1), ["a"]);
        assert_eq!(cards(&pods, &[], 2), ["b", "c"]);
        assert_eq!(cards(&pods, &[served("u1", "main")], 1), ["d"]);
        assert_eq!(cards(&pods, &[], 3), [""; 0]);
        // One that runs has had its seats, whatever the checkpoint lost.
        let mut running = (*pods[1]).clone();
        running.phase = Phase::Running;
        assert_eq!(cards(&[Arc::new(running)], &[], 1), [""; 0]);
    }

    #[test]
    fn a_pods_containers_are_served_in_their_order() {
        let mut both = allocation(&[("main", &[grant("b", 1, 1)])]);
        both.init
            .insert("z-first".to_owned(), vec![grant("a", 1, 1)]);
        let mut pod = pod("u1").with(&both);
        pod.phase = Phase::Starting;
        pod.containers.insert(0, container("z-first", Stage::Init));
        let pods = [Arc::new(pod)];
        assert_eq!(cards(&pods, &[], 1), ["a"]);
        assert_eq!(cards(&pods, &[served("u1", "z-first")], 1), ["b"]);
    }
}

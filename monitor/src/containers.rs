//! The cgroups of containers with a share, known before any process of theirs has a card.
//!
//! Fed by: the containers' ids, `/proc`. Must not: look through all processes again and again for
//! a container that ended.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;

use crate::processes::Processes;
use crate::seats::Seat;

/// Looks for which a new container is searched.
const TRIES: u32 = 4;
/// Looks for which the containers of a pod are searched whose only share the API server has not
/// named yet: it tells a second or two after a start.
const EARLY: u32 = 20;

/// Cgroups of containers, by pod and name.
pub type Cgroups = BTreeMap<(PodUid, String), BTreeSet<String>>;

/// What was found of each container.
#[derive(Clone, Debug, Default)]
pub struct Containers {
    /// By pod and the runtime's id.
    known: BTreeMap<(PodUid, String), Found>,
    /// Looks at each share of which no id was told, by pod and container.
    untold: BTreeMap<(PodUid, String), u32>,
}

#[derive(Clone, Debug, Default)]
struct Found {
    cgroup: Option<String>,
    tries: u32,
}

impl Containers {
    /// The cgroups of the containers of these seats; `names` are those of all containers, by pod
    /// and the runtime's id. And, where a pod has one share only and no id of that was told yet, all
    /// its cgroups that were not: the container is one of them, and the others have no share.
    /// Blocks.
    pub fn of(
        &mut self,
        seats: &[Seat],
        names: &BTreeMap<(PodUid, String), String>,
        processes: &Processes,
    ) -> (Cgroups, Cgroups) {
        let has_seat = |pod: &PodUid, name: &str| {
            let mut seats = seats.iter();
            seats.any(|seat| seat.pod == *pod && seat.container == name)
        };
        let wanted: BTreeMap<_, _> = names
            .iter()
            .filter(|((pod, _), name)| has_seat(pod, name))
            .collect();
        self.known.retain(|key, _| wanted.contains_key(key));
        for key in wanted.keys() {
            if !self.known.contains_key(*key) {
                self.known.insert((*key).clone(), Found::default());
            }
        }
        self.note_untold(seats, &wanted);
        let is_sought = |found: &Found| found.cgroup.is_none() && found.tries < TRIES;
        let is_early = |looks: &u32| *looks <= EARLY;
        let mut early = Cgroups::new();
        if self.known.values().any(is_sought) || self.untold.values().any(is_early) {
            let places = processes.containers();
            for (key, found) in self.known.iter_mut().filter(|(_, found)| is_sought(found)) {
                found.cgroup = places.get(key).cloned();
                found.tries += 1;
            }
            for (key, _) in self.untold.iter().filter(|(_, looks)| is_early(looks)) {
                let of_pod = places.iter().filter(|(place, _)| place.0 == key.0);
                let unnamed = of_pod.filter(|(place, _)| !names.contains_key(place));
                early.insert(key.clone(), unnamed.map(|(_, path)| path.clone()).collect());
            }
        }
        let mut all = Cgroups::new();
        for (key, name) in wanted {
            let cgroup = self.known.get(key).and_then(|found| found.cgroup.clone());
            let own = all.entry((key.0.clone(), name.clone())).or_default();
            own.extend(cgroup);
        }
        (all, early)
    }

    fn note_untold(&mut self, seats: &[Seat], wanted: &BTreeMap<&(PodUid, String), &String>) {
        let mut shares: BTreeMap<&PodUid, u32> = BTreeMap::new();
        for seat in seats {
            *shares.entry(&seat.pod).or_default() += 1;
        }
        let mut next = BTreeMap::new();
        for seat in seats.iter().filter(|seat| shares[&seat.pod] == 1) {
            let mut told = wanted.iter().map(|((pod, _), name)| (pod, *name));
            if !told.any(|(pod, name)| *pod == seat.pod && *name == seat.container) {
                let key = (seat.pod.clone(), seat.container.clone());
                let looks = self
                    .untold
                    .get(&key)
                    .map_or(1, |looks| (looks + 1).min(EARLY + 1));
                next.insert(key, looks);
            }
        }
        self.untold = next;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::seat;

    #[test]
    fn a_containers_cgroup_is_found_by_any_of_its_processes() {
        let proc = tempfile::tempdir().expect("tempdir");
        let pod = "0b7a6b5c-1f2e-4d3c-8b9a-0123456789ab";
        let id = "a".repeat(64);
        let path = format!("/kubepods/pod{pod}/{id}");
        let names: BTreeMap<_, _> = [(id, "main"), ("b".repeat(64), "side")]
            .map(|(id, name)| ((PodUid::from(pod), id), name.to_owned()))
            .into();
        let (seats, processes) = (
            [seat("s", pod, "main", &["GPU-a"])],
            Processes::at(proc.path()),
        );
        let mut containers = Containers::default();
        let key = (PodUid::from(pod), "main".to_owned());
        let mut check = |expected: &[&String]| {
            let (found, early) = containers.of(&seats, &names, &processes);
            assert!(early.is_empty(), "it was told");
            assert_eq!(found.len(), 1, "only what has a share");
            let found: Vec<&String> = found[&key].iter().collect();
            assert_eq!(found, expected);
        };
        check(&[]);
        fs::create_dir(proc.path().join("7")).expect("made");
        fs::write(proc.path().join("7/cgroup"), format!("0::{path}/init\n")).expect("written");
        check(&[&path]);
        fs::remove_dir_all(proc.path().join("7")).expect("removed");
        check(&[&path]);
    }

    #[test]
    fn one_that_ended_is_not_sought_for_ever() {
        let proc = tempfile::tempdir().expect("tempdir");
        let names = [((PodUid::from("u1"), "a".to_owned()), "main".to_owned())].into();
        let (seats, processes) = ([seat("s", "u1", "main", &[])], Processes::at(proc.path()));
        let mut containers = Containers::default();
        for _ in 0..10 {
            containers.of(&seats, &names, &processes);
        }
        let tries: Vec<u32> = containers.known.values().map(|found| found.tries).collect();
        assert_eq!(tries, [TRIES]);
    }

    #[test]
    fn until_its_id_was_told_a_container_had_no_limit_of_the_driver() {
        let proc = tempfile::tempdir().expect("tempdir");
        let (pod, other) = (
            "0b7a6b5c-1f2e-4d3c-8b9a-0123456789ab",
            "1b7a6b5c-1f2e-4d3c-8b9a-0123456789ab",
        );
        let path = |pod: &str, id: &str| format!("/kubepods/pod{pod}/{}", id.repeat(64));
        for (pid, pod, id) in [("7", pod, "a"), ("8", pod, "b"), ("9", other, "c")] {
            let folder = proc.path().join(pid);
            fs::create_dir(&folder).expect("made");
            let text = format!("0::{}\n", path(pod, id));
            fs::write(folder.join("cgroup"), text).expect("written");
        }
        let processes = Processes::at(proc.path());
        let seats = [
            seat("s0", pod, "main", &["GPU-a"]),
            seat("s1", other, "left", &["GPU-a"]),
            seat("s2", other, "right", &["GPU-a"]),
        ];
        let key = (PodUid::from(pod), "main".to_owned());
        let mut containers = Containers::default();
        let none = BTreeMap::new();
        for _ in 0..EARLY {
            let (told, early) = containers.of(&seats, &none, &processes);
            assert!(told.is_empty());
            // Which of two shares a cgroup has nobody knows.
            let both = [path(pod, "a"), path(pod, "b")].into();
            assert_eq!(early, [(key.clone(), both)].into());
        }
        assert_eq!(containers.of(&seats, &none, &processes).1, Cgroups::new());
        let names = [((key.0.clone(), "a".repeat(64)), "main".to_owned())].into();
        let (told, early) = containers.of(&seats, &names, &processes);
        assert_eq!(told[&key], [path(pod, "a")].into());
        assert_eq!(early, Cgroups::new());
    }
}

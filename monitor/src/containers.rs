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

/// Cgroups of containers, by pod and name.
pub type Cgroups = BTreeMap<(PodUid, String), BTreeSet<String>>;

/// What was found of each container, by pod and the runtime's id.
#[derive(Clone, Debug, Default)]
pub struct Containers(BTreeMap<(PodUid, String), Found>);

#[derive(Clone, Debug, Default)]
struct Found {
    cgroup: Option<String>,
    tries: u32,
}

impl Containers {
    /// The cgroups of the containers of these seats; `names` are those of all containers, by pod
    /// and the runtime's id. Blocks.
    pub fn of(
        &mut self,
        seats: &[Seat],
        names: &BTreeMap<(PodUid, String), String>,
        processes: &Processes,
    ) -> Cgroups {
        let has_seat = |pod: &PodUid, name: &str| {
            let mut seats = seats.iter();
            seats.any(|seat| seat.pod == *pod && seat.container == name)
        };
        let wanted: BTreeMap<_, _> = names
            .iter()
            .filter(|((pod, _), name)| has_seat(pod, name))
            .collect();
        self.0.retain(|key, _| wanted.contains_key(key));
        for key in wanted.keys() {
            if !self.0.contains_key(*key) {
                self.0.insert((*key).clone(), Found::default());
            }
        }
        let is_sought = |found: &Found| found.cgroup.is_none() && found.tries < TRIES;
        if self.0.values().any(is_sought) {
            let places = processes.containers();
            for (key, found) in self.0.iter_mut().filter(|(_, found)| is_sought(found)) {
                found.cgroup = places.get(key).cloned();
                found.tries += 1;
            }
        }
        let mut all = Cgroups::new();
        for (key, name) in wanted {
            let cgroup = self.0.get(key).and_then(|found| found.cgroup.clone());
            let own = all.entry((key.0.clone(), name.clone())).or_default();
            own.extend(cgroup);
        }
        all
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
            let found = containers.of(&seats, &names, &processes);
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
        let tries: Vec<u32> = containers.0.values().map(|found| found.tries).collect();
        assert_eq!(tries, [TRIES]);
    }
}

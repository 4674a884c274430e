//! Finds the cgroups of containers with a share, before any of their processes has a GPU open. The
//! search through `/proc` for one container is bounded: it may have ended.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;
use aliquot_node_state::processes::Processes;

use crate::managed_containers::ManagedContainer;

/// Samples in which a new container is searched for.
const MAX_TRIES: u32 = 4;
/// Samples in which the containers of a pod are searched for whose id the API server has not
/// reported: it does so a second or two after a start.
const MAX_UNNAMED_SAMPLES: u32 = 20;

/// Cgroups of containers, by pod and name.
pub type Cgroups = BTreeMap<(PodUid, String), BTreeSet<String>>;

#[derive(Clone, Debug, Default)]
pub struct ContainerCgroups {
    /// By pod and the runtime's id.
    known: BTreeMap<(PodUid, String), CgroupSearch>,
    /// Samples of each container without a reported id, by pod and container.
    unnamed: BTreeMap<(PodUid, String), u32>,
}

#[derive(Clone, Debug, Default)]
struct CgroupSearch {
    cgroup: Option<String>,
    tries: u32,
}

impl ContainerCgroups {
    /// The cgroups of these containers; `names` are those of all containers, by pod and the runtime's
    /// id. And, where a pod has a single share and the id of that container is not reported, all its
    /// cgroups without a reported id: one of them is the container's, and the others have no share.
    /// Blocks.
    pub fn find(
        &mut self,
        containers: &[ManagedContainer],
        names: &BTreeMap<(PodUid, String), String>,
        processes: &Processes,
    ) -> (Cgroups, Cgroups) {
        let is_managed = |pod: &PodUid, name: &str| {
            let mut containers = containers.iter();
            containers.any(|container| container.pod == *pod && container.name == name)
        };
        let managed: BTreeMap<_, _> = names
            .iter()
            .filter(|((pod, _), name)| is_managed(pod, name))
            .collect();
        self.known.retain(|key, _| managed.contains_key(key));
        for key in managed.keys() {
            if !self.known.contains_key(*key) {
                self.known.insert((*key).clone(), CgroupSearch::default());
            }
        }
        self.note_unnamed(containers, &managed);
        let needs_search = |found: &CgroupSearch| found.cgroup.is_none() && found.tries < MAX_TRIES;
        let is_searched = |samples: &u32| *samples <= MAX_UNNAMED_SAMPLES;
        let mut candidates = Cgroups::new();
        if self.known.values().any(needs_search) || self.unnamed.values().any(is_searched) {
            let places = processes.containers();
            for (key, found) in self
                .known
                .iter_mut()
                .filter(|(_, found)| needs_search(found))
            {
                found.cgroup = places.get(key).cloned();
                found.tries += 1;
            }
            for (key, _) in self
                .unnamed
                .iter()
                .filter(|(_, samples)| is_searched(samples))
            {
                let of_pod = places.iter().filter(|(place, _)| place.0 == key.0);
                let unnamed = of_pod.filter(|(place, _)| !names.contains_key(place));
                candidates.insert(key.clone(), unnamed.map(|(_, path)| path.clone()).collect());
            }
        }
        let mut all = Cgroups::new();
        for (key, name) in managed {
            let cgroup = self.known.get(key).and_then(|found| found.cgroup.clone());
            let own = all.entry((key.0.clone(), name.clone())).or_default();
            own.extend(cgroup);
        }
        (all, candidates)
    }

    fn note_unnamed(
        &mut self,
        containers: &[ManagedContainer],
        managed: &BTreeMap<&(PodUid, String), &String>,
    ) {
        let mut shares: BTreeMap<&PodUid, u32> = BTreeMap::new();
        for container in containers {
            *shares.entry(&container.pod).or_default() += 1;
        }
        let mut next = BTreeMap::new();
        for container in containers
            .iter()
            .filter(|container| shares[&container.pod] == 1)
        {
            let mut named = managed.iter().map(|((pod, _), name)| (pod, *name));
            if !named.any(|(pod, name)| *pod == container.pod && *name == container.name) {
                let key = (container.pod.clone(), container.name.clone());
                let samples = self
                    .unnamed
                    .get(&key)
                    .map_or(1, |samples| (samples + 1).min(MAX_UNNAMED_SAMPLES + 1));
                next.insert(key, samples);
            }
        }
        self.unnamed = next;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::container;

    #[test]
    fn finds_cgroup_of_container_by_any_process() {
        let proc = tempfile::tempdir().expect("tempdir");
        let pod = "0b7a6b5c-1f2e-4d3c-8b9a-0123456789ab";
        let id = "a".repeat(64);
        let path = format!("/kubepods/pod{pod}/{id}");
        let names = [(id, "main"), ("b".repeat(64), "side")]
            .map(|(id, name)| ((PodUid::from(pod), id), name.to_owned()));
        let names = BTreeMap::from(names);
        let containers = [container("s", pod, "main", &["GPU-a"])];
        let processes = Processes::at(proc.path());
        let mut finder = ContainerCgroups::default();
        let key = (PodUid::from(pod), "main".to_owned());
        let mut check = |expected: &[&String]| {
            let (found, candidates) = finder.find(&containers, &names, &processes);
            assert!(candidates.is_empty(), "its id is reported");
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
    fn stops_searching_for_ended_container() {
        let proc = tempfile::tempdir().expect("tempdir");
        let names = [((PodUid::from("u1"), "a".to_owned()), "main".to_owned())].into();
        let containers = [container("s", "u1", "main", &[])];
        let processes = Processes::at(proc.path());
        let mut finder = ContainerCgroups::default();
        for _ in 0..10 {
            finder.find(&containers, &names, &processes);
        }
        let tries: Vec<u32> = finder.known.values().map(|found| found.tries).collect();
        assert_eq!(tries, [MAX_TRIES]);
    }

    #[test]
    fn returns_candidate_cgroups_until_id_is_reported() {
        let proc = tempfile::tempdir().expect("tempdir");
        let pod = "0b7a6b5c-1f2e-4d3c-8b9a-0123456789ab";
        let other = "1b7a6b5c-1f2e-4d3c-8b9a-0123456789ab";
        let path = |pod: &str, id: &str| format!("/kubepods/pod{pod}/{}", id.repeat(64));
        for (pid, pod, id) in [("7", pod, "a"), ("8", pod, "b"), ("9", other, "c")] {
            let folder = proc.path().join(pid);
            fs::create_dir(&folder).expect("made");
            let text = format!("0::{}\n", path(pod, id));
            fs::write(folder.join("cgroup"), text).expect("written");
        }
        let processes = Processes::at(proc.path());
        let containers = [
            container("s0", pod, "main", &["GPU-a"]),
            container("s1", other, "left", &["GPU-a"]),
            container("s2", other, "right", &["GPU-a"]),
        ];
        let key = (PodUid::from(pod), "main".to_owned());
        let mut finder = ContainerCgroups::default();
        let none = BTreeMap::new();
        for _ in 0..MAX_UNNAMED_SAMPLES {
            let (named, candidates) = finder.find(&containers, &none, &processes);
            assert!(named.is_empty());
            // With two shares in a pod, a cgroup cannot be attributed.
            let both = [path(pod, "a"), path(pod, "b")].into();
            assert_eq!(candidates, [(key.clone(), both)].into());
        }
        let candidates = finder.find(&containers, &none, &processes).1;
        assert_eq!(candidates, Cgroups::new());
        let names = [((key.0.clone(), "a".repeat(64)), "main".to_owned())].into();
        let (found, candidates) = finder.find(&containers, &names, &processes);
        assert_eq!(found[&key], [path(pod, "a")].into());
        assert_eq!(candidates, Cgroups::new());
    }
}

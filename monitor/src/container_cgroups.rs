//! Finds the cgroups of containers with a share, before any of their processes has a GPU open. The
//! search through `/proc` for one container is bounded: it may have ended.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;
use aliquot_node_state::processes::Processes;

use crate::managed_containers::ManagedContainer;

/// Samples in which a container is searched for. The API server reports its id a second or two after
/// its start.
const MAX_SEARCHES: u32 = 20;

/// Cgroups of containers, by pod and name.
pub type Cgroups = BTreeMap<(PodUid, String), BTreeSet<String>>;

#[derive(Clone, Debug, Default)]
pub struct ContainerCgroups {
    /// By pod and the runtime's id.
    known: BTreeMap<(PodUid, String), String>,
    /// Samples in which a container was searched for, by pod and the runtime's id, or its name while
    /// the id is not reported.
    searches: BTreeMap<(PodUid, String), u32>,
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
        let mut shares: BTreeMap<&PodUid, BTreeSet<&str>> = BTreeMap::new();
        for container in containers {
            shares
                .entry(&container.pod)
                .or_default()
                .insert(&container.name);
        }
        let has_share = |pod: &PodUid, name: &str| {
            let of_pod = shares.get(pod);
            of_pod.is_some_and(|names| names.contains(name))
        };
        let managed: BTreeMap<_, _> = names
            .iter()
            .filter(|((pod, _), name)| has_share(pod, name))
            .collect();
        self.known.retain(|key, _| managed.contains_key(key));
        let with_id: BTreeSet<(&PodUid, &str)> = managed
            .iter()
            .map(|((pod, _), name)| (pod, name.as_str()))
            .collect();
        let without_cgroup = managed
            .keys()
            .filter(|key| !self.known.contains_key(**key))
            .map(|key| (*key).clone());
        let without_id = containers
            .iter()
            .filter(|one| {
                shares[&one.pod].len() == 1 && !with_id.contains(&(&one.pod, one.name.as_str()))
            })
            .map(|one| (one.pod.clone(), one.name.clone()));
        let mut searches = BTreeMap::new();
        for key in without_cgroup.chain(without_id) {
            let before = self.searches.get(&key).copied().unwrap_or(0);
            searches.insert(key, before.saturating_add(1));
        }
        self.searches = searches;
        let wanted: Vec<&(PodUid, String)> = self
            .searches
            .iter()
            .filter(|(_, samples)| **samples <= MAX_SEARCHES)
            .map(|(key, _)| key)
            .collect();
        let places = if wanted.is_empty() {
            BTreeMap::new()
        } else {
            processes.containers()
        };
        let mut candidates = Cgroups::new();
        for key in wanted {
            if !managed.contains_key(key) {
                let of_pod = places.iter().filter(|(place, _)| place.0 == key.0);
                let unnamed = of_pod.filter(|(place, _)| !names.contains_key(place));
                candidates.insert(key.clone(), unnamed.map(|(_, path)| path.clone()).collect());
            } else if let Some(cgroup) = places.get(key) {
                self.known.insert(key.clone(), cgroup.clone());
            }
        }
        let mut all = Cgroups::new();
        for (key, name) in managed {
            let own = all.entry((key.0.clone(), name.clone())).or_default();
            own.extend(self.known.get(key).cloned());
        }
        (all, candidates)
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
        let pod = "0b7a6b5c-1f2e-4d3c-8b9a-0123456789ab";
        let (id, key) = ("a".repeat(64), (PodUid::from(pod), "main".to_owned()));
        let names = [((key.0.clone(), id.clone()), key.1.clone())].into();
        let containers = [container("s", pod, "main", &[])];
        let processes = Processes::at(proc.path());
        let mut finder = ContainerCgroups::default();
        for _ in 0..MAX_SEARCHES {
            finder.find(&containers, &names, &processes);
        }
        fs::create_dir(proc.path().join("7")).expect("made");
        let text = format!("0::/kubepods/pod{pod}/{id}\n");
        fs::write(proc.path().join("7/cgroup"), text).expect("written");
        let (found, _) = finder.find(&containers, &names, &processes);
        assert_eq!(found, [(key, BTreeSet::new())].into());
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
        for _ in 0..MAX_SEARCHES {
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

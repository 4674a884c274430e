//! Finds the cgroups of containers with a share, before any of their processes has a GPU open. The
//! search through `/proc` for one container is bounded: it may have ended.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::PodUid;
use aliquot_node_state::processes::Processes;

use crate::managed_containers::ManagedContainer;

const MAX_SEARCHES: u32 = 20;

pub type Cgroups = BTreeMap<(PodUid, String), BTreeSet<String>>;

#[derive(Clone, Debug, Default)]
pub struct ContainerCgroups {
    /// By pod and the runtime's id.
    known: BTreeMap<(PodUid, String), String>,
    /// Samples in which a container was searched for.
    searches: BTreeMap<(PodUid, String), u32>,
}

impl ContainerCgroups {
    /// The cgroups of these containers; `names` are those of all containers, by pod and the runtime's
    /// id. Blocks.
    pub fn find(
        &mut self,
        containers: &[ManagedContainer],
        names: &BTreeMap<(PodUid, String), String>,
        processes: &Processes,
    ) -> Cgroups {
        let shares: BTreeSet<(&PodUid, &str)> = containers
            .iter()
            .map(|one| (&one.pod, one.name.as_str()))
            .collect();
        let managed: BTreeMap<_, _> = names
            .iter()
            .filter(|((pod, _), name)| shares.contains(&(pod, name.as_str())))
            .collect();
        self.known.retain(|key, _| managed.contains_key(key));
        self.searches.retain(|key, _| managed.contains_key(key));
        let mut places = None;
        for key in managed.keys().copied() {
            if self.known.contains_key(key) {
                continue;
            }
            let searches = self.searches.entry(key.clone()).or_default();
            if *searches == MAX_SEARCHES {
                continue;
            }
            *searches += 1;
            let places = places.get_or_insert_with(|| processes.containers());
            if let Some(cgroup) = places.get(key) {
                self.known.insert(key.clone(), cgroup.clone());
            }
        }
        let mut all = Cgroups::new();
        for (key, name) in managed {
            let own = all.entry((key.0.clone(), name.clone())).or_default();
            own.extend(self.known.get(key).cloned());
        }
        all
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
            let found = finder.find(&containers, &names, &processes);
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
        let found = finder.find(&containers, &names, &processes);
        assert_eq!(found, [(key, BTreeSet::new())].into());
    }
}

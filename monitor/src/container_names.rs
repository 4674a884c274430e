//! Names of containers by the runtime's ids, as the API server reported them. They are stored on
//! disk, so that a monitor that starts while the API server is unavailable can attribute processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_node_state::monitor_reports;
use aliquot_node_state::state::StateDirectory;

use crate::pods::Pod;

/// Name of each container, by pod and the runtime's id.
pub type NamesById = BTreeMap<(PodUid, String), String>;

#[derive(Debug)]
pub struct ContainerNames {
    file: PathBuf,
    known: NamesById,
    written: bool,
}

impl ContainerNames {
    /// Reads the names that an earlier monitor wrote below the agent's state directory.
    pub fn read(state: &Path) -> Self {
        let file = StateDirectory(state).container_names();
        let text = fs::read(&file).ok();
        let read = text.and_then(|text| serde_json::from_slice::<Vec<[String; 3]>>(&text).ok());
        let rows = read.unwrap_or_default().into_iter();
        let known = rows.map(|[pod, id, name]| ((pod.into(), id), name));
        Self {
            file,
            known: known.collect(),
            written: true,
        }
    }

    /// Adds the names that these pods report and returns those of pods with a share; `accepted` is
    /// `None` while the shares are not known. A name stays as long as its pod's share, even if the pod
    /// object is gone or the API server is unavailable.
    pub fn update(
        &mut self,
        accepted: Option<&BTreeSet<PodUid>>,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
    ) -> &NamesById {
        let has_share = |uid: &PodUid| accepted.is_none_or(|accepted| accepted.contains(uid));
        // Not written for this alone: the file may have names of pods that are gone, and the state
        // directory may be about to be removed.
        self.known.retain(|(pod, _), _| has_share(pod));
        for (uid, pod) in pods.iter().filter(|(uid, _)| has_share(uid)) {
            for (id, name) in &pod.containers {
                let key = (uid.clone(), id.clone());
                let earlier = self.known.insert(key, name.clone());
                self.written &= earlier.as_ref() == Some(name);
            }
        }
        &self.known
    }

    /// Removes earlier starts of containers: ids that their pod no longer reports and that had no
    /// process in the last sample (`with_processes`).
    pub fn prune(
        &mut self,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
        with_processes: &BTreeSet<(PodUid, String)>,
    ) {
        let before = self.known.len();
        self.known.retain(|key, _| {
            let (uid, id) = key;
            let reported = pods.get(uid).map(|pod| &pod.containers);
            let lives = reported.is_none_or(|all| all.is_empty() || all.contains_key(id));
            lives || with_processes.contains(key)
        });
        self.written &= self.known.len() == before;
    }

    pub fn write(&mut self) -> io::Result<()> {
        if self.written {
            return Ok(());
        }
        let names = self.known.iter();
        let rows: Vec<[&str; 3]> = names
            .map(|((pod, id), name)| [pod.as_str(), id, name])
            .collect();
        monitor_reports::write(&self.file, &rows)?;
        self.written = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{pod, state_directory};

    fn set(uids: &[&str]) -> BTreeSet<PodUid> {
        uids.iter().map(|uid| PodUid::from(*uid)).collect()
    }

    #[test]
    fn knows_containers_after_start_without_api_server() {
        let dir = state_directory();
        let pods = [("u1", "aa"), ("u2", "bb"), ("u3", "cc")]
            .map(|(uid, id)| (uid.into(), Arc::new(pod(uid, &[(id, "main")]))))
            .into();
        let mut first = ContainerNames::read(dir.path());
        assert_eq!(first.update(Some(&set(&["u1", "u2"])), &pods).len(), 2);
        first.write().expect("written");
        // The API server and the list of shares are unavailable, then a share is gone.
        let mut next = ContainerNames::read(dir.path());
        assert_eq!(next.update(None, &BTreeMap::new()).len(), 2);
        let left = next.update(Some(&set(&["u1"])), &pods).clone();
        assert_eq!(
            left,
            [(("u1".into(), "aa".to_owned()), "main".to_owned())].into()
        );
        let file = StateDirectory(dir.path()).container_names();
        fs::remove_file(&file).expect("it was written");
        next.write().expect("nothing to write");
        assert!(!file.exists(), "nothing changed, or the agent was removed");
        fs::write(file, "[[").expect("written");
        assert_eq!(
            ContainerNames::read(dir.path()).known.len(),
            0,
            "half a file"
        );
    }

    #[test]
    fn prunes_names_of_earlier_container_starts() {
        let dir = state_directory();
        let mut names = ContainerNames::read(dir.path());
        let accepted = set(&["u1"]);
        let mut most = 0;
        let mut last = BTreeMap::new();
        for start in 0..100 {
            let id = start.to_string();
            let now = Arc::new(pod("u1", &[(&id, "main")]));
            last = [("u1".into(), now)].into();
            // The previous start is still exiting.
            let before = ("u1".into(), (start - 1).to_string());
            names.prune(&last, &[before].into());
            most = most.max(names.update(Some(&accepted), &last).len());
        }
        assert_eq!(most, 2);
        names.prune(&BTreeMap::new(), &BTreeSet::new());
        names.prune(
            &[("u1".into(), Arc::new(pod("u1", &[])))].into(),
            &BTreeSet::new(),
        );
        assert_eq!(names.update(Some(&accepted), &last).len(), 2, "no report");
        names.prune(&last, &BTreeSet::new());
        assert_eq!(names.update(Some(&accepted), &last).len(), 1);
    }
}

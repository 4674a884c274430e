//! Names of containers by the runtime's ids, as the API server told them: kept on disk, so that a
//! monitor that starts while the API server is away knows whose the processes of its node are.
//!
//! Fed by: this node's pods, the list of accepted shares. Must not: forget the name of a container
//! whose share is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::PodUid;

use crate::act::put;
use crate::pods::Pod;

/// Below the agent's state directory.
const FILE: &str = "containers.json";

/// Name of each container, by pod and the runtime's id.
pub type Containers = BTreeMap<(PodUid, String), String>;

/// All that were told.
#[derive(Debug)]
pub struct Names {
    file: PathBuf,
    known: Containers,
    /// The file says the same.
    written: bool,
}

impl Names {
    /// Those that an earlier monitor wrote below the agent's state directory.
    pub fn of(state: &Path) -> Self {
        let file = state.join(FILE);
        let text = fs::read(&file).ok();
        let rows = text.and_then(|text| serde_json::from_slice::<Vec<[String; 3]>>(&text).ok());
        let rows = rows.unwrap_or_default().into_iter();
        let known = rows.map(|[pod, id, name]| ((pod.into(), id), name));
        Self {
            file,
            known: known.collect(),
            written: true,
        }
    }

    /// Those of pods with a share, with what these pods say; `accepted` is `None` while it is not
    /// known who has one. Who was told of a container knows it for as long as its share is there,
    /// whether its pod's object is gone or the API server away.
    pub fn take(
        &mut self,
        accepted: Option<&BTreeSet<PodUid>>,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
    ) -> &Containers {
        let has_share = |uid: &PodUid| accepted.is_none_or(|accepted| accepted.contains(uid));
        // Who is gone may stand in the file: nothing is written for that, least of all while the
        // agent leaves the node and its folder goes.
        self.known.retain(|(pod, _), _| has_share(pod));
        for (uid, pod) in pods.iter().filter(|(uid, _)| has_share(uid)) {
            for (id, name) in &pod.containers {
                let key = (uid.clone(), id.clone());
                let told = self.known.insert(key, name.clone());
                self.written &= told.as_ref() == Some(name);
            }
        }
        &self.known
    }

    /// Forgets starts that ended: of a pod that tells of its containers all that it does not tell of
    /// and that had no process at the last look (`seen`).
    pub fn prune(&mut self, pods: &BTreeMap<PodUid, Arc<Pod>>, seen: &BTreeSet<(PodUid, String)>) {
        let before = self.known.len();
        self.known.retain(|key, _| {
            let (uid, id) = key;
            let told = pods.get(uid).map(|pod| &pod.containers);
            let lives = told.is_none_or(|told| told.is_empty() || told.contains_key(id));
            lives || seen.contains(key)
        });
        self.written &= self.known.len() == before;
    }

    /// Writes them for the next monitor, if they changed.
    pub fn keep(&mut self) -> io::Result<()> {
        if self.written {
            return Ok(());
        }
        let rows = self.known.iter();
        let rows: Vec<[&str; 3]> = rows
            .map(|((pod, id), name)| [pod.as_str(), id, name])
            .collect();
        let text = serde_json::to_vec(&rows).map_err(io::Error::other)?;
        put(&self.file, &text)?;
        self.written = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn set(uids: &[&str]) -> BTreeSet<PodUid> {
        uids.iter().map(|uid| PodUid::from(*uid)).collect()
    }

    #[test]
    fn a_monitor_that_started_without_the_api_server_knew_no_container() {
        let room = tempfile::tempdir().expect("tempdir");
        let pods = [("u1", "aa"), ("u2", "bb"), ("u3", "cc")]
            .map(|(uid, id)| (uid.into(), Arc::new(pod(uid, &[(id, "main")]))))
            .into();
        let mut first = Names::of(room.path());
        assert_eq!(first.take(Some(&set(&["u1", "u2"])), &pods).len(), 2);
        first.keep().expect("written");
        // The API server is away, the list of shares too for a moment, and a pod went.
        let mut next = Names::of(room.path());
        assert_eq!(next.take(None, &BTreeMap::new()).len(), 2);
        let left = next.take(Some(&set(&["u1"])), &BTreeMap::new()).clone();
        assert_eq!(
            left,
            [(("u1".into(), "aa".to_owned()), "main".to_owned())].into()
        );
        fs::remove_file(room.path().join(FILE)).expect("it was written");
        next.keep().expect("nothing to write");
        assert!(!room.path().join(FILE).exists(), "the agent left the node");
    }

    #[test]
    fn what_stands_there_is_not_written_again() {
        let room = tempfile::tempdir().expect("tempdir");
        let pods = [("u1".into(), Arc::new(pod("u1", &[("aa", "main")])))].into();
        let mut names = Names::of(room.path());
        names.take(Some(&set(&["u1"])), &pods);
        names.keep().expect("written");
        fs::remove_file(room.path().join(FILE)).expect("removed");
        names.take(Some(&set(&["u1"])), &pods);
        names.keep().expect("nothing to write");
        assert!(!room.path().join(FILE).exists());
        fs::write(room.path().join(FILE), "[[").expect("written");
        assert_eq!(Names::of(room.path()).known.len(), 0, "half a file");
    }

    #[test]
    fn every_start_of_a_container_was_kept_as_long_as_its_share() {
        let room = tempfile::tempdir().expect("tempdir");
        let mut names = Names::of(room.path());
        let accepted = set(&["u1"]);
        let mut most = 0;
        let mut last = BTreeMap::new();
        for start in 0..100 {
            let id = start.to_string();
            let now = Arc::new(pod("u1", &[(&id, "main")]));
            last = [("u1".into(), now)].into();
            // The one before it is on its way out, or a pod tells of nothing for a moment.
            let before = ("u1".into(), (start - 1).to_string());
            names.prune(&last, &[before].into());
            most = most.max(names.take(Some(&accepted), &last).len());
        }
        assert_eq!(most, 2);
        names.prune(&BTreeMap::new(), &BTreeSet::new());
        names.prune(
            &[("u1".into(), Arc::new(pod("u1", &[])))].into(),
            &BTreeSet::new(),
        );
        assert_eq!(names.take(Some(&accepted), &last).len(), 2, "nobody told");
        names.prune(&last, &BTreeSet::new());
        assert_eq!(names.take(Some(&accepted), &last).len(), 1);
    }
}

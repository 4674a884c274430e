//! What the monitor reports to the agent, which publishes it for the node: GPUs of which the driver
//! does not report everything, and pods to evict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use aliquot_core::PodUid;
use aliquot_core::inventory::RefusedPod;
use aliquot_node_state::monitor_reports::{self, EVICTION_RENEWAL};
use aliquot_node_state::state::StateDirectory;

use crate::pods::Pods;

/// A file and what it contains: a list of UUIDs.
#[derive(Debug)]
pub struct GpuListReport {
    path: PathBuf,
    written: Option<BTreeSet<String>>,
}

impl GpuListReport {
    /// The GPUs on which compute shares are not corrected, in the agent's state directory.
    pub fn uncorrected(state: &Path) -> Self {
        Self::at(StateDirectory(state).uncorrected())
    }

    /// The GPUs with processes whose memory the driver does not report.
    pub fn unmeasured(state: &Path) -> Self {
        Self::at(StateDirectory(state).unmeasured())
    }

    fn at(path: PathBuf) -> Self {
        Self {
            path,
            written: None,
        }
    }

    /// Writes the GPUs of a sample, unless the file has them; for those that the sample says nothing
    /// about (`unknown`), nothing changes. Blocks.
    pub fn write(&mut self, gpus: &BTreeSet<String>, unknown: &BTreeSet<String>) {
        let known = self.written.iter().flatten();
        let gpus: BTreeSet<String> = known
            .filter(|gpu| unknown.contains(*gpu))
            .chain(gpus)
            .cloned()
            .collect();
        if self.written.as_ref() == Some(&gpus) {
            return;
        }
        match monitor_reports::write(&self.path, &gpus) {
            Ok(()) => self.written = Some(gpus),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "cannot write a list of GPUs for the agent; retrying at the next sample");
            }
        }
    }
}

/// Requests of evictions; the scheduler evicts the pods.
#[derive(Debug)]
pub struct EvictionRequests {
    path: PathBuf,
    requested: BTreeMap<PodUid, RefusedPod>,
    /// When the file was last written; `None` if it is out of date, as at the start, when it may have
    /// the requests of an earlier monitor.
    written: Option<Instant>,
}

impl EvictionRequests {
    /// None, for the agent with this state directory.
    pub fn new(state: &Path) -> Self {
        Self {
            path: StateDirectory(state).evictions(),
            requested: BTreeMap::new(),
            written: None,
        }
    }

    /// Adds a request; whether there was none for this pod.
    pub fn add(&mut self, uid: &PodUid, pod: RefusedPod) -> bool {
        let is_new = self.requested.insert(uid.clone(), pod).is_none();
        if is_new {
            self.written = None;
        }
        is_new
    }

    /// Drops the requests of pods that are gone, and writes the others if they changed. Renews them
    /// while there are any: the agent drops requests that are not renewed. Blocks.
    pub fn write(&mut self, pods: &Pods) {
        let before = self.requested.len();
        self.requested.retain(|uid, _| pods.get(uid).is_some());
        if self.requested.len() != before {
            self.written = None;
        }
        let is_due =
            |then: Instant| !self.requested.is_empty() && then.elapsed() > EVICTION_RENEWAL;
        if self.written.is_some_and(|then| !is_due(then)) {
            return;
        }
        let requested: Vec<&RefusedPod> = self.requested.values().collect();
        match monitor_reports::write(&self.path, &requested) {
            Ok(()) => self.written = Some(Instant::now()),
            Err(error) => tracing::warn!(%error, "cannot write the eviction requests"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use aliquot_k8s::watch::Index as _;
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_uncorrected_gpus_when_they_change() {
        let dir = tempfile::tempdir().expect("tempdir");
        let state = dir.path().join("state");
        let mut report = GpuListReport::uncorrected(&state);
        let (none, gpus) = (BTreeSet::new(), BTreeSet::from(["GPU-a".to_owned()]));
        report.write(&gpus, &none);
        fs::create_dir_all(state.join("accepted")).expect("made");
        let file = state.join("uncorrected.json");
        let written = || fs::read_to_string(&file).expect("written");
        report.write(&gpus, &none);
        assert_eq!(written(), r#"["GPU-a"]"#);
        fs::remove_file(&file).expect("removed");
        report.write(&gpus, &none);
        report.write(&none, &gpus);
        assert!(!file.exists(), "nothing has changed");
        report.write(&none, &none);
        assert_eq!(written(), "[]");
    }

    #[test]
    fn retries_writing_eviction_requests() {
        let dir = tempfile::tempdir().expect("tempdir");
        let state = dir.path().join("state");
        let pods = Pods::default();
        let pod = json!({"metadata": {"uid": "u1", "name": "p"}, "spec": {"containers": []}});
        pods.apply(serde_json::from_value(pod).expect("a pod"));
        let mut requests = EvictionRequests::new(&state);
        let refused = RefusedPod {
            pod: "u1".into(),
            namespace: "d".to_owned(),
            name: "p".to_owned(),
            reason: "r".to_owned(),
        };
        assert!(requests.add(&"u1".into(), refused));
        requests.write(&pods);
        assert_eq!(requests.written, None, "there is no folder");
        fs::create_dir_all(state.join("accepted")).expect("made");
        requests.write(&pods);
        let file = state.join("evict.json");
        assert!(fs::read_to_string(&file).expect("read").contains("u1"));
        // The file is up to date, and not written in every sample.
        fs::remove_file(&file).expect("removed");
        requests.write(&pods);
        assert!(!file.exists());
        requests.written = Instant::now().checked_sub(EVICTION_RENEWAL * 2);
        requests.write(&pods);
        assert!(file.exists(), "asked for again");
        // The next monitor begins without them.
        EvictionRequests::new(&state).write(&pods);
        assert_eq!(fs::read_to_string(file).expect("read"), "[]");
    }
}

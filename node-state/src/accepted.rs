//! Accepted allocations: what was decided at a pod's first container start. The agent stores one for
//! each pod, and the monitor reads them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use aliquot_core::inventory::Mode;
use aliquot_core::usage::{self, DeviceUses, Stage};
use aliquot_core::{Allocation, GpuUuid, Mib, PodUid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::container_directory::ContainerDirectory;
use crate::device_id::AnswerName;
use crate::limits::EffectiveLimits;

/// The version that this release writes and reads.
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedContainer {
    pub name: String,
    pub stage: Stage,
    /// Its limits besides its grants.
    pub effective: EffectiveLimits,
}

/// A name under which files were written for a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerName {
    pub name: String,
    pub container: String,
}

/// What a pod was accepted with, in a file of the state directory's `accepted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedAllocation {
    pub v: u32,
    /// The pod, by the kubelet's uid.
    pub pod: PodUid,
    pub namespace: String,
    #[serde(rename = "name")]
    pub pod_name: String,
    pub allocation: Allocation,
    pub containers: Vec<AcceptedContainer>,
    /// In the order in which they were recorded: a container runs in its last directory, whatever
    /// the clock was when each was created.
    pub names: Vec<ContainerName>,
    /// Derived from the other fields on first use.
    #[serde(skip)]
    uses: CachedUses,
    /// The sharing mode of each device at acceptance; a device that is missing here was vgpu.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<GpuUuid, Mode>,
    /// How much memory each device advertised at acceptance, where that was more than it has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub promised: BTreeMap<GpuUuid, Mib>,
    /// The number of the last resize that is in the allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u64>,
}

/// Derived from the other fields, and therefore ignored by equality.
#[derive(Clone, Debug, Default)]
struct CachedUses(OnceLock<DeviceUses>);

impl PartialEq for CachedUses {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CachedUses {}

impl AcceptedAllocation {
    /// An accepted allocation without any files yet.
    pub fn new(
        pod: PodUid,
        namespace: String,
        pod_name: String,
        allocation: Allocation,
        containers: Vec<AcceptedContainer>,
    ) -> Self {
        Self {
            v: VERSION,
            pod,
            namespace,
            pod_name,
            allocation,
            containers,
            names: Vec::new(),
            uses: CachedUses::default(),
            modes: BTreeMap::new(),
            promised: BTreeMap::new(),
            resize: None,
        }
    }

    /// The same with another share of its devices, by the resize of this number.
    #[must_use]
    pub fn resized(&self, allocation: Allocation, generation: u64) -> Self {
        Self {
            allocation,
            resize: Some(generation),
            uses: CachedUses::default(),
            ..self.clone()
        }
    }

    /// Each container with the directory in `folder` in which it runs, and the name of that. One that
    /// was prepared again, as after a reboot, runs in its last directory. Of the names that it got at
    /// once, for several resources, only the first has a directory.
    pub fn running_directories(&self, folder: &Path) -> BTreeMap<&str, (&str, ContainerDirectory)> {
        let all = self.names.iter().map(|one| {
            let directory = ContainerDirectory::new(folder.join(&one.name));
            (one.container.as_str(), (one.name.as_str(), directory))
        });
        all.filter(|(_, (_, directory))| directory.path().is_dir())
            .collect()
    }

    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Reads the content of a file. `None`: it was written just before a power cut and is empty
    /// since; its pod is validated again.
    pub fn decode(content: &[u8]) -> Result<Option<Self>, DecodeError> {
        if content.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let accepted: Self = serde_json::from_slice(content)?;
        match accepted.v {
            VERSION => Ok(Some(accepted)),
            other => Err(DecodeError::Version(other)),
        }
    }

    /// The sharing mode of a device when the pod was accepted.
    pub fn mode(&self, gpu: &GpuUuid) -> Mode {
        self.modes.get(gpu).copied().unwrap_or(Mode::Vgpu)
    }

    pub fn uses(&self) -> &DeviceUses {
        self.uses.0.get_or_init(|| {
            let stages = self.containers.iter().map(|c| (c.name.as_str(), c.stage));
            usage::effective(&self.allocation, stages)
        })
    }

    /// Records a name under which files are written for a container.
    pub fn record_name(&mut self, name: &AnswerName, container: &str) {
        if !self.has_name(name) {
            self.names.push(ContainerName {
                name: name.as_str().to_owned(),
                container: container.to_owned(),
            });
        }
    }

    pub fn has_name(&self, name: &AnswerName) -> bool {
        self.names.iter().any(|one| one.name == name.as_str())
    }

    /// The limits of this container; `None` when the pod has no such container.
    pub fn effective(&self, container: &str) -> Option<EffectiveLimits> {
        let found = self.containers.iter().find(|c| c.name == container);
        found.map(|c| c.effective)
    }
}

#[derive(Debug, Error)]
pub enum DecodeError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it has version {0}; expected: {VERSION}")]
    Version(u32),
}

pub fn file_name(pod: &PodUid) -> String {
    format!("{pod}.json")
}

/// The pod of a file; `None` for the name of another file.
pub fn pod_of_file(name: &str) -> Option<PodUid> {
    name.strip_suffix(".json").map(PodUid::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::UtilizationPolicy;

    const GOLDEN: &str = include_str!("accepted.golden.json");

    #[test]
    fn writes_accepted_file_that_monitor_reads() {
        let read = AcceptedAllocation::decode(GOLDEN.as_bytes());
        let accepted = read.expect("readable").expect("not empty");
        let text = accepted.encode().expect("json");
        assert_eq!(std::str::from_utf8(&text), Ok(GOLDEN.trim_end()));
        let containers = accepted
            .containers
            .iter()
            .map(|one| (&*one.name, one.stage));
        let expected = [("i", Stage::Init), ("main", Stage::App)];
        assert_eq!(containers.collect::<Vec<_>>(), expected);
        let effective = accepted.effective("main").expect("known");
        assert_eq!(effective.utilization, UtilizationPolicy::Force);
        assert_eq!(accepted.modes, [("GPU-a".into(), Mode::Mps)].into());
        // The init container and the other do not run at once.
        let used = accepted.uses().get(&"GPU-a".into()).unwrap();
        assert_eq!((used.replicas, used.memory.0, used.cores.0), (1, 50, 5));
        // Each name is recorded once.
        let mut anew = accepted.clone();
        anew.names.clear();
        for (name, container) in [
            ("GPU-a-0-1", "i"),
            ("GPU-a-1-2", "main"),
            ("GPU-a-0-1", "i"),
        ] {
            anew.record_name(&AnswerName::parse(name).expect("a name"), container);
        }
        assert_eq!(anew, accepted);
    }

    /// The kubelet lists the names of several resources in any order.
    #[test]
    fn container_runs_in_its_last_directory_not_its_last_name() {
        let folder = tempfile::tempdir().expect("tempdir");
        let read = AcceptedAllocation::decode(GOLDEN.as_bytes());
        let mut accepted = read.expect("readable").expect("not empty");
        accepted.names.clear();
        let mut check = |names: &[&str], directory: &str| {
            for name in names {
                accepted.record_name(&AnswerName::parse(name).expect("a name"), "main");
            }
            std::fs::create_dir(folder.path().join(directory)).expect("made");
            let place = ContainerDirectory::new(folder.path().join(directory));
            let expected = BTreeMap::from([("main", (directory, place))]);
            assert_eq!(accepted.running_directories(folder.path()), expected);
        };
        check(&["a-first", "a-further"], "a-first");
        check(&["b-further", "b-first"], "b-first");
    }

    #[test]
    fn rejects_accepted_allocation_of_other_version() {
        let other = GOLDEN.replace("\"v\":1,\"pod\"", "\"v\":9,\"pod\"");
        let error = AcceptedAllocation::decode(other.as_bytes()).expect_err("of another release");
        assert_eq!(error.to_string(), "it has version 9; expected: 1");
        let empty = AcceptedAllocation::decode(&[0; 9]);
        assert_eq!(empty.expect("emptied by a power cut"), None);
    }
}

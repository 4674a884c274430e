//! Accepted allocations: what was decided at a pod's first `PreStartContainer`, stored on disk for
//! its later ones until [`crate::collect`] finds that neither the pod nor the kubelet needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use aliquot_core::demand::Stage;
use aliquot_core::inventory::Mode;
use aliquot_core::usage::{self, DeviceUses};
use aliquot_core::{Allocation, GpuUuid, Mib, PodUid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device_id::AnswerName;
use crate::environment::EffectiveLimits;
use crate::files::{self, FileError};

/// The version that this release writes and reads.
const VERSION: u32 = 1;

/// One container of an accepted pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedContainer {
    /// Its name.
    pub name: String,
    /// When it runs.
    #[serde(with = "stage")]
    pub stage: Stage,
    /// Its limits besides its grants.
    pub effective: EffectiveLimits,
}

/// What a pod was accepted with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedAllocation {
    /// Version of this format.
    pub v: u32,
    /// The pod, by the kubelet's uid.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    #[serde(rename = "name")]
    pub pod_name: String,
    /// Its devices and limits.
    pub allocation: Allocation,
    /// Its containers in pod order.
    pub containers: Vec<AcceptedContainer>,
    /// The names under which files were written for it.
    pub names: BTreeSet<String>,
    /// The container of each name; earlier releases did not record it.
    #[serde(default, rename = "seats", skip_serializing_if = "BTreeMap::is_empty")]
    pub containers_by_name: BTreeMap<String, String>,
    /// In which order the names were recorded: a container runs in its last directory, whatever the
    /// clock was when each was created.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub order: BTreeMap<String, u64>,
    /// Derived from the other fields on first use.
    #[serde(skip)]
    uses: CachedUses,
    /// The sharing mode of each device at acceptance; a device that is missing here was vgpu.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<GpuUuid, Mode>,
    /// How much memory each device advertised at acceptance, where that was more than it has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub promised: BTreeMap<GpuUuid, Mib>,
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
            names: BTreeSet::new(),
            containers_by_name: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: CachedUses::default(),
            modes: BTreeMap::new(),
            promised: BTreeMap::new(),
        }
    }

    /// Stores it. It survives the end of this process at once and a power cut soon after; one that
    /// a power cut emptied is validated again from the pod's annotation when its containers start
    /// again. `empty` as in [`files::put_reusing`].
    pub fn store(&self, directory: &Path, empty: Option<PathBuf>) -> Result<(), StoreError> {
        let text = serde_json::to_vec(self).map_err(|source| StoreError::Encode {
            pod: self.pod.clone(),
            source,
        })?;
        files::put_reusing(empty, &path(directory, &self.pod), &text)?;
        Ok(())
    }

    /// The sharing mode of a device when the pod was accepted.
    pub fn mode(&self, gpu: &GpuUuid) -> Mode {
        self.modes.get(gpu).copied().unwrap_or(Mode::Vgpu)
    }

    /// The pod's effective use of each device.
    pub fn uses(&self) -> &DeviceUses {
        self.uses.0.get_or_init(|| {
            let stages = self.containers.iter().map(|c| (c.name.as_str(), c.stage));
            usage::effective(&self.allocation, stages)
        })
    }

    /// Records a name under which files are written for a container.
    pub fn record_name(&mut self, name: &AnswerName, container: &str) {
        self.names.insert(name.as_str().to_owned());
        let entry = (name.as_str().to_owned(), container.to_owned());
        self.containers_by_name.extend([entry]);
        let last = self.order.values().max().copied().unwrap_or(0);
        self.order
            .entry(name.as_str().to_owned())
            .or_insert(last + 1);
    }

    /// The limits of this container; `None` when the pod has no such container.
    pub fn effective(&self, container: &str) -> Option<EffectiveLimits> {
        let found = self.containers.iter().find(|c| c.name == container);
        found.map(|c| c.effective)
    }
}

/// Why the store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// An accepted allocation cannot be written as JSON.
    #[error("cannot encode the accepted allocation of pod {pod}: {source}")]
    Encode {
        /// The pod.
        pod: PodUid,
        /// What serde found.
        source: serde_json::Error,
    },
}

/// The accepted allocations of this node, in memory and on disk alike.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    shares: BTreeMap<PodUid, Arc<AcceptedAllocation>>,
    damaged: BTreeMap<PodUid, String>,
}

impl Store {
    /// Reads `directory`, and creates it where it is missing. A file that cannot be read does not
    /// affect the others: its pod is among [`Self::damaged`].
    pub fn open(directory: PathBuf) -> Result<Self, StoreError> {
        files::directory(&directory, 0o700)?;
        let mut store = Self {
            directory,
            shares: BTreeMap::new(),
            damaged: BTreeMap::new(),
        };
        for name in files::names(&store.directory)? {
            let Some(pod) = name.strip_suffix(".json").map(PodUid::from) else {
                continue;
            };
            let path = store.directory.join(&name);
            match load(&path, &pod) {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    store.shares.insert(pod, Arc::new(accepted));
                }
                Err(why) => {
                    let path = path.display();
                    tracing::error!(%path, why, "cannot read the accepted allocation; its pod counts with its annotation, or blocks new starts if that cannot be read either");
                    store.damaged.insert(pod, why);
                }
            }
        }
        Ok(store)
    }

    /// All accepted pods, including those whose file is damaged.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.shares.keys().chain(self.damaged.keys())
    }

    /// Pods whose accepted allocation cannot be read, and why.
    pub fn damaged(&self) -> &BTreeMap<PodUid, String> {
        &self.damaged
    }

    /// The accepted allocation of a pod.
    pub fn get(&self, pod: &PodUid) -> Option<&Arc<AcceptedAllocation>> {
        self.shares.get(pod)
    }

    /// All accepted allocations, by uid.
    pub fn all(&self) -> impl Iterator<Item = &AcceptedAllocation> {
        self.shares.values().map(|share| &**share)
    }

    /// The same, as shared references.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<AcceptedAllocation>> {
        self.shares.values()
    }

    /// Stores an accepted allocation.
    pub fn put(&mut self, accepted: AcceptedAllocation) -> Result<(), StoreError> {
        accepted.store(&self.directory, None)?;
        let accepted = self.insert_unstored(accepted);
        self.damaged.remove(&accepted.pod);
        Ok(())
    }

    /// Counts an allocation whose file is about to be written ([`AcceptedAllocation::store`]);
    /// [`Self::finish_store`] must follow.
    pub fn insert_unstored(&mut self, accepted: AcceptedAllocation) -> Arc<AcceptedAllocation> {
        let accepted = Arc::new(accepted);
        let pod = accepted.pod.clone();
        self.shares.insert(pod, Arc::clone(&accepted));
        accepted
    }

    /// Its file was written, or could not be, in which case it does not count.
    pub fn finish_store(&mut self, pod: &PodUid, stored: bool) {
        if stored {
            self.damaged.remove(pod);
        } else {
            self.shares.remove(pod);
        }
    }

    /// Records the names under which files are about to be written for a pod's containers, so that
    /// a crash leaves no file without an owner, and the monitor knows whose they are.
    pub fn record_names<'a>(
        &mut self,
        pod: &PodUid,
        names: impl IntoIterator<Item = (&'a AnswerName, &'a str)>,
    ) -> Result<(), StoreError> {
        let Some(accepted) = self.shares.get(pod) else {
            return Ok(());
        };
        let mut next = AcceptedAllocation::clone(accepted);
        for (name, container) in names {
            next.record_name(name, container);
        }
        if next == **accepted {
            return Ok(());
        }
        self.put(next)
    }

    /// Removes a pod's accepted allocation.
    pub fn remove(&mut self, pod: &PodUid) -> Result<(), StoreError> {
        files::remove(&path(&self.directory, pod))?;
        self.shares.remove(pod);
        self.damaged.remove(pod);
        Ok(())
    }
}

fn path(directory: &Path, pod: &PodUid) -> PathBuf {
    directory.join(format!("{pod}.json"))
}

/// `None`: the file was written just before a power cut and is empty since. The error is a text for
/// the log.
fn load(path: &Path, pod: &PodUid) -> Result<Option<AcceptedAllocation>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    if bytes.iter().all(|byte| *byte == 0) {
        tracing::warn!(path = %path.display(), "the accepted allocation is empty; its pod is validated again");
        return Ok(None);
    }
    let accepted: AcceptedAllocation =
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if accepted.v != VERSION {
        let found = accepted.v;
        return Err(format!("it has version {found}; expected: {VERSION}"));
    }
    if accepted.pod != *pod {
        return Err(format!("it belongs to pod {}", accepted.pod));
    }
    Ok(Some(accepted))
}

/// [`Stage`] in JSON.
mod stage {
    use super::Stage;
    use serde::{Deserialize, Deserializer, Serializer, de};

    const WORDS: [(&str, Stage); 3] = [
        ("init", Stage::Init),
        ("sidecar", Stage::Sidecar),
        ("app", Stage::App),
    ];

    // serde's `with` passes the field by reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn serialize<S: Serializer>(stage: &Stage, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match stage {
            Stage::Init => "init",
            Stage::Sidecar => "sidecar",
            Stage::App => "app",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Stage, D::Error> {
        let word = String::deserialize(from)?;
        let found = WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, stage)| *stage).ok_or_else(|| {
            de::Error::custom(format!("stage {word:?}; expected: init, sidecar or app"))
        })
    }
}

#[cfg(test)]
#[path = "accepted_tests.rs"]
mod tests;

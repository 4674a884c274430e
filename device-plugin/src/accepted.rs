//! Accepted shares: what was decided at a pod's first `PreStartContainer`, kept
//! on disk for all its later ones.
//!
//! Fed by: [`crate::judge`]. Must not: be judged again, or be removed before the
//! pod and its checkpoint entry are gone ([`crate::collect`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use aliquot_core::demand::Stage;
use aliquot_core::inventory::Mode;
use aliquot_core::usage::{self, Uses};
use aliquot_core::{Allocation, GpuUuid, Mib, PodUid};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::environment::Effective;
use crate::files::{self, FileError};
use crate::seat::Name;

/// The version that this release writes and reads.
const VERSION: u32 = 1;

/// One container of an accepted pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// When it runs.
    #[serde(with = "stage")]
    pub stage: Stage,
    /// What holds for it besides its grants.
    pub effective: Effective,
}

/// A pod's accepted share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Version of this text.
    pub v: u32,
    /// The pod, by the kubelet's uid.
    pub pod: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    #[serde(rename = "name")]
    pub pod_name: String,
    /// What it was given.
    pub allocation: Allocation,
    /// Its containers in pod order.
    pub containers: Vec<Container>,
    /// The names under which files were written for it.
    pub names: BTreeSet<String>,
    /// The container of each name; an earlier release did not note it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub seats: BTreeMap<String, String>,
    /// In which order the names were noted: a container runs in its last seat, whatever the clock
    /// said when each was made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub order: BTreeMap<String, u64>,
    /// What follows from these, once somebody asked.
    #[serde(skip)]
    uses: Known,
    /// The mode of each of its units when it was accepted; one that is not here was vgpu.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<GpuUuid, Mode>,
    /// What each of its units promised then, where that was more than it has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub promised: BTreeMap<GpuUuid, Mib>,
}

/// A value that follows from the others, so that it says nothing of whether two are equal.
#[derive(Clone, Debug, Default)]
struct Known(OnceLock<Uses>);

impl PartialEq for Known {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Known {}

impl Accepted {
    /// A share without any files yet.
    pub fn new(
        pod: PodUid,
        namespace: String,
        pod_name: String,
        allocation: Allocation,
        containers: Vec<Container>,
    ) -> Self {
        Self {
            v: VERSION,
            pod,
            namespace,
            pod_name,
            allocation,
            containers,
            names: BTreeSet::new(),
            seats: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: Known::default(),
            modes: BTreeMap::new(),
            promised: BTreeMap::new(),
        }
    }

    /// Stores it. It outlives this process at once and a power cut soon; one that a power cut
    /// took is judged again from the pod's annotation, as its containers start again.
    /// Through `blank` as [`files::put_by`] says.
    pub fn store(&self, directory: &Path, blank: Option<PathBuf>) -> Result<(), StoreError> {
        let text = serde_json::to_vec(self).map_err(|source| StoreError::Encode {
            pod: self.pod.clone(),
            source,
        })?;
        files::put_by(blank, &path(directory, &self.pod), &text)?;
        Ok(())
    }

    /// The mode of a unit when the pod was accepted.
    pub fn mode(&self, gpu: &GpuUuid) -> Mode {
        self.modes.get(gpu).copied().unwrap_or(Mode::Vgpu)
    }

    /// The pod's effective use of each card.
    pub fn uses(&self) -> &Uses {
        self.uses.0.get_or_init(|| {
            let stages = self.containers.iter().map(|c| (c.name.as_str(), c.stage));
            usage::effective(&self.allocation, stages)
        })
    }

    /// Notes a name under which files are written for a container.
    pub fn note(&mut self, name: &Name, container: &str) {
        self.names.insert(name.as_str().to_owned());
        let seat = (name.as_str().to_owned(), container.to_owned());
        self.seats.extend([seat]);
        let last = self.order.values().max().copied().unwrap_or(0);
        self.order
            .entry(name.as_str().to_owned())
            .or_insert(last + 1);
    }

    /// What holds for this container; `None` when the pod has no such container.
    pub fn effective(&self, container: &str) -> Option<Effective> {
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
    /// A share that cannot be written as JSON.
    #[error("cannot encode the accepted share of pod {pod}: {source}")]
    Encode {
        /// The pod.
        pod: PodUid,
        /// What serde found.
        source: serde_json::Error,
    },
}

/// The accepted shares of this node, in memory and on disk alike.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    shares: BTreeMap<PodUid, Arc<Accepted>>,
    damaged: BTreeMap<PodUid, String>,
}

impl Store {
    /// Reads what is in `directory`, making it where it is missing. A share that cannot be read
    /// back stops nobody else's: it is among [`Self::damaged`].
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
                    tracing::error!(%path, why, "an accepted share cannot be read back: its pod counts with what its annotation says, or with everything");
                    store.damaged.insert(pod, why);
                }
            }
        }
        Ok(store)
    }

    /// All pods that were accepted.
    pub fn known(&self) -> impl Iterator<Item = &PodUid> {
        self.shares.keys().chain(self.damaged.keys())
    }

    /// Pods whose share cannot be read back, and why. What they hold is not known from here.
    pub fn damaged(&self) -> &BTreeMap<PodUid, String> {
        &self.damaged
    }

    /// The share of a pod.
    pub fn get(&self, pod: &PodUid) -> Option<&Arc<Accepted>> {
        self.shares.get(pod)
    }

    /// All shares, by uid.
    pub fn all(&self) -> impl Iterator<Item = &Accepted> {
        self.shares.values().map(|share| &**share)
    }

    /// The same, to be kept.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<Accepted>> {
        self.shares.values()
    }

    /// Stores a share.
    pub fn put(&mut self, accepted: Accepted) -> Result<(), StoreError> {
        accepted.store(&self.directory, None)?;
        let accepted = self.count(accepted);
        self.damaged.remove(&accepted.pod);
        Ok(())
    }

    /// Takes a share into account that is stored at once ([`Accepted::store`]), and then
    /// [`Self::settle`]d.
    pub fn count(&mut self, accepted: Accepted) -> Arc<Accepted> {
        let accepted = Arc::new(accepted);
        let pod = accepted.pod.clone();
        self.shares.insert(pod, Arc::clone(&accepted));
        accepted
    }

    /// It is stored, or could not be and does not count.
    pub fn settle(&mut self, pod: &PodUid, stored: bool) {
        if stored {
            self.damaged.remove(pod);
        } else {
            self.shares.remove(pod);
        }
    }

    /// Notes the names under which files are about to be written for a pod's containers, so
    /// that a crash leaves none without an owner, and the monitor knows whose they are.
    pub fn note_names<'a>(
        &mut self,
        pod: &PodUid,
        names: impl IntoIterator<Item = (&'a Name, &'a str)>,
    ) -> Result<(), StoreError> {
        let Some(accepted) = self.shares.get(pod) else {
            return Ok(());
        };
        let mut next = Accepted::clone(accepted);
        for (name, container) in names {
            next.note(name, container);
        }
        if next == **accepted {
            return Ok(());
        }
        self.put(next)
    }

    /// Forgets a pod.
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

/// `None`: written just before a power cut, and empty since. The error is for people.
fn load(path: &Path, pod: &PodUid) -> Result<Option<Accepted>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    if bytes.iter().all(|byte| *byte == 0) {
        tracing::warn!(path = %path.display(), "an accepted share is empty; its pod is judged again");
        return Ok(None);
    }
    let accepted: Accepted = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if accepted.v != VERSION {
        let found = accepted.v;
        return Err(format!(
            "it has version {found}, this release reads {VERSION}"
        ));
    }
    if accepted.pod != *pod {
        return Err(format!("it is the share of pod {}", accepted.pod));
    }
    Ok(Some(accepted))
}

/// [`Stage`] as a word.
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
            de::Error::custom(format!("stage {word:?}; accepted: init, sidecar, app"))
        })
    }
}

#[cfg(test)]
#[path = "accepted_tests.rs"]
mod tests;

//! The accepted allocations of this node, stored on disk until [`crate::allocation::collect`] finds that
//! neither the pod nor the kubelet needs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_node_state::accepted::{self, AcceptedAllocation};
use aliquot_node_state::device_id::AnswerName;
use thiserror::Error;

use crate::files::{self, FileError};

/// Stores an accepted allocation in `directory`. The file survives the end of this process at once,
/// and a power cut as soon as the disk has it. If a power cut leaves it empty, the pod is validated
/// again from its annotation when its containers start again.
pub fn store(accepted: &AcceptedAllocation, directory: &Path) -> Result<(), StoreError> {
    let text = accepted.encode().map_err(|source| StoreError::Encode {
        pod: accepted.pod.clone(),
        source,
    })?;
    files::put(&path(directory, &accepted.pod), &text)?;
    Ok(())
}

#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot encode the accepted allocation of pod {pod}: {source}")]
    Encode {
        pod: PodUid,
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
            let Some(pod) = accepted::pod_of_file(&name) else {
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

    pub fn damaged(&self) -> &BTreeMap<PodUid, String> {
        &self.damaged
    }

    pub fn get(&self, pod: &PodUid) -> Option<&Arc<AcceptedAllocation>> {
        self.shares.get(pod)
    }

    pub fn all(&self) -> impl Iterator<Item = &AcceptedAllocation> {
        self.shares.values().map(|share| &**share)
    }

    pub fn shared(&self) -> impl Iterator<Item = &Arc<AcceptedAllocation>> {
        self.shares.values()
    }

    pub fn put(&mut self, accepted: AcceptedAllocation) -> Result<(), StoreError> {
        store(&accepted, &self.directory)?;
        let accepted = self.insert_unstored(accepted);
        self.damaged.remove(&accepted.pod);
        Ok(())
    }

    /// Counts an allocation whose file is about to be written ([`store`]);
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

    pub fn remove(&mut self, pod: &PodUid) -> Result<(), StoreError> {
        files::remove(&path(&self.directory, pod))?;
        self.shares.remove(pod);
        self.damaged.remove(pod);
        Ok(())
    }
}

fn path(directory: &Path, pod: &PodUid) -> PathBuf {
    directory.join(accepted::file_name(pod))
}

/// `None`: the file was written just before a power cut and is empty since. The error is a text for
/// the log.
fn load(path: &Path, pod: &PodUid) -> Result<Option<AcceptedAllocation>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let Some(accepted) = AcceptedAllocation::decode(&bytes).map_err(|error| error.to_string())?
    else {
        tracing::warn!(path = %path.display(), "the accepted allocation is empty; its pod is validated again");
        return Ok(None);
    };
    if accepted.pod != *pod {
        return Err(format!("it belongs to pod {}", accepted.pod));
    }
    Ok(Some(accepted))
}

#[cfg(test)]
#[path = "accepted_tests.rs"]
mod tests;

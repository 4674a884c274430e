//! What is known of this node's allocations: its pods, which of them were accepted, and which
//! container has which device ids. Shared by all parts of the agent that act on it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use aliquot_core::PodUid;
use aliquot_core::usage::AllocatedUse;
use parking_lot::Mutex;

use crate::allocation::accepted::Store;
use crate::files;
use crate::gpus::inventory::NodePublisher;
use crate::modes::SharingModes;
use crate::paths::Paths;
use crate::pods::Pods;
use crate::pods::pod::Phase;
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::checkpoint::{self, CheckpointEntry, CheckpointError};

/// The node's allocations, and what they are about.
pub struct NodeAllocations {
    /// The resource of GPUs whose profile names none.
    pub default_resource: String,
    pub paths: Paths,
    pub modes: SharingModes,
    pub pods: Pods,
    pub published: NodePublisher,
    /// Accepted allocations. The lock also makes validating and counting one step.
    pub store: Mutex<Store>,
    pub checkpoint: CheckpointCache,
}

impl NodeAllocations {
    pub fn entries(&self) -> Result<Arc<Vec<CheckpointEntry>>, CheckpointError> {
        let mut served = self.published.get().resources();
        served.insert(self.default_resource.clone());
        self.checkpoint.read(&self.paths.checkpoint, served)
    }

    /// Whether this pod is live. Until the pods are known, every accepted one is.
    pub(crate) fn is_live(&self, uid: &PodUid) -> bool {
        let pod = self.pods.get(uid);
        pod.map_or_else(|| !self.pods.synced(), |pod| pod.phase != Phase::Ended)
    }

    /// The accepted allocations of the other live pods.
    pub(crate) fn others(&self, uid: &PodUid, store: &Store) -> Vec<Arc<AcceptedAllocation>> {
        let is_other =
            |share: &&Arc<AcceptedAllocation>| share.pod != *uid && self.is_live(&share.pod);
        store.shared().filter(is_other).cloned().collect()
    }

    /// What other live pods use whose accepted allocation cannot be read, by their annotations.
    pub(crate) fn damaged(&self, uid: &PodUid, store: &Store) -> Vec<(PodUid, AllocatedUse)> {
        let pods = store.damaged().keys();
        let others =
            pods.filter(|pod| *pod != uid && store.get(pod).is_none() && self.is_live(pod));
        let used = |other: &PodUid| {
            let pod = self.pods.get(other);
            let uses = pod.and_then(|pod| pod.uses());
            (
                other.clone(),
                uses.map_or(AllocatedUse::Unreadable, AllocatedUse::Known),
            )
        };
        others.map(used).collect()
    }
}

/// The checkpoint as it was last read. It is read again when the file changes.
#[derive(Debug, Default)]
pub struct CheckpointCache(Mutex<Option<CachedCheckpoint>>);

/// The checkpoint of one file, for one set of resources.
#[derive(Debug)]
struct CachedCheckpoint {
    /// The kubelet writes by rename, so that new content is a new inode.
    file: files::Identity,
    served: BTreeSet<String>,
    entries: Arc<Vec<CheckpointEntry>>,
}

impl CheckpointCache {
    /// [`checkpoint::read`], unless the file is as it was.
    fn read(
        &self,
        path: &Path,
        served: BTreeSet<String>,
    ) -> Result<Arc<Vec<CheckpointEntry>>, CheckpointError> {
        let mut cached = self.0.lock();
        // Before the content: if that changes meanwhile, it is read again next time.
        let file = files::identity(path).ok();
        if let (Some(file), Some(read)) = (file, &*cached)
            && read.file == file
            && read.served == served
        {
            return Ok(Arc::clone(&read.entries));
        }
        let entries = Arc::new(checkpoint::read(path, &served)?);
        *cached = file.map(|file| CachedCheckpoint {
            file,
            served,
            entries: Arc::clone(&entries),
        });
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::RESOURCE;

    #[test]
    fn reads_replaced_checkpoint_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("checkpoint");
        let cache = CheckpointCache::default();
        let read = |text: &str| {
            let new = dir.path().join("new");
            std::fs::write(&new, text).expect("written");
            std::fs::rename(&new, &path).expect("renamed");
            let found = cache.read(&path, [RESOURCE.to_owned()].into()).ok()?;
            Some(found.iter().map(|entry| entry.pod.to_string()).collect())
        };
        // The second is of the same length, with another pod.
        for pods in [&["a"][..], &["b"], &["a", "b"]] {
            let entries = pods.iter().map(|pod| {
                json!({"PodUID": pod, "ContainerName": "c", "ResourceName": RESOURCE,
                       "DeviceIDs": {}, "AllocResp": ""})
            });
            let entries: Vec<_> = entries.collect();
            let file = json!({"Data": {"PodDeviceEntries": entries}}).to_string();
            let expected = pods.iter().map(|&pod| pod.to_owned());
            assert_eq!(read(&file), Some(expected.collect::<Vec<_>>()));
        }
        assert_eq!(read("{"), None);
        let other = cache.read(&path, ["nvidia.com/other".to_owned()].into());
        assert!(other.is_err());
    }
}

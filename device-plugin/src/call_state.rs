//! State that calls share, so that many containers that start at once share the work: the
//! checkpoint as it was last read, NVIDIA's specs, the worker pool and a lock for each pod. The
//! checkpoint is read again when the file changes, NVIDIA's specs after a moment.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::PodUid;
use parking_lot::{Mutex, MutexGuard};

use crate::checkpoint::{self, CheckpointEntry, CheckpointError};
use crate::host::{self, NvidiaSpecs, SpecFolders};
use crate::resource_owner::AdvertisedLists;
use crate::worker_pool::WorkerPool;

/// NVIDIA's specs are read again after this: a driver update changes them.
const SPECS_MAX_AGE: Duration = Duration::from_millis(200);
/// Pods whose files can be written at the same time.
const POD_LOCKS: u64 = 16;

/// The checkpoint of one file, for one set of resources.
#[derive(Debug)]
struct CachedCheckpoint {
    file: Identity,
    served: BTreeSet<String>,
    entries: Arc<Vec<CheckpointEntry>>,
}

/// Device, inode, length and change time. The kubelet writes by rename, so that new content is a
/// new inode.
type Identity = (u64, u64, u64, i64, i64);

/// Shared by all calls; empty at first.
pub struct CallState {
    checkpoint: Mutex<Option<CachedCheckpoint>>,
    specs: Mutex<Option<(Instant, Arc<NvidiaSpecs>)>>,
    /// The device ids that the kubelet's streams were sent.
    pub(crate) advertised: AdvertisedLists,
    /// Runs the calls' blocking work.
    pub(crate) workers: WorkerPool,
    pod_locks: Vec<Mutex<()>>,
}

impl Default for CallState {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            checkpoint: Mutex::default(),
            specs: Mutex::default(),
            advertised: AdvertisedLists::default(),
            workers: WorkerPool::new(cores),
            pod_locks: (0..POD_LOCKS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl CallState {
    /// Locks the files of this pod. Must be locked before the store.
    pub fn lock_pod(&self, pod: &PodUid) -> MutexGuard<'_, ()> {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let index = usize::try_from(hasher.hash_one(pod) % POD_LOCKS).unwrap_or_default();
        self.pod_locks[index].lock()
    }

    /// [`checkpoint::read`], cached until the file changes.
    pub fn checkpoint(
        &self,
        path: &Path,
        served: BTreeSet<String>,
    ) -> Result<Arc<Vec<CheckpointEntry>>, CheckpointError> {
        let mut cached = self.checkpoint.lock();
        // Before the content: if that changes meanwhile, it is read again next time.
        let file = identity(path);
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

    /// [`host::specs`], cached for [`SPECS_MAX_AGE`].
    pub fn specs(&self, folders: &SpecFolders) -> Arc<NvidiaSpecs> {
        let mut cached = self.specs.lock();
        if let Some((read, specs)) = &*cached
            && read.elapsed() < SPECS_MAX_AGE
        {
            return Arc::clone(specs);
        }
        let specs = Arc::new(host::specs(folders));
        *cached = Some((Instant::now(), Arc::clone(&specs)));
        specs
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let found = std::fs::metadata(path).ok()?;
    let changed = (found.mtime(), found.mtime_nsec());
    Some((found.dev(), found.ino(), found.len(), changed.0, changed.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::RESOURCE;

    #[test]
    fn reads_replaced_checkpoint_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("checkpoint");
        let state = CallState::default();
        let check = |text: &str, expected: Result<usize, ()>| {
            let new = dir.path().join("new");
            std::fs::write(&new, text).expect("written");
            std::fs::rename(&new, &path).expect("renamed");
            let found = state.checkpoint(&path, [RESOURCE.to_owned()].into());
            assert_eq!(found.map(|found| found.len()).map_err(drop), expected);
        };
        let entry = |pod: &str| {
            format!(
                r#"{{"PodUID":"{pod}","ContainerName":"c","ResourceName":"{RESOURCE}","DeviceIDs":{{}},"AllocResp":""}}"#
            )
        };
        let file = |entries: &[&str]| {
            let entries: Vec<String> = entries.iter().map(|pod| entry(pod)).collect();
            format!(
                r#"{{"Data":{{"PodDeviceEntries":[{}]}}}}"#,
                entries.join(",")
            )
        };
        check(&file(&["a"]), Ok(1));
        // Of the same length, with another pod.
        check(&file(&["b"]), Ok(1));
        let found = state.checkpoint(&path, [RESOURCE.to_owned()].into());
        assert_eq!(found.expect("read")[0].pod.as_str(), "b");
        check(&file(&["a", "b"]), Ok(2));
        check("{", Err(()));
        let other = state.checkpoint(&path, ["nvidia.com/other".to_owned()].into());
        assert!(other.is_err());
    }
}

//! What is kept from one call to the next, so that many containers that start at once
//! share the work: the checkpoint as it was last read, NVIDIA's specs, whose turn it is.
//!
//! Fed by: [`crate::prestart`]. Must not: give anything that the disk does not say any
//! more, but NVIDIA's specs for a moment.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::PodUid;
use parking_lot::{Mutex, MutexGuard};

use crate::cdi::Spec;
use crate::checkpoint::{self, CheckpointError, Entry};
use crate::host;
use crate::turns::Turns;

/// NVIDIA's specs are read again after this: they change with the driver.
const SPECS: Duration = Duration::from_millis(200);
/// Pods whose files can be written at one time.
const LANES: u64 = 16;

/// A checkpoint that was read: of which file, for which resources.
#[derive(Debug)]
struct Read {
    file: Identity,
    served: BTreeSet<String>,
    entries: Arc<Vec<Entry>>,
}

/// Device, inode, length and change time. The kubelet writes by rename, so that another
/// content is another inode.
type Identity = (u64, u64, u64, i64, i64);

/// Kept between calls; empty at first.
pub struct Kept {
    checkpoint: Mutex<Option<Read>>,
    specs: Mutex<Option<(Instant, Arc<Vec<Spec>>)>>,
    /// Whose turn it is to use the disk.
    pub(crate) turns: Turns,
    lanes: Vec<Mutex<()>>,
}

impl Default for Kept {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            checkpoint: Mutex::default(),
            specs: Mutex::default(),
            turns: Turns::new(cores),
            lanes: (0..LANES).map(|_| Mutex::default()).collect(),
        }
    }
}

impl Kept {
    /// Nobody else writes files of this pod while it is held. Taken before the store.
    pub fn lane(&self, pod: &PodUid) -> MutexGuard<'_, ()> {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let lane = usize::try_from(hasher.hash_one(pod) % LANES).unwrap_or_default();
        self.lanes[lane].lock()
    }

    /// [`checkpoint::read`], read again when the file is another.
    pub fn checkpoint(
        &self,
        path: &Path,
        served: BTreeSet<String>,
    ) -> Result<Arc<Vec<Entry>>, CheckpointError> {
        let mut kept = self.checkpoint.lock();
        // Before the content: should that change meanwhile, it is read again.
        let file = identity(path);
        if let (Some(file), Some(read)) = (file, &*kept)
            && read.file == file
            && read.served == served
        {
            return Ok(Arc::clone(&read.entries));
        }
        let entries = Arc::new(checkpoint::read(path, &served)?);
        *kept = file.map(|file| Read {
            file,
            served,
            entries: Arc::clone(&entries),
        });
        Ok(entries)
    }

    /// [`host::specs`], at most a moment old.
    pub fn specs(&self, directories: &[PathBuf]) -> Arc<Vec<Spec>> {
        let mut kept = self.specs.lock();
        if let Some((read, specs)) = &*kept
            && read.elapsed() < SPECS
        {
            return Arc::clone(specs);
        }
        let specs = Arc::new(host::specs(directories));
        *kept = Some((Instant::now(), Arc::clone(&specs)));
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
    fn another_checkpoint_is_read_at_once() {
        let room = tempfile::tempdir().expect("tempdir");
        let path = room.path().join("checkpoint");
        let kept = Kept::default();
        let check = |text: &str, expected: Result<usize, ()>| {
            let new = room.path().join("new");
            std::fs::write(&new, text).expect("written");
            std::fs::rename(&new, &path).expect("renamed");
            let found = kept.checkpoint(&path, [RESOURCE.to_owned()].into());
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
        // As long, another pod.
        check(&file(&["b"]), Ok(1));
        let found = kept.checkpoint(&path, [RESOURCE.to_owned()].into());
        assert_eq!(found.expect("read")[0].pod.as_str(), "b");
        check(&file(&["a", "b"]), Ok(2));
        check("{", Err(()));
        let other = kept.checkpoint(&path, ["nvidia.com/other".to_owned()].into());
        assert!(other.is_err());
    }
}

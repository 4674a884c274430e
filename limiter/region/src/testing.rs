//! A counters file for tests.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::counters::{self, AttachError};
use crate::slot::ProcessSlot;

pub(crate) struct CountersFile(tempfile::TempDir);

impl CountersFile {
    pub(crate) fn new() -> Self {
        let counters = Self(tempfile::tempdir().unwrap());
        let mut file = File::create(counters.path()).unwrap();
        file.write_all(&counters::header()).unwrap();
        file.set_len(counters::SIZE).unwrap();
        counters
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("slots")
    }

    pub(crate) fn slot(&self) -> ProcessSlot {
        take(&self.path(), None).unwrap()
    }
}

/// Takes a slot; no descriptor stands for memory.
pub(crate) fn take(path: &Path, identity: Option<u64>) -> Result<ProcessSlot, AttachError> {
    ProcessSlot::take(path, identity, Path::new("/nonexistent"))
}

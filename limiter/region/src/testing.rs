//! A counters file for tests.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::counters;
use crate::slot::ProcessSlot;

pub(crate) const NODE: &CStr = c"/nonexistent";

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
        ProcessSlot::take(&c_path(&self.path()), None, NODE).unwrap()
    }
}

pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

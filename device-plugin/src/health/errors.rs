//! The errors of GPUs on disk: they outlive the agent. A start of the node ends them, since it resets
//! its GPUs.

use std::path::PathBuf;

use aliquot_nvml::RecordedError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::files;

/// The kernel's name of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct StoredErrors {
    boot: String,
    errors: Vec<RecordedError>,
}

/// The file with the errors of this boot.
#[derive(Debug)]
pub struct ErrorRecord {
    path: PathBuf,
    boot: String,
    stored: Mutex<Option<StoredErrors>>,
}

impl ErrorRecord {
    /// The record at `path`, of the boot that the kernel names.
    pub fn of_this_boot(path: PathBuf) -> Self {
        let boot = std::fs::read_to_string(BOOT_ID).unwrap_or_default();
        Self::of_boot(path, boot.trim())
    }

    fn of_boot(path: PathBuf, boot: &str) -> Self {
        Self {
            path,
            boot: boot.to_owned(),
            stored: Mutex::default(),
        }
    }

    /// The errors that an agent stored since the node was booted. A damaged file counts as empty.
    pub fn load(&self) -> Vec<RecordedError> {
        let text = std::fs::read(&self.path).unwrap_or_default();
        match serde_json::from_slice::<StoredErrors>(&text) {
            Ok(stored) if stored.boot == self.boot => stored.errors,
            _ => Vec::new(),
        }
    }

    /// Stores the errors where they have changed. Logs a failure; the next call tries again.
    pub fn store(&self, errors: Vec<RecordedError>) {
        let mut stored = self.stored.lock();
        let new = StoredErrors {
            boot: self.boot.clone(),
            errors,
        };
        if stored.as_ref() == Some(&new) {
            return;
        }
        let write = || -> Result<bool, String> {
            let text = serde_json::to_vec(&new).map_err(|error| error.to_string())?;
            files::replace(&self.path, &text).map_err(|error| error.to_string())
        };
        match write() {
            Ok(_) => *stored = Some(new),
            Err(error) => tracing::warn!(
                error,
                "cannot store the errors of GPUs: a restarted agent will not know them"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_outlive_the_agent_but_not_the_boot() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("health.json");
        let record = |boot: &str| ErrorRecord::of_boot(path.clone(), boot);
        let error = RecordedError {
            gpu: "GPU-a".to_owned(),
            uuid: "MIG-1".to_owned(),
            code: 94,
            recovery_requested: false,
            was_lost: false,
        };
        assert_eq!(record("one").load(), []);
        record("one").store(vec![error.clone()]);
        assert_eq!(record("one").load(), [error]);
        assert_eq!(record("two").load(), []);
        std::fs::write(&path, "{").expect("damaged");
        assert_eq!(record("one").load(), []);
        record("one").store(Vec::new());
        assert_eq!(record("one").load(), []);
    }
}

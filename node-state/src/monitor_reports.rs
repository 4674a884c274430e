//! Files in which the monitor reports to the agent: sets of GPUs of which the driver does not report
//! everything, and the memory that processes outside every share hold of each GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use aliquot_core::Mib;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::StateDirectory;

/// UUIDs of GPUs.
pub type GpuSet = BTreeSet<String>;

/// Memory by the UUID of a GPU.
pub type GpuMemory = BTreeMap<String, Mib>;

/// What a report says; `None`: there is none, or it cannot be read.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let problem = match fs::read(path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(report) => return Some(report),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), problem, "cannot read a report of the monitor");
    None
}

/// Writes a report below the agent's state directory. A reader sees the old or the new one. Fails once the
/// agent has removed its accepted allocations: it is leaving the node, and nothing may stay there.
pub fn write(path: &Path, report: &impl Serialize) -> io::Result<()> {
    let accepted = StateDirectory(path.parent().unwrap_or(path)).accepted();
    if !accepted.is_dir() {
        let text = format!("no directory {}", accepted.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let text = serde_json::to_vec(report).map_err(io::Error::other)?;
    write_atomically(path, &text)
}

pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_list_of_uncorrected_gpus() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("uncorrected.json");
        assert_eq!(read::<GpuSet>(&path), None);
        write(&path, &["too early or too late"]).expect_err("no agent");
        assert!(!path.exists());
        fs::create_dir(dir.path().join("accepted")).expect("created");
        write(&path, &["GPU-a"]).expect("written");
        assert_eq!(read::<GpuSet>(&path), Some(["GPU-a".to_owned()].into()));
        fs::write(&path, "[").expect("written");
        assert_eq!(read::<GpuSet>(&path), None);
    }
}

//! Files in which the monitor reports to the agent the GPUs of which the driver does not report
//! everything.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::state::StateDirectory;

/// The UUIDs in a list of GPUs; `None`: there is none, or it cannot be read.
pub fn gpus(path: &Path) -> Option<BTreeSet<String>> {
    let problem = match fs::read(path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(gpus) => return Some(gpus),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), problem, "cannot read a list of GPUs that the monitor writes");
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

/// Writes a file by rename.
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
        assert_eq!(gpus(&path), None);
        write(&path, &["too early or too late"]).expect_err("no agent");
        assert!(!path.exists());
        fs::create_dir(dir.path().join("accepted")).expect("created");
        write(&path, &["GPU-a"]).expect("written");
        assert_eq!(gpus(&path), Some(["GPU-a".to_owned()].into()));
        fs::write(&path, "[").expect("written");
        assert_eq!(gpus(&path), None);
    }
}

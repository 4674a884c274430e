//! The files of one device, through which agent and supervisor talk: the daemon's spec, its status,
//! and the compute mode from before. Each is replaced as a whole, so that a kill leaves the old or
//! the new one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aliquot_node_state::mps::{DaemonSpec, DaemonStatus, PIPE, SHM, SPECS, STATUS};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::files::{self, FileError};

/// The longest path of a socket, without its terminating zero.
const MAX_SOCKET_PATH: usize = 107;
/// The longest name that a daemon creates in its pipe directory.
const LONGEST_SOCKET: &str = "control_privileged";

/// The compute mode that a GPU had before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedComputeMode {
    pub(super) gpu: String,
    pub(super) mode: String,
}

#[derive(Debug, Error)]
pub enum DaemonDirectoryError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", path.display())]
    Content {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error(
        "--state-dir: the path {} of an MPS socket is too long: {length} bytes, expected at most {MAX_SOCKET_PATH}",
        path.display()
    )]
    TooLong {
        path: PathBuf,
        /// Its bytes.
        length: usize,
    },
}

/// The directory of one device, and its spec, which lies outside of it: the supervisor, which
/// removes the directory, must not remove a spec that was written meanwhile.
#[derive(Clone, Debug)]
pub struct DaemonDirectory {
    directory: PathBuf,
    spec: PathBuf,
}

/// The devices below `root` that have a spec, or files of an earlier one.
pub(super) fn devices(root: &Path) -> Result<BTreeSet<String>, FileError> {
    let is_device = |name: &String| name.starts_with("GPU-") || name.starts_with("MIG-");
    let specs = files::names(&root.join(SPECS))?;
    let specified = specs.iter().filter_map(|name| name.strip_suffix(".json"));
    let all = specified.map(str::to_owned).chain(files::names(root)?);
    Ok(all.filter(is_device).collect())
}

impl DaemonDirectory {
    /// The device's directory in `root`, the agent's `mps` directory.
    pub fn new(root: &Path, device: &str) -> Self {
        Self {
            directory: root.join(device),
            spec: root.join(SPECS).join(format!("{device}.json")),
        }
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The directory of the daemon's sockets, which is mounted into its clients.
    pub fn pipe(&self) -> PathBuf {
        self.directory.join(PIPE)
    }

    pub fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Where the memory is mounted that the daemon and its clients have at `/dev/shm`.
    pub fn shm(&self) -> PathBuf {
        self.directory.join(SHM)
    }

    /// The spec; `None`: no daemon is needed.
    pub fn spec(&self) -> Result<Option<DaemonSpec>, DaemonDirectoryError> {
        read(&self.spec)
    }

    /// Writes the spec. Returns whether it changed.
    pub fn put_spec(&self, spec: &DaemonSpec) -> Result<bool, DaemonDirectoryError> {
        let socket = self.pipe().join(LONGEST_SOCKET);
        let length = socket.as_os_str().len();
        if length > MAX_SOCKET_PATH {
            return Err(DaemonDirectoryError::TooLong {
                path: socket,
                length,
            });
        }
        if let Some(specs) = self.spec.parent() {
            files::directory(specs, 0o755)?;
        }
        write(&self.spec, spec)
    }

    pub fn remove_spec(&self) -> Result<(), DaemonDirectoryError> {
        Ok(files::remove(&self.spec)?)
    }

    /// The daemon's status; `None`: not written yet.
    pub fn status(&self) -> Result<Option<DaemonStatus>, DaemonDirectoryError> {
        read(&self.directory.join(STATUS))
    }

    pub fn last_checked(&self) -> Option<SystemTime> {
        let file = std::fs::metadata(self.directory.join(STATUS));
        file.and_then(|file| file.modified()).ok()
    }

    /// Writes the status and creates the directory if needed; an unchanged status only gets a new
    /// modification time.
    pub(crate) fn put_status(&self, status: &DaemonStatus) -> Result<(), DaemonDirectoryError> {
        let path = self.directory.join(STATUS);
        files::directory(&self.directory, 0o755)?;
        if !write(&path, status)? {
            let touch = |file: std::fs::File| file.set_modified(SystemTime::now());
            let opened = std::fs::File::options().write(true).open(&path);
            let touched = opened.and_then(touch);
            touched.map_err(files::failed("touch", &path))?;
        }
        Ok(())
    }

    pub(super) fn saved_mode(&self) -> Result<Option<SavedComputeMode>, DaemonDirectoryError> {
        read(&self.directory.join("before.json"))
    }

    pub(super) fn put_saved_mode(
        &self,
        before: &SavedComputeMode,
    ) -> Result<(), DaemonDirectoryError> {
        write(&self.directory.join("before.json"), before).map(drop)
    }

    pub(super) fn remove_saved_mode(&self) -> Result<(), DaemonDirectoryError> {
        Ok(files::remove(&self.directory.join("before.json"))?)
    }

    /// Whether nothing of MPS is left for the device.
    pub fn is_gone(&self) -> bool {
        !self.directory.exists()
    }

    /// Empties the pipe directory, which clients may have mounted, and creates both directories.
    pub(super) fn make(&self) -> Result<(), DaemonDirectoryError> {
        for name in files::names(&self.pipe())? {
            files::remove(&self.pipe().join(name))?;
        }
        // Clients of any user connect to the sockets; the logs belong to the owner.
        files::directory(&self.pipe(), 0o755)?;
        files::directory(&self.log(), 0o755)?;
        Ok(())
    }

    /// Removes everything, the directory itself last, so that a leftover is found again.
    pub(super) fn remove(&self) -> Result<(), DaemonDirectoryError> {
        files::remove(&self.pipe())?;
        files::remove(&self.log())?;
        Ok(files::remove(&self.directory)?)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, DaemonDirectoryError> {
    let Some(text) = files::read(path)? else {
        return Ok(None);
    };
    let read = serde_json::from_slice(&text).map_err(|source| DaemonDirectoryError::Content {
        path: path.to_owned(),
        source,
    });
    read.map(Some)
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<bool, DaemonDirectoryError> {
    let text = serde_json::to_vec(value).map_err(|source| DaemonDirectoryError::Content {
        path: path.to_owned(),
        source,
    })?;
    Ok(files::replace(path, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_core::Mib;
    use aliquot_profiles::mode::Mps;

    #[test]
    fn rejects_path_too_long_for_sockets() {
        let root = tempfile::tempdir().expect("a directory");
        let deep = root.path().join("x".repeat(100));
        let spec = super::super::plan::daemon_spec("GPU-a", Mib(4000), &Mps::new(4), None);
        let refused = DaemonDirectory::new(&deep, "GPU-a").put_spec(&spec);
        let text = refused.expect_err("too long").to_string();
        for part in ["--state-dir", "at most 107"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!deep.exists());
    }

    #[test]
    fn names_damaged_spec_file() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = DaemonDirectory::new(root.path(), "GPU-a");
        let spec = root.path().join("specs/GPU-a.json");
        std::fs::create_dir_all(spec.parent().expect("a directory")).expect("made");
        std::fs::write(spec, "{").expect("written");
        let error = directory.spec().expect_err("damaged").to_string();
        assert!(error.contains("GPU-a.json"), "{error}");
        let found = devices(root.path()).expect("listed");
        assert_eq!(found, BTreeSet::from(["GPU-a".to_owned()]));
    }
}

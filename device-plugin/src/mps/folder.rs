//! The files of one unit, by which agent and keeper talk: what is wished, what is, and what was
//! there before. Each is written whole, so that a kill leaves the old or the new one.
//!
//! Fed by: the agent (the wish), the keeper (all else). Must not: start or end anything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aliquot_core::{Mib, Percent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::files::{self, FileError};

/// Version of these files.
pub const VERSION: u32 = 1;

/// Longest path of a socket, its closing zero left out.
const MOST_SOCKET: usize = 107;
/// The longest name that a daemon makes in its pipe folder.
const LONGEST: &str = "control_privileged";

/// The daemon that a unit shall have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Version.
    pub v: u32,
    /// The unit, and all that the daemon sees: `GPU-…` or `MIG-…`.
    pub unit: String,
    /// The card that only the daemon's server may open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<String>,
    /// Memory that a client may have at most.
    pub memory: Mib,
    /// Compute that a client may have at most.
    pub threads: Percent,
}

/// How far a daemon is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It serves, as the wish in the status says.
    Running,
    /// It does not; the text says why.
    Down(String),
}

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version.
    pub v: u32,
    /// Whether it serves.
    pub phase: Phase,
    /// The wish that it serves by.
    pub wish: Option<Wish>,
    /// The daemon's process id.
    pub daemon: Option<u32>,
    /// Seconds since 1970 at which this daemon started.
    pub since: u64,
    /// How often it was started again.
    pub restarts: u64,
    /// How often clients lost their server, with or without the daemon.
    pub losses: u64,
    /// How often a client's fault hit all clients.
    pub faults: u64,
    /// Its servers.
    pub servers: Vec<Server>,
    /// The host's folder that the daemon has at `/dev/shm`, as its clients must.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<PathBuf>,
    /// It could not be started for the clients of all users: while those of one are there, those
    /// of others wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_user: bool,
}

/// One server with its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Process id.
    pub pid: u32,
    /// Process ids as the keeper sees them.
    pub clients: Vec<u32>,
    /// A client faulted, and not all have gone since.
    #[serde(default)]
    pub fault: bool,
}

/// The compute mode that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Before {
    pub(super) card: String,
    pub(super) mode: String,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum FolderError {
    /// Reading or writing failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// It says nothing that this release reads.
    #[error("{}: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What serde found.
        source: serde_json::Error,
    },
    /// Sockets cannot lie there.
    #[error(
        "--state-dir: {} is too long a path for the sockets of MPS: {length} bytes; accepted: at most {MOST_SOCKET}",
        path.display()
    )]
    TooLong {
        /// The socket.
        path: PathBuf,
        /// Its bytes.
        length: usize,
    },
}

/// The folder of one unit, and its wish, which lies outside: the keeper, which removes the
/// folder, never removes a wish that came meanwhile.
#[derive(Clone, Debug)]
pub struct Folder {
    folder: PathBuf,
    wish: PathBuf,
}

/// The folder of all wishes.
const WISHES: &str = "wishes";

/// The units of `root` that have a wish, or files of an earlier one.
pub(super) fn units(root: &Path) -> Result<BTreeSet<String>, FileError> {
    let is_unit = |name: &String| name.starts_with("GPU-") || name.starts_with("MIG-");
    let wished = files::names(&root.join(WISHES))?;
    let wished = wished.iter().filter_map(|name| name.strip_suffix(".json"));
    let all = wished.map(str::to_owned).chain(files::names(root)?);
    Ok(all.filter(is_unit).collect())
}

impl Folder {
    /// The unit's folder in `root`, which is the agent's `mps`.
    pub fn new(root: &Path, unit: &str) -> Self {
        Self {
            folder: root.join(unit),
            wish: root.join(WISHES).join(format!("{unit}.json")),
        }
    }

    /// Itself.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The daemon's sockets, which its clients have mounted.
    pub fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }

    /// The daemon's logs.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What is wished; `None`: no daemon.
    pub fn wish(&self) -> Result<Option<Wish>, FolderError> {
        read(&self.wish)
    }

    /// Wishes for a daemon. Returns whether that is news.
    pub fn put_wish(&self, wish: &Wish) -> Result<bool, FolderError> {
        let socket = self.pipe().join(LONGEST);
        let length = socket.as_os_str().len();
        if length > MOST_SOCKET {
            return Err(FolderError::TooLong {
                path: socket,
                length,
            });
        }
        if let Some(wishes) = self.wish.parent() {
            files::directory(wishes, 0o755)?;
        }
        write(&self.wish, wish)
    }

    /// Wishes for none.
    pub fn drop_wish(&self) -> Result<(), FolderError> {
        Ok(files::remove(&self.wish)?)
    }

    /// What became of the wish; `None`: nothing yet.
    pub fn status(&self) -> Result<Option<Status>, FolderError> {
        read(&self.folder.join("status.json"))
    }

    /// When the keeper last looked at its daemon.
    pub fn looked(&self) -> Option<SystemTime> {
        let file = std::fs::metadata(self.folder.join("status.json"));
        file.and_then(|file| file.modified()).ok()
    }

    /// Tells what became of the wish, in a folder made for it; the same again only says that somebody looked.
    pub(crate) fn put_status(&self, status: &Status) -> Result<(), FolderError> {
        let path = self.folder.join("status.json");
        files::directory(&self.folder, 0o755)?;
        if !write(&path, status)? {
            let looked = |file: std::fs::File| file.set_modified(SystemTime::now());
            let opened = std::fs::File::options().write(true).open(&path);
            let touched = opened.and_then(looked);
            touched.map_err(files::failed("touch", &path))?;
        }
        Ok(())
    }

    pub(super) fn before(&self) -> Result<Option<Before>, FolderError> {
        read(&self.folder.join("before.json"))
    }

    pub(super) fn put_before(&self, before: &Before) -> Result<(), FolderError> {
        write(&self.folder.join("before.json"), before).map(drop)
    }

    pub(super) fn drop_before(&self) -> Result<(), FolderError> {
        Ok(files::remove(&self.folder.join("before.json"))?)
    }

    /// The unit has nothing of MPS any more.
    pub fn is_gone(&self) -> bool {
        !self.folder.exists()
    }

    /// Empties the pipe folder, which clients may have mounted, and makes both folders.
    pub(super) fn make(&self) -> Result<(), FolderError> {
        for name in files::names(&self.pipe())? {
            files::remove(&self.pipe().join(name))?;
        }
        // Clients of any user talk to the sockets; the logs are the owner's.
        files::directory(&self.pipe(), 0o755)?;
        files::directory(&self.log(), 0o755)?;
        Ok(())
    }

    /// Removes all; the folder itself goes last, so that what is left is found again.
    pub(super) fn remove(&self) -> Result<(), FolderError> {
        files::remove(&self.pipe())?;
        files::remove(&self.log())?;
        Ok(files::remove(&self.folder)?)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FolderError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(files::failed("read", path)(error).into()),
    };
    let read = serde_json::from_slice(&text).map_err(|source| FolderError::Content {
        path: path.to_owned(),
        source,
    });
    read.map(Some)
}

fn write<T: Serialize>(path: &Path, value: &T) -> Result<bool, FolderError> {
    let text = serde_json::to_vec(value).map_err(|source| FolderError::Content {
        path: path.to_owned(),
        source,
    })?;
    Ok(files::replace(path, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aliquot_profiles::mode::Mps;

    #[test]
    fn a_wish_is_read_back_and_news_once() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(root.path(), "GPU-a");
        assert_eq!(folder.wish().expect("nothing"), None);
        let wish = super::super::plan::wish("GPU-a", Mib(4000), &Mps::new(4), Some("GPU-a"));
        assert!(folder.put_wish(&wish).expect("written"));
        assert!(!folder.put_wish(&wish).expect("the same"));
        assert_eq!(folder.wish().expect("read"), Some(wish));
        folder.drop_wish().expect("gone");
        folder.drop_wish().expect("still gone");
        assert_eq!(folder.wish().expect("nothing"), None);
    }

    #[test]
    fn a_folder_too_deep_for_sockets_is_refused_with_its_length() {
        let root = tempfile::tempdir().expect("a folder");
        let deep = root.path().join("x".repeat(100));
        let wish = super::super::plan::wish("GPU-a", Mib(4000), &Mps::new(4), None);
        let error = Folder::new(&deep, "GPU-a")
            .put_wish(&wish)
            .expect_err("too long");
        let text = error.to_string();
        assert!(
            text.contains("--state-dir") && text.contains("at most 107"),
            "{text}"
        );
        assert!(!deep.exists());
    }

    #[test]
    fn a_damaged_wish_is_named() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = Folder::new(root.path(), "GPU-a");
        let wish = root.path().join("wishes/GPU-a.json");
        std::fs::create_dir_all(wish.parent().expect("a folder")).expect("made");
        std::fs::write(wish, "{").expect("written");
        let error = folder.wish().expect_err("damaged").to_string();
        assert!(error.contains("GPU-a.json"), "{error}");
        let found = units(root.path()).expect("listed");
        assert_eq!(found, BTreeSet::from(["GPU-a".to_owned()]));
    }
}

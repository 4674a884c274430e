//! `SELinux` labels for what containers read and write: the library, limits pages, counters and MPS
//! pipes. What only the host uses is not labelled, and a host without `SELinux` is no error.

use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

use aliquot_node_state::mps::{PIPE, SHM};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};

use crate::files::{self, FileError, failed};
use crate::tmpfs;

/// The type that every container may read and write.
const CONTAINER_FILE: &str = "system_u:object_r:container_file_t:s0";
const ATTRIBUTE: &str = "security.selinux";
const MAX_LENGTH: usize = 512;

/// The label for files that containers use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// [`CONTAINER_FILE`], where the host's files have labels.
    Auto,
    /// None: the administrator labels them.
    Off,
    /// This label.
    Fixed(String),
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Off),
            label if (4..=5).contains(&label.split(':').count()) && label.len() < MAX_LENGTH => {
                Ok(Self::Fixed(label.to_owned()))
            }
            _ => Err(format!(
                "expected: auto, none, or user:role:type:level, such as {CONTAINER_FILE}"
            )),
        }
    }
}

/// Labels these folders and everything in them; what is created in them later inherits the folder's
/// label from the kernel. Returns the number of changed files.
pub fn relabel(label: &Label, folders: &[&Path]) -> Result<usize, FileError> {
    let mut changed = 0;
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let label = match label {
            Label::Off => return Ok(0),
            Label::Auto if label_of(folder).is_none() => continue,
            Label::Auto => CONTAINER_FILE,
            Label::Fixed(label) => label,
        };
        changed += tree(folder, label)?;
    }
    Ok(changed)
}

/// Labels what exists of the files that containers use. Logs errors: containers that cannot read
/// their limits report that themselves.
pub fn label_state(label: &Label, container_directories: &Path, limiter: &Path, mps: &Path) {
    if label_of(container_directories).is_some() && *label != Label::Off {
        // What is created below it later inherits its label.
        drop(files::directory(mps, 0o755));
    }
    match relabel(label, &[container_directories, limiter, mps]) {
        Ok(0) => {}
        Ok(changed) => tracing::info!(changed, ?label, "labelled files of containers for SELinux"),
        Err(error) => tracing::warn!(%error, "cannot label files of containers for SELinux"),
    }
}

pub fn is_labelled(path: &Path) -> bool {
    label_of(path).is_some()
}

/// Gives a file system that was mounted at `folder` the label of the parent folder.
pub fn inherit(folder: &Path) -> Result<(), FileError> {
    let parent = folder.parent().and_then(label_of);
    match parent.filter(|parent| label_of(folder).as_ref() != Some(parent)) {
        Some(label) => set(folder, &label),
        None => Ok(()),
    }
}

fn tree(path: &Path, label: &str) -> Result<usize, FileError> {
    let mut changed = file(path, label)?;
    if path.symlink_metadata().is_ok_and(|found| found.is_dir()) && !is_shared_memory(path) {
        // Directories in a daemon's pipe directory are of clients, who may replace them by links to
        // the host's files.
        let inside = if path.ends_with(PIPE) { file } else { tree };
        for entry in fs::read_dir(path).map_err(failed("list", path))? {
            let entry = entry.map_err(failed("list", path))?;
            changed += inside(&entry.path(), label)?;
        }
    }
    Ok(changed)
}

/// Labels this file alone; returns the number of changed files.
fn file(path: &Path, label: &str) -> Result<usize, FileError> {
    if label_of(path).as_deref() == Some(label) {
        return Ok(0);
    }
    match set(path, label) {
        // Its owner has removed it meanwhile.
        Err(_) if path.symlink_metadata().is_err() => Ok(0),
        done => done.map(|()| 1),
    }
}

/// Whether this is the memory of an MPS daemon and its clients. What clients create there inherits
/// its label, and they may put links to the host's files in our way.
fn is_shared_memory(path: &Path) -> bool {
    path.ends_with(SHM) && tmpfs::is_mounted(path).unwrap_or(true)
}

/// The label of a file; `None` where it has none.
fn label_of(path: &Path) -> Option<String> {
    let mut buffer = [0; MAX_LENGTH];
    let length = lgetxattr(path, ATTRIBUTE, &mut buffer[..]).ok()?;
    let label = std::str::from_utf8(buffer.get(..length)?).ok()?;
    Some(label.trim_end_matches('\0').to_owned())
}

fn set(path: &Path, label: &str) -> Result<(), FileError> {
    let done = lsetxattr(path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty());
    done.map_err(io::Error::from).map_err(failed("label", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_selinux_labels() {
        let own = "system_u:object_r:container_file_t:s0:c1,c2";
        for (text, expected) in [
            ("auto", Some(Label::Auto)),
            ("none", Some(Label::Off)),
            (own, Some(Label::Fixed(own.to_owned()))),
            ("container_file_t", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Label>().ok(), expected, "{text:?}");
        }
    }

    /// File systems store labels without `SELinux`, too; that new files inherit their folder's
    /// label is the kernel's doing.
    #[test]
    fn labels_container_files_where_host_has_labels() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (directories, other) = (dir.path().join("containers"), dir.path().join("accepted"));
        let slots = directories.join("a/counters/slots");
        fs::create_dir_all(directories.join("a/counters")).expect("made");
        fs::create_dir(&other).expect("made");
        fs::write(&slots, "").expect("written");
        let missing = dir.path().join("mps");
        let folders = [directories.as_path(), &missing];
        if label_of(&directories).is_none() {
            assert_eq!(relabel(&Label::Auto, &folders).expect("looked"), 0);
            assert_eq!(label_of(&slots), None);
        }
        assert_eq!(relabel(&Label::Off, &folders).expect("nothing to do"), 0);
        let own = "system_u:object_r:own_file_t:s0";
        let fixed = Label::Fixed(own.to_owned());
        assert_eq!(relabel(&fixed, &folders).expect("labelled"), 4);
        assert_eq!(label_of(&slots).as_deref(), Some(own));
        assert_eq!(relabel(&fixed, &folders).expect("again"), 0);
        let of_host = label_of(&other);
        assert_ne!(of_host.as_deref(), Some(own), "only the host uses it");
        // As on a host whose files have labels.
        assert_eq!(relabel(&Label::Auto, &folders).expect("labelled"), 4);
        assert_eq!(label_of(&slots).as_deref(), Some(CONTAINER_FILE));
        let new = directories.join("a/new");
        fs::create_dir(&new).expect("made");
        inherit(&new).expect("labelled");
        assert_eq!(label_of(&new).as_deref(), Some(CONTAINER_FILE));
    }

    #[test]
    fn does_not_enter_directories_of_mps_clients() {
        let dir = tempfile::tempdir().expect("tempdir");
        let pipe = dir.path().join("GPU-a").join(PIPE);
        let (socket, theirs) = (pipe.join("control"), pipe.join("theirs"));
        fs::create_dir_all(&theirs).expect("made");
        let inner = theirs.join("inner");
        for file in [&socket, &inner] {
            fs::write(file, "").expect("written");
        }
        let own = "system_u:object_r:own_file_t:s0";
        let fixed = Label::Fixed(own.to_owned());
        relabel(&fixed, &[dir.path()]).expect("labelled");
        assert_eq!(label_of(&socket).as_deref(), Some(own));
        assert_ne!(label_of(&inner).as_deref(), Some(own));
    }

    #[test]
    fn file_that_is_gone_does_not_end_the_labelling_of_others() {
        let dir = tempfile::tempdir().expect("tempdir");
        let gone = file(&dir.path().join("gone"), CONTAINER_FILE);
        assert_eq!(gone.expect("passed over"), 0);
    }
}

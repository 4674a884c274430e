//! Labels of `SELinux` for what containers read and write: the library, limits pages, counters and
//! the pipes of MPS.
//!
//! Fed by: the flag, the label that a folder has. Must not: label what only the host uses; fail
//! where there is no `SELinux`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};

use crate::files::{self, FileError, failed};
use crate::settings::Paths;

/// What every container may read and write.
const USUAL: &str = "system_u:object_r:container_file_t:s0";
const ATTRIBUTE: &str = "security.selinux";
/// Longer ones are none.
const MOST: usize = 512;

/// Which label files get that containers use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// That of containers, where the host's files have labels.
    Auto,
    /// None: their owner labels them.
    Off,
    /// This one.
    Fixed(String),
}

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Off),
            label if (4..=5).contains(&label.split(':').count()) && label.len() < MOST => {
                Ok(Self::Fixed(label.to_owned()))
            }
            _ => Err(format!(
                "accepted: auto, none, or user:role:type:level, such as {USUAL}"
            )),
        }
    }
}

/// Labels these folders with all that is in them; what is made in them later has the folder's
/// label, by the kernel's own rule. Returns how many it changed.
pub fn keep(label: &Label, folders: &[&Path]) -> Result<usize, FileError> {
    let mut changed = 0;
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let wanted = match label {
            Label::Off => return Ok(0),
            Label::Auto if of(folder).is_none() => continue,
            Label::Auto => USUAL,
            Label::Fixed(label) => label,
        };
        changed += tree(folder, wanted)?;
    }
    Ok(changed)
}

/// Labels what is there of all that containers use. What cannot be labelled is logged: containers
/// that cannot read their limits say so themselves.
pub fn settle(label: &Label, paths: &Paths) {
    if of(&paths.seats).is_some() && *label != Label::Off {
        // What is made below it later is as it is.
        drop(files::directory(&paths.mps, 0o755));
    }
    let folders = [&paths.seats, &paths.spare, &paths.limiter, &paths.mps];
    match keep(label, &folders.map(PathBuf::as_path)) {
        Ok(0) => {}
        Ok(changed) => tracing::info!(changed, ?label, "files of containers labelled"),
        Err(error) => tracing::warn!(%error, "files of containers are not labelled for SELinux"),
    }
}

/// Whether a file has a label.
pub fn is_labelled(path: &Path) -> bool {
    of(path).is_some()
}

/// Gives a file system that was mounted at `folder` the label of the folder above.
pub fn inherit(folder: &Path) -> Result<(), FileError> {
    let above = folder.parent().and_then(of);
    match above.filter(|above| of(folder).as_ref() != Some(above)) {
        Some(above) => set(folder, &above),
        None => Ok(()),
    }
}

fn tree(path: &Path, label: &str) -> Result<usize, FileError> {
    let mut changed = 0;
    if of(path).as_deref() != Some(label) {
        set(path, label)?;
        changed += 1;
    }
    if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        for entry in fs::read_dir(path).map_err(failed("list", path))? {
            let entry = entry.map_err(failed("list", path))?;
            changed += tree(&entry.path(), label)?;
        }
    }
    Ok(changed)
}

/// The label of a file; `None` where it has none.
fn of(path: &Path) -> Option<String> {
    let mut room = [0; MOST];
    let length = lgetxattr(path, ATTRIBUTE, &mut room[..]).ok()?;
    let label = std::str::from_utf8(room.get(..length)?).ok()?;
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
    fn a_label_has_the_form_of_selinux() {
        for (text, expected) in [
            ("auto", Some(Label::Auto)),
            ("none", Some(Label::Off)),
            (USUAL, Some(Label::Fixed(USUAL.to_owned()))),
            (
                "system_u:object_r:container_file_t:s0:c1,c2",
                Some(Label::Fixed(
                    "system_u:object_r:container_file_t:s0:c1,c2".to_owned(),
                )),
            ),
            ("container_file_t", None),
            ("", None),
        ] {
            let found = text.parse::<Label>();
            assert!(
                found.is_ok()
                    || found
                        .clone()
                        .is_err_and(|e| e.contains("accepted: auto, none"))
            );
            assert_eq!(found.ok(), expected, "{text:?}");
        }
    }

    /// Labels are kept by file systems without `SELinux`, too; that new files have their folder's
    /// label is the kernel's own doing.
    #[test]
    fn what_containers_use_is_labelled_and_nothing_where_there_are_no_labels() {
        let room = tempfile::tempdir().expect("tempdir");
        let (seats, other) = (room.path().join("seats"), room.path().join("accepted"));
        let slots = seats.join("a/counters/slots");
        fs::create_dir_all(seats.join("a/counters")).expect("made");
        fs::create_dir(&other).expect("made");
        fs::write(&slots, "").expect("written");
        let missing = room.path().join("mps");
        let folders = [seats.as_path(), &missing];
        if of(&seats).is_none() {
            assert_eq!(keep(&Label::Auto, &folders).expect("looked"), 0);
            assert_eq!(of(&slots), None);
        }
        assert_eq!(keep(&Label::Off, &folders).expect("nothing to do"), 0);
        let own = "system_u:object_r:own_file_t:s0";
        let fixed = Label::Fixed(own.to_owned());
        assert_eq!(keep(&fixed, &folders).expect("labelled"), 4);
        assert_eq!(of(&slots).as_deref(), Some(own));
        assert_eq!(keep(&fixed, &folders).expect("again"), 0);
        assert_ne!(of(&other).as_deref(), Some(own), "only the host uses it");
        // As on a host whose files have labels.
        assert_eq!(keep(&Label::Auto, &folders).expect("labelled"), 4);
        assert_eq!(of(&slots).as_deref(), Some(USUAL));
        let new = seats.join("a/new");
        fs::create_dir(&new).expect("made");
        inherit(&new).expect("labelled");
        assert_eq!(of(&new).as_deref(), Some(USUAL));
    }
}

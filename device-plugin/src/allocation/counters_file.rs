//! The counters file: the one file of a container directory that its container writes. It is on a
//! small file system of its own, so that a container that fills it takes no space from others
//! (`docs/threat-model.md`).

use std::ffi::CString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use aliquot_node_state::container_directory::{COUNTERS, COUNTERS_FOLDER};
use aliquot_region::counters;
use rustix::fs::{Mode, OFlags};

use crate::files::{self, FileError, failed};
use crate::{selinux, tmpfs};

/// Creates the counters file in a container directory; an existing one is left alone. Returns its
/// identity.
///
/// The container runtime mounts it over an empty file of the same name. Where mounts made here do
/// not reach the runtime it is a plain file, which is logged.
pub fn create(directory: &Path) -> Result<u64, FileError> {
    let folder = directory.join(COUNTERS_FOLDER);
    files::directory(&folder, 0o755)?;
    let slots = directory.join(COUNTERS);
    let mounted = tmpfs::is_mounted(&folder).map_err(failed("inspect", &folder))?;
    if !mounted && !is_in_use(&slots) && reaches_the_runtime(&folder) {
        files::replace(&slots, b"")?;
        let made = tmpfs::mount(&folder, &options(selinux::is_labelled(directory)));
        made.map_err(failed("mount a file system at", &folder))?;
        selinux::inherit(&folder)?;
    }
    counters_file(&slots)
}

/// Unmounts the file system in a container directory, before that is removed.
pub fn unmount(directory: &Path) -> Result<(), FileError> {
    let folder = directory.join(COUNTERS_FOLDER);
    tmpfs::unmount(&folder).map_err(failed("unmount", &folder))
}

/// The file system has room for the file and its directory, and no more. `labelled`: its files get
/// `SELinux` labels, which the kernel counts as inodes.
fn options(labelled: bool) -> CString {
    // The rest that two labels leave of one more inode is too small for a third file.
    let inodes = 2 + u32::from(labelled);
    let text = format!("size={},nr_inodes={inodes},mode=0755", counters::SIZE);
    CString::new(text).unwrap_or_default()
}

/// A container that started where mounts do not reach the runtime has the file itself mounted.
fn is_in_use(slots: &Path) -> bool {
    fs::metadata(slots).is_ok_and(|found| found.len() > 0)
}

fn reaches_the_runtime(folder: &Path) -> bool {
    let reaches = tmpfs::propagates_mounts(folder);
    if !reaches {
        tracing::warn!(
            "mounts made by the agent do not reach the container runtime, so counters files share the file system of the \
             state directory; expected: mountPropagation: Bidirectional"
        );
    }
    reaches
}

fn counters_file(path: &Path) -> Result<u64, FileError> {
    const MODE: u32 = 0o666;
    // A FIFO in its place would block the agent, and a link's target would become writable.
    let flags =
        OFlags::CREATE | OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(MODE));
    let file = File::from(file.map_err(|error| failed("create", path)(error.into()))?);
    file.set_permissions(fs::Permissions::from_mode(MODE))
        .map_err(failed("chmod", path))?;
    let length = file.metadata().map_err(failed("inspect", path))?.len();
    if length == 0 {
        file.write_all_at(&counters::header(), 0)
            .and_then(|()| file.set_len(counters::SIZE))
            .map_err(failed("size", path))?;
    }
    counters::identity(&file).map_err(failed("inspect", path))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::testing::{CHILD, SHARE, run_child};

    #[test]
    fn creates_counters_file_once_for_every_user() {
        let dir = tempfile::tempdir().expect("tempdir");
        let slots = dir.path().join(COUNTERS);
        create(dir.path()).expect("made");
        let fresh = fs::read(&slots).expect("read");
        assert_eq!(fresh.len() as u64, counters::SIZE);
        assert!(fresh.starts_with(&counters::header()));
        let mode = fs::metadata(&slots).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o666, "also for users who are not root");
        fs::write(&slots, b"used").expect("the tenant writes");
        create(dir.path()).expect("again");
        assert_eq!(fs::read(&slots).expect("read"), b"used");
        unmount(dir.path()).expect("nothing to take away");
    }

    #[test]
    fn neither_waits_for_a_fifo_nor_opens_a_links_target() {
        let dir = tempfile::tempdir().expect("tempdir");
        let slots = dir.path().join(COUNTERS);
        create(dir.path()).expect("made");
        let other = dir.path().join("other");
        fs::rename(&slots, &other).expect("moved");
        let closed = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&other, closed).expect("closed");
        std::os::unix::fs::symlink(&other, &slots).expect("linked");
        create(dir.path()).expect_err("a link");
        let mode = fs::metadata(&other).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(&slots).expect("removed");
        let fifo = Command::new("mkfifo").arg(&slots).status();
        assert!(fifo.expect("mkfifo").success());
        create(dir.path()).expect_err("a FIFO");
        unmount(dir.path()).expect("unmounted");
    }

    /// Runs [`child_mounts_counters_in_own_namespace`] in a mount namespace of its own, where
    /// mounts are shared as on a host with systemd.
    #[test]
    fn full_counters_file_takes_no_space_from_others() {
        let place = tempfile::tempdir().expect("tempdir");
        let child = "allocation::counters_file::tests::child_mounts_counters_in_own_namespace";
        run_child(child, SHARE, place.path(), place.path().as_os_str());
    }

    #[test]
    fn child_mounts_counters_in_own_namespace() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let table = fs::read_to_string(tmpfs::MOUNTS).expect("mounts");
        let shared = table.lines().find(|line| line.contains("shared:"));
        let place = shared.and_then(|line| line.split(' ').nth(4));
        let place = Path::new(place.expect("a shared mount"));
        let (one, other) = (place.join("one"), place.join("other"));
        let slots = |directory: &Path| directory.join(COUNTERS);
        let label = "system_u:object_r:container_file_t:s0";
        for directory in [&one, &other] {
            fs::create_dir(directory).expect("made");
            let fixed = selinux::Label::Fixed(label.to_owned());
            selinux::relabel(&fixed, &[directory]).expect("labelled");
            create(directory).expect("created");
            // The new file system inherits the label.
            let changed =
                selinux::relabel(&fixed, &[&directory.join(COUNTERS_FOLDER)]).expect("read");
            assert!(changed <= 1, "the folder itself had the label");
            assert!(tmpfs::is_mounted(&directory.join(COUNTERS_FOLDER)).expect("read"));
        }
        let full = fs::write(slots(&one), vec![1; 3 << 20]).expect_err("it is full");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        fs::write(one.join(COUNTERS_FOLDER).join("more"), b"").expect_err("no second file");
        let zeros = vec![0; usize::try_from(counters::SIZE).expect("small")];
        fs::write(slots(&other), &zeros).expect("the other has space");
        // A restarted agent mounts nothing twice and writes nothing again.
        create(&other).expect("again");
        assert_eq!(fs::read(slots(&other)).expect("read"), zeros);
        for directory in [&one, &other] {
            unmount(directory).expect("unmounted");
            unmount(directory).expect("once is enough");
            assert_eq!(fs::read(slots(directory)).expect("what lay below"), b"");
            files::remove(directory).expect("removed");
        }
        println!("CHILD");
    }
}

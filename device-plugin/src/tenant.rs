//! The one file of a seat that its tenant writes: the counters file. On the host it lies on a small
//! file system of its own, so that a tenant who fills it takes room from nobody
//! (`docs/threat-model.md`).
//!
//! Fed by: seats as they are made and collected. Must not: mount over a file that a container
//! already has, or mount where the container runtime would not see it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Once;

use aliquot_region::{counters, room};

use crate::files::{self, FileError, failed};
use crate::selinux;

/// Its folder in a seat's directory.
const FOLDER: &str = "counters";
/// Its name in there.
const SLOTS: &str = "slots";
const MOUNTS: &str = "/proc/self/mountinfo";

/// Makes the counters file of a seat; one that is there is left alone.
///
/// What a container has at this path is the file; below it lies an empty one, on which the runtime
/// mounts it. Where mounts of ours do not reach the runtime it is a plain file, and that is said
/// once.
pub fn equip(seat: &Path) -> Result<(), FileError> {
    let folder = seat.join(FOLDER);
    files::directory(&folder, 0o755)?;
    let slots = folder.join(SLOTS);
    let mounted = room::is_mounted(&folder).map_err(failed("inspect", &folder))?;
    if !mounted && !is_in_use(&slots) && reaches_the_runtime(&folder) {
        files::replace(&slots, b"")?;
        let made = room::make(&folder, selinux::is_labelled(seat));
        made.map_err(failed("mount a file system at", &folder))?;
        selinux::inherit(&folder)?;
    }
    counters_file(&slots)
}

/// Takes the file system of a seat away, before its directory is removed.
pub fn strip(seat: &Path) -> Result<(), FileError> {
    let folder = seat.join(FOLDER);
    room::remove(&folder).map_err(failed("unmount", &folder))
}

/// A container of an earlier version has the file itself mounted.
fn is_in_use(slots: &Path) -> bool {
    fs::metadata(slots).is_ok_and(|found| found.len() > 0)
}

fn reaches_the_runtime(folder: &Path) -> bool {
    static SAID: Once = Once::new();
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let table = fs::read_to_string(MOUNTS).unwrap_or_default();
    let reaches = room::is_seen_by_others(&table, &folder);
    if !reaches {
        SAID.call_once(|| {
            tracing::warn!(
                folder = %folder.display(),
                "counters files share the file system of the state directory: mounts made here do \
                 not reach the container runtime (mountPropagation: Bidirectional)"
            );
        });
    }
    reaches
}

fn counters_file(path: &Path) -> Result<(), FileError> {
    const MODE: u32 = 0o666;
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(MODE)
        .open(path)
        .map_err(failed("create", path))?;
    file.set_permissions(fs::Permissions::from_mode(MODE))
        .map_err(failed("chmod", path))?;
    let length = file.metadata().map_err(failed("inspect", path))?.len();
    if length == 0 {
        file.write_all_at(&counters::header(), 0)
            .and_then(|()| file.set_len(counters::SIZE))
            .map_err(failed("size", path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_counters_file_is_made_once_for_every_user_and_then_left_alone() {
        let room = tempfile::tempdir().expect("tempdir");
        let slots = room.path().join(FOLDER).join(SLOTS);
        equip(room.path()).expect("made");
        let fresh = fs::read(&slots).expect("read");
        assert_eq!(fresh.len() as u64, counters::SIZE);
        assert!(fresh.starts_with(&counters::header()));
        let mode = fs::metadata(&slots).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o666, "also for users who are not root");
        fs::write(&slots, b"used").expect("the tenant writes");
        equip(room.path()).expect("again");
        assert_eq!(fs::read(&slots).expect("read"), b"used");
        strip(room.path()).expect("nothing to take away");
    }

    /// Runs [`plays_an_agent_that_may_mount`] in a mount namespace of its own, where mounts are
    /// shared as on a host with systemd.
    #[test]
    fn a_seat_that_is_filled_takes_room_from_no_other() {
        let own = std::env::current_exe().expect("this program");
        let place = tempfile::tempdir().expect("tempdir");
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg("mount --bind \"$2\" \"$2\" && mount --make-shared \"$2\" && exec \"$1\" --exact tenant::tests::plays_an_agent_that_may_mount --nocapture")
            .arg("sh")
            .arg(own)
            .arg(place.path())
            .env(PLAYED, "1")
            .output()
            .expect("unshare");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains("PLAYED"),
            "{output:?}"
        );
    }

    const PLAYED: &str = "ALIQUOT_TEST_MAY_MOUNT";

    #[test]
    fn plays_an_agent_that_may_mount() {
        if std::env::var_os(PLAYED).is_none() {
            return;
        }
        let table = fs::read_to_string(MOUNTS).expect("mounts");
        let shared = table.lines().find(|line| line.contains("shared:"));
        let place = shared.and_then(|line| line.split(' ').nth(4));
        let place = Path::new(place.expect("a shared mount"));
        let (one, other) = (place.join("one"), place.join("other"));
        let slots = |seat: &Path| seat.join(FOLDER).join(SLOTS);
        let label = "system_u:object_r:container_file_t:s0";
        for seat in [&one, &other] {
            fs::create_dir(seat).expect("made");
            let fixed = selinux::Label::Fixed(label.to_owned());
            selinux::keep(&fixed, &[seat]).expect("labelled");
            equip(seat).expect("equipped");
            // The new file system is as its seat.
            let fixed = selinux::keep(&fixed, &[&seat.join(FOLDER)]).expect("looked");
            assert!(fixed <= 1, "the folder itself had the label");
            assert!(room::is_mounted(&seat.join(FOLDER)).expect("looked"));
        }
        let full = fs::write(slots(&one), vec![1; 3 << 20]).expect_err("it is full");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        fs::write(one.join(FOLDER).join("more"), b"").expect_err("no second file");
        let zeros = vec![0; usize::try_from(counters::SIZE).expect("small")];
        fs::write(slots(&other), &zeros).expect("the other has room");
        // Another agent, later: nothing is mounted twice, nothing is written anew.
        equip(&other).expect("again");
        assert_eq!(fs::read(slots(&other)).expect("read"), zeros);
        for seat in [&one, &other] {
            strip(seat).expect("unmounted");
            strip(seat).expect("once is enough");
            assert_eq!(fs::read(slots(seat)).expect("what lay below"), b"");
            files::remove(seat).expect("removed");
        }
        println!("PLAYED");
    }
}

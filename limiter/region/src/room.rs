//! A small file system for one seat's counters file, on the host: whatever a tenant writes fills
//! this and nothing that another uses.
//!
//! Fed by: the device plugin. Must not: mount twice, or fail where it is mounted already.

use std::ffi::CStr;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::counters::SIZE;
use crate::map::c_path;

/// The file, its directory, and room for none.
const INODES: u32 = 2;

/// Whether a mount that is made at `path` is seen by the container runtime: the file system that
/// `path` is on must be shared (`shared:` in `mountinfo`, the text of `/proc/self/mountinfo`).
pub fn is_seen_by_others(mountinfo: &str, path: &Path) -> bool {
    let mut found: Option<(usize, bool)> = None;
    for line in mountinfo.lines() {
        let mut fields = line.split(' ');
        let Some(point) = fields.nth(4).map(unescaped) else {
            continue;
        };
        if !path.starts_with(&point) {
            continue;
        }
        let mut optional = fields.skip(1).take_while(|field| *field != "-");
        let shared = optional.any(|field| field.starts_with("shared:"));
        // The longest, and of equals the one that lies on top.
        if found.is_none_or(|(length, _)| point.len() >= length) {
            found = Some((point.len(), shared));
        }
    }
    found.is_some_and(|(_, shared)| shared)
}

/// A path as `mountinfo` writes it.
fn unescaped(field: &str) -> String {
    field.replace("\\040", " ").replace("\\134", "\\")
}

/// Whether something is mounted at `folder`.
pub fn is_mounted(folder: &Path) -> io::Result<bool> {
    let above = folder.parent().unwrap_or(folder);
    Ok(folder.symlink_metadata()?.dev() != above.symlink_metadata()?.dev())
}

/// Mounts a file system of the size of one counters file at `folder`, if there is none. `labelled`:
/// its files will have labels of `SELinux`, which the kernel takes out of the room for inodes.
pub fn make(folder: &Path, labelled: bool) -> io::Result<()> {
    if is_mounted(folder)? {
        return Ok(());
    }
    let target = c_path(folder)?;
    let kind = c"tmpfs";
    // What two labels leave of one more is too little for a third file.
    let inodes = INODES + u32::from(labelled);
    let options = format!("size={SIZE},nr_inodes={inodes},mode=0755\0");
    let options = CStr::from_bytes_with_nul(options.as_bytes()).map_err(io::Error::other)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: four C strings that live through the call.
    let done = unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Takes what is mounted at `folder` away; processes that have its file mapped keep that.
pub fn remove(folder: &Path) -> io::Result<()> {
    match is_mounted(folder) {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    let target = c_path(folder)?;
    // SAFETY: a C string.
    let done = unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_seen_where_the_nearest_file_system_above_is_shared() {
        let table = "27 1 8:1 / / rw,relatime - ext4 /dev/vda rw\n\
            30 27 8:2 / /var/lib rw shared:7 - ext4 /dev/vdb rw\n\
            31 30 0:9 / /var/lib/own\\040one rw master:3 - tmpfs t rw\n\
            32 27 0:9 / /both rw - tmpfs t rw\n\
            33 32 0:9 / /both rw shared:1 master:2 - tmpfs t rw\n";
        let check = |path: &str, expected| {
            assert_eq!(
                is_seen_by_others(table, Path::new(path)),
                expected,
                "{path}"
            );
        };
        check("/var/lib/aliquot/seats", true);
        check("/var/library", false);
        check("/var/lib/own one/x", false);
        check("/both/x", true);
        check("/etc", false);
        assert!(!is_seen_by_others("", Path::new("/")));
    }

    #[test]
    fn what_is_not_mounted_is_left_alone() {
        let room = tempfile::tempdir().unwrap();
        assert!(!is_mounted(room.path()).unwrap());
        remove(room.path()).unwrap();
        remove(&room.path().join("nothing")).unwrap();
        assert!(room.path().exists());
    }
}

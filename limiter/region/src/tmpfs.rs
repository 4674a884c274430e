//! A small file system on the host for one container's counters file: whatever a tenant writes
//! fills only this. Mounting and unmounting can be repeated.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::counters::SIZE;
use crate::map::checked;

/// The file and its directory, and no room for more.
const INODES: u32 = 2;

/// Whether the container runtime sees a mount at `path`: the file system of `path` must be shared
/// (`shared:` in `mountinfo`, the text of `/proc/self/mountinfo`).
pub fn propagates_mounts(mountinfo: &str, path: &Path) -> bool {
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
        // The longest prefix wins, and of equal ones the one on top.
        if found.is_none_or(|(length, _)| point.len() >= length) {
            found = Some((point.len(), shared));
        }
    }
    found.is_some_and(|(_, shared)| shared)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn unescaped(field: &str) -> String {
    field.replace("\\040", " ").replace("\\134", "\\")
}

pub fn is_mounted(folder: &Path) -> io::Result<bool> {
    let above = folder.parent().unwrap_or(folder);
    Ok(folder.symlink_metadata()?.dev() != above.symlink_metadata()?.dev())
}

/// Mounts a file system of the size of one counters file at `folder`, unless one is mounted.
/// `labelled`: its files get `SELinux` labels, which the kernel counts as inodes.
pub fn mount(folder: &Path, labelled: bool) -> io::Result<()> {
    if is_mounted(folder)? {
        return Ok(());
    }
    let target = c_path(folder)?;
    let kind = c"tmpfs";
    // The rest that two labels leave of one more inode is too small for a third file.
    let inodes = INODES + u32::from(labelled);
    let text = format!("size={SIZE},nr_inodes={inodes},mode=0755\0");
    let options = CStr::from_bytes_with_nul(text.as_bytes()).map_err(io::Error::other)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: four C strings that live through the call.
    checked(unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    })
}

/// Gives the calling thread, and every process that it starts, a mount namespace of their own, a copy
/// of the current one.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: no memory is passed; from now on the thread shares neither its mounts nor its root and
    // working directory with the other threads.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) })
}

/// Unmounts `folder`; processes that have mapped its file keep their mapping.
pub fn unmount(folder: &Path) -> io::Result<()> {
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
    checked(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn propagates_mounts_below_nearest_shared_mount() {
        let table = "27 1 8:1 / / rw,relatime - ext4 /dev/vda rw\n\
            30 27 8:2 / /var/lib rw shared:7 - ext4 /dev/vdb rw\n\
            31 30 0:9 / /var/lib/own\\040one rw master:3 - tmpfs t rw\n\
            32 27 0:9 / /both rw - tmpfs t rw\n\
            33 32 0:9 / /both rw shared:1 master:2 - tmpfs t rw\n";
        let check = |path: &str, expected| {
            assert_eq!(
                propagates_mounts(table, Path::new(path)),
                expected,
                "{path}"
            );
        };
        check("/var/lib/aliquot/containers", true);
        check("/var/library", false);
        check("/var/lib/own one/x", false);
        check("/both/x", true);
        check("/etc", false);
        assert!(!propagates_mounts("", Path::new("/")));
    }
}

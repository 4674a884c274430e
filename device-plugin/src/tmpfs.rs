//! Small file systems on the host, each for what one container or the clients of one MPS daemon
//! write: they fill only this. Unmounting can be repeated.

use std::ffi::CStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags};

pub(crate) const MOUNTS: &str = "/proc/self/mountinfo";
/// With these they are mounted.
pub(crate) const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Whether the container runtime sees a mount at `folder`: the file system there must be shared.
pub(crate) fn propagates_mounts(folder: &Path) -> bool {
    let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let table = fs::read_to_string(MOUNTS).unwrap_or_default();
    is_shared(&table, &folder)
}

/// Whether the file system of `path` is `shared:` in `table`, the text of [`MOUNTS`].
fn is_shared(table: &str, path: &Path) -> bool {
    let mut found: Option<(usize, bool)> = None;
    for line in table.lines() {
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

fn unescaped(field: &str) -> String {
    field.replace("\\040", " ").replace("\\134", "\\")
}

pub(crate) fn is_mounted(folder: &Path) -> io::Result<bool> {
    let above = folder.parent().unwrap_or(folder);
    Ok(folder.symlink_metadata()?.dev() != above.symlink_metadata()?.dev())
}

/// Mounts one at `folder`; `options` has its size.
pub(crate) fn mount(folder: &Path, options: &CStr) -> io::Result<()> {
    let made = rustix::mount::mount("tmpfs", folder, "tmpfs", FLAGS, options);
    Ok(made?)
}

/// Unmounts `folder`; processes that have opened or mapped its files keep them.
pub(crate) fn unmount(folder: &Path) -> io::Result<()> {
    let absent = [ErrorKind::NotFound, ErrorKind::NotADirectory];
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match is_mounted(folder) {
        Ok(true) => Ok(rustix::mount::unmount(folder, flags)?),
        Ok(false) => Ok(()),
        Err(error) if absent.contains(&error.kind()) => Ok(()),
        Err(error) => Err(error),
    }
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
            assert_eq!(is_shared(table, Path::new(path)), expected, "{path}");
        };
        check("/var/lib/aliquot/containers", true);
        check("/var/library", false);
        check("/var/lib/own one/x", false);
        check("/both/x", true);
        check("/etc", false);
        assert!(!is_shared("", Path::new("/")));
    }
}

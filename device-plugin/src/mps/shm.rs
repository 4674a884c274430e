//! The memory at `/dev/shm` of the daemons and their clients: a file system of limited size that is
//! mounted on the host, so that no tenant fills the host's `/run`. It outlives this process, as
//! clients do.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aliquot_core::Mib;
use aliquot_region::tmpfs;
use rustix::mount::{MountFlags, mount, mount_bind, mount_remount};
use thiserror::Error;

use crate::files::{FileError, failed};
use crate::selinux::{self, Label};

/// Where CUDA has it.
const OWN: &str = "/dev/shm";
const MOUNTS: &str = "/proc/self/mountinfo";

/// Why the daemons have no shared memory.
#[derive(Debug, Error)]
pub enum ShmError {
    /// A step on a path failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// What is mounted here stays here.
    #[error(
        "--shm-dir: what is mounted at {} does not reach the container runtime: expected a directory of the host with mountPropagation: Bidirectional",
        .0.display()
    )]
    NotShared(PathBuf),
}

/// Mounts the memory at `folder`, a directory of the host under its own path, and at [`OWN`]. One
/// that is mounted there stays, with the size changed.
pub fn prepare(folder: &Path, size: Option<Mib>, label: &Label) -> Result<(), ShmError> {
    prepare_at(folder, size, label, Path::new(OWN))
}

fn prepare_at(folder: &Path, size: Option<Mib>, label: &Label, own: &Path) -> Result<(), ShmError> {
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = options(size);
    if tmpfs::is_mounted(folder).map_err(failed("inspect", folder))? {
        if let Err(error) = mount_remount(folder, flags, options.as_c_str()) {
            let folder = folder.display();
            tracing::warn!(%folder, %error, ?options, "cannot change the size of the shared memory of MPS clients, who may use more than that");
        }
    } else {
        let table = fs::read_to_string(MOUNTS).unwrap_or_default();
        let real = fs::canonicalize(folder).map_err(failed("inspect", folder))?;
        if !tmpfs::propagates_mounts(&table, &real) {
            return Err(ShmError::NotShared(folder.to_owned()));
        }
        let made = mount("shm", folder, "tmpfs", flags, options.as_c_str());
        let made = made.map_err(io::Error::from);
        made.map_err(failed("mount a file system at", folder))?;
    }
    selinux::relabel(label, &[folder])?;
    if device(folder)? != device(own)? {
        let bound = mount_bind(folder, own).map_err(io::Error::from);
        bound.map_err(failed("mount the shared memory at", own))?;
    }
    Ok(())
}

fn device(path: &Path) -> Result<u64, FileError> {
    let found = fs::metadata(path).map_err(failed("inspect", path))?;
    Ok(found.dev())
}

/// Any user's client creates files there.
fn options(size: Option<Mib>) -> CString {
    let size = size.map_or_else(|| "50%".to_owned(), |size| format!("{}m", size.0));
    CString::new(format!("mode=1777,size={size}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;
    use crate::files;

    #[test]
    fn shared_memory_defaults_to_half_of_the_nodes() {
        let text = |size| options(size).into_string().expect("text");
        assert_eq!(text(None), "mode=1777,size=50%");
        assert_eq!(text(Some(Mib(512))), "mode=1777,size=512m");
    }

    const CHILD: &str = "ALIQUOT_TEST_MAY_MOUNT";

    /// Runs [`child_mounts_shared_memory_in_own_namespace`] in a mount namespace of its own, where
    /// one directory is shared as on a host with systemd, and the other is not.
    #[test]
    fn tenants_fill_only_their_sized_shared_memory() {
        let own = std::env::current_exe().expect("this program");
        let (shared, private) = (tempfile::tempdir(), tempfile::tempdir());
        let (shared, private) = (shared.expect("tempdir"), private.expect("tempdir"));
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg("mount --bind \"$2\" \"$2\" && mount --make-shared \"$2\" && exec \"$1\" --exact mps::shm::tests::child_mounts_shared_memory_in_own_namespace --nocapture")
            .arg("sh")
            .arg(own)
            .arg(shared.path())
            .env(CHILD, std::env::join_paths([shared.path(), private.path()]).expect("paths"))
            .output()
            .expect("unshare");
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && output_text.contains("CHILD"),
            "{output:?}"
        );
    }

    #[test]
    fn child_mounts_shared_memory_in_own_namespace() {
        let Some(places) = std::env::var_os(CHILD) else {
            return;
        };
        let places: Vec<PathBuf> = std::env::split_paths(&places).collect();
        let (shared, private) = (places[0].join("run/shm"), places[1].join("run/shm"));
        let own = places[1].join("dev-shm");
        fs::create_dir(&own).expect("made");
        let refused = prepare_at(&private, Some(Mib(1)), &Label::Off, &own);
        let refused = refused.expect_err("not shared").to_string();
        assert!(refused.contains("Bidirectional"), "{refused}");
        assert!(
            refused.contains(&private.display().to_string()),
            "{refused}"
        );
        let prepare = |mib| prepare_at(&shared, Some(Mib(mib)), &Label::Off, &own).expect("made");
        prepare(1);
        let mode = fs::metadata(&shared).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777, "for the clients of all users");
        fs::write(own.join("kept"), b"a client's").expect("written");
        let full = fs::write(own.join("more"), vec![1; 2 << 20]).expect_err("it is full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        fs::write(places[0].join("run/other"), vec![1; 2 << 20]).expect("the host has space");
        // The next supervisor uses it on, with its own size.
        prepare(8);
        fs::write(own.join("more"), vec![1; 2 << 20]).expect("there is space");
        assert_eq!(fs::read(shared.join("kept")).expect("read"), b"a client's");
        // Clients have more than that.
        prepare(1);
        let table = fs::read_to_string(MOUNTS).expect("mounts");
        let mounts = |path: &Path| {
            let point = path.display().to_string();
            table
                .lines()
                .filter(|line| line.split(' ').nth(4) == Some(point.as_str()))
                .count()
        };
        assert_eq!([&shared, &own].map(|path| mounts(path)), [1, 1]);
        for path in [&own, &shared] {
            tmpfs::unmount(path).expect("unmounted");
        }
        files::remove(&shared).expect("removed");
        println!("CHILD");
    }
}

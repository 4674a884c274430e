//! The memory at `/dev/shm` of one daemon and its clients: a file system of limited size, so that no
//! tenant fills the host's memory, and no client of another daemon sees its files. It is mounted on
//! the host, in the device's directory, and outlives daemon and supervisor, as clients do.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use aliquot_core::Mib;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change, mount_remount};
use rustix::thread::UnshareFlags;
use thiserror::Error;

use crate::files::{self, FileError, failed};
use crate::{selinux, tmpfs};

/// Where CUDA has it.
const DEV_SHM: &str = "/dev/shm";

#[derive(Debug, Error)]
pub(super) enum ShmError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "--state-dir: what is mounted at {} does not reach the container runtime: expected a directory of the host with mountPropagation: Bidirectional",
        .0.display()
    )]
    NotShared(PathBuf),
    #[error("cannot give the MPS daemon a mount namespace of its own: {0}")]
    Namespace(io::Error),
}

/// Mounts the memory at `folder`, a directory of the host under its own path. One that is mounted
/// there stays, with the size changed.
pub(super) fn mount(folder: &Path, size: Option<Mib>) -> Result<(), ShmError> {
    mount_with(folder, &options(size))
}

/// The same for the daemon's sockets, which clients reach by mounting `folder`: what root writes
/// there takes no space of the host's disk.
pub(super) fn mount_pipe(folder: &Path) -> Result<(), ShmError> {
    mount_with(folder, c"mode=755,size=8m")
}

fn mount_with(folder: &Path, options: &CStr) -> Result<(), ShmError> {
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    if tmpfs::is_mounted(folder).map_err(failed("inspect", folder))? {
        if let Err(error) = mount_remount(folder, tmpfs::FLAGS, options) {
            let folder = folder.display();
            tracing::warn!(%folder, %error, ?options, "cannot change the size of the memory of MPS clients, who may use more than that");
        }
    } else if tmpfs::propagates_mounts(folder) {
        let made = tmpfs::mount(folder, options);
        made.map_err(failed("mount a file system at", folder))?;
    } else {
        return Err(ShmError::NotShared(folder.to_owned()));
    }
    Ok(selinux::inherit(folder)?)
}

/// Unmounts the memory and removes the directory. Clients that still run have it until they end.
pub(super) fn unmount(folder: &Path) -> Result<(), ShmError> {
    tmpfs::unmount(folder).map_err(failed("unmount", folder))?;
    Ok(files::remove(folder)?)
}

/// Runs `start` in a mount namespace of its own, in which the memory mounted at `folder` is at
/// `/dev/shm`. The processes that it starts stay in that namespace.
pub(super) fn with_dev_shm<T: Send>(
    folder: &Path,
    start: impl FnOnce() -> T + Send,
) -> Result<T, ShmError> {
    let in_namespace = || -> Result<T, ShmError> {
        #[expect(deprecated, reason = "unsound with another flag, that of descriptors")]
        let unshared = rustix::thread::unshare(UnshareFlags::NEWNS);
        unshared.map_err(|error| ShmError::Namespace(error.into()))?;
        // Mounts made here stay here; what is mounted or unmounted on the host still changes here.
        let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", flags).map_err(|error| ShmError::Namespace(error.into()))?;
        let bound = mount_bind(folder, DEV_SHM).map_err(io::Error::from);
        bound.map_err(failed("mount the shared memory at", Path::new(DEV_SHM)))?;
        Ok(start())
    };
    // Of this thread alone, which ends afterwards.
    let done = thread::scope(|scope| scope.spawn(in_namespace).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Any user's client creates files there; those of other users it can neither remove nor replace.
fn options(size: Option<Mib>) -> CString {
    let size = size.map_or_else(|| "50%".to_owned(), |size| format!("{}m", size.0));
    CString::new(format!("mode=1777,size={size}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::process::Command;

    use super::*;
    use crate::testing::{CHILD, SHARE, run_child};

    #[test]
    fn shared_memory_defaults_to_half_of_the_nodes() {
        let text = |size| options(size).into_string().expect("text");
        assert_eq!(text(None), "mode=1777,size=50%");
        assert_eq!(text(Some(Mib(512))), "mode=1777,size=512m");
    }

    /// Runs [`child_mounts_shared_memory_in_own_namespace`] in a mount namespace of its own, where
    /// one directory is shared as on a host with systemd, and the other is not.
    #[test]
    fn tenants_fill_only_their_sized_shared_memory() {
        let (shared, private) = (tempfile::tempdir(), tempfile::tempdir());
        let (shared, private) = (shared.expect("tempdir"), private.expect("tempdir"));
        let both = std::env::join_paths([shared.path(), private.path()]).expect("paths");
        let child = "modes::mps::shm::tests::child_mounts_shared_memory_in_own_namespace";
        run_child(child, SHARE, shared.path(), &both);
    }

    #[test]
    fn child_mounts_shared_memory_in_own_namespace() {
        let Some(places) = std::env::var_os(CHILD) else {
            return;
        };
        let places: Vec<PathBuf> = std::env::split_paths(&places).collect();
        let (one, other) = (places[0].join("GPU-a/shm"), places[0].join("GPU-b/shm"));
        let private = places[1].join("GPU-a/shm");
        let refused = mount(&private, Some(Mib(1))).expect_err("not shared");
        let refused = refused.to_string();
        assert!(refused.contains("Bidirectional"), "{refused}");
        assert!(
            refused.contains(&private.display().to_string()),
            "{refused}"
        );
        let mounted = |folder: &Path, mib| mount(folder, Some(Mib(mib))).expect("mounted");
        mounted(&one, 1);
        mounted(&other, 1);
        let mode = fs::metadata(&one).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777, "for the clients of all users");
        fs::write(one.join("kept"), b"a client's").expect("written");
        let full = fs::write(one.join("more"), vec![1; 2 << 20]).expect_err("it is full");
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        fs::write(places[0].join("file"), vec![1; 2 << 20]).expect("the host has space");
        assert_eq!(files::names(&other).expect("listed"), [""; 0]);
        // The next daemon uses it on, with its own size.
        mounted(&one, 8);
        fs::write(one.join("more"), vec![1; 2 << 20]).expect("there is space");
        assert_eq!(fs::read(one.join("kept")).expect("read"), b"a client's");
        // Clients have more than that.
        mounted(&one, 1);
        starts_daemon_with_memory_at_dev_shm(&one);
        let pipe = places[0].join("GPU-a/pipe");
        for _ in 0..2 {
            mount_pipe(&pipe).expect("mounted");
            let full = fs::write(pipe.join("control"), vec![1; 16 << 20]).expect_err("it is full");
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        }
        let mode = fs::metadata(&pipe).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "root creates sockets");
        assert_eq!(mounts_at(&pipe), 1);
        unmount(&pipe).expect("unmounted");
        for folder in [&one, &other] {
            assert_eq!(mounts_at(folder), 1);
            unmount(folder).expect("unmounted");
            unmount(folder).expect("once is enough");
            assert!(!folder.exists());
        }
        println!("CHILD");
    }

    fn starts_daemon_with_memory_at_dev_shm(folder: &Path) {
        let own = || fs::metadata(DEV_SHM).expect("there").dev();
        let before = own();
        let started = with_dev_shm(folder, || Command::new("ls").arg(DEV_SHM).output());
        let output = started.expect("a namespace").expect("it ran");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "kept\nmore\n");
        // This process's own is as before.
        assert_eq!(own(), before);
        let missing = folder.with_file_name("missing");
        let refused = with_dev_shm(&missing, || ()).expect_err("nothing to mount");
        assert!(refused.to_string().contains(DEV_SHM), "{refused}");
    }

    fn mounts_at(folder: &Path) -> usize {
        let table = fs::read_to_string(tmpfs::MOUNTS).expect("mounts");
        let point = folder.display().to_string();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|other| **other == point).count()
    }
}

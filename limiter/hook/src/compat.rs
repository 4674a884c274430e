//! The CUDA drivers that an image brings for forward compatibility: a shim library is mounted over
//! each of them, and loads that file as the real library.
//!
//! The hook runs in the container's mount namespace, before the runtime changes to the container's
//! root: the container's mounts are in place, and paths are still those of the host. It changes
//! nothing but that namespace.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aliquot_shim::{COMPAT_LIBRARIES, FOLDER, LIBRARIES, compat_folder, compat_shim};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatVfsMountFlags, StatxFlags, fstatvfs, statx};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, mount_remount,
    move_mount, open_tree,
};
use serde_json::Value;

use crate::{AS_FOLDER, AS_PATH, Bundle, HookError, by_descriptor, content, open_in, unreadable};

/// How the names of the CUDA driver library begin.
const DRIVER: &[u8] = b"libcuda.so.";
/// Where CUDA toolkits are, in folders whose names begin with `cuda`.
const TOOLKITS: &str = "/usr/local";
/// The loader's configuration, and the folder of its parts.
const LOADER_CONFIGURATION: [&str; 2] = ["/etc/ld.so.conf", "/etc/ld.so.conf.d"];
/// Where the loader searches without any configuration.
const LOADER_FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Where the container directory is mounted in a container.
const DIRECTORY: &str = "/.aliquot";
const MOUNTS: &str = "/proc/self/mountinfo";
const ELF: &[u8] = b"\x7fELF";
const ELF_HEADER: usize = 64;

/// Device and inode: the same for a file wherever it is mounted.
type FileId = (u64, u64);

/// Reads the container state from `state`, and mounts the shim libraries in `version`, the folder of
/// an installed version.
pub fn run(state: impl Read, version: &Path) -> Result<(), HookError> {
    let bundle = Bundle::read(state)?;
    let below_bundle = bundle.config["root"]["path"].as_str();
    let path = bundle
        .folder
        .join(below_bundle.ok_or_else(|| bundle.no_root())?);
    let root =
        rustix::fs::open(&path, AS_FOLDER, Mode::empty()).map_err(unreadable(Path::new("/")))?;
    let shims = shims(version)?;
    let mut covered = Vec::new();
    for path in candidates(&root, &bundle.config)? {
        // A second path to a file that was covered before leads to a shim.
        let Some(library) = open_library(&root, &path, &shims)? else {
            continue;
        };
        let index = covered.len();
        covered.push(path);
        if index == COMPAT_LIBRARIES {
            return Err(HookError::TooMany(covered));
        }
        cover(&root, &covered[index], &library, version, index)?;
    }
    Ok(())
}

/// The files of a version that are mounted in place of the CUDA driver.
fn shims(version: &Path) -> Result<Vec<FileId>, HookError> {
    let on_host = |path: &Path, source| HookError::Host {
        path: path.to_owned(),
        source,
    };
    let name = LIBRARIES[0].name;
    let compat = (0..COMPAT_LIBRARIES).map(compat_shim);
    let names = compat.chain([name.to_owned()]);
    let mut paths: Vec<PathBuf> = names.map(|name| version.join(name)).collect();
    // Those for one driver are in folders of their own.
    for entry in fs::read_dir(version).map_err(|error| on_host(version, error))? {
        let folder = entry.map_err(|error| on_host(version, error))?.path();
        paths.extend(Some(folder.join(name)).filter(|path| path.exists()));
    }
    let shims = paths.iter().map(|path| {
        let metadata = fs::metadata(path).map_err(|error| on_host(path, error))?;
        Ok(id(&metadata))
    });
    shims.collect()
}

fn id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// The paths that have a name of the CUDA driver library, in every folder where the loader may find
/// one. A path may occur twice.
fn candidates(root: &OwnedFd, config: &Value) -> Result<Vec<PathBuf>, HookError> {
    let mut folders = Vec::new();
    for toolkit in names(root, Path::new(TOOLKITS))? {
        if toolkit.as_bytes().starts_with(b"cuda") {
            let compat = Path::new(TOOLKITS).join(toolkit).join("compat");
            let below = names(root, &compat)?;
            folders.extend(below.iter().map(|name| compat.join(name)));
            folders.push(compat);
        }
    }
    folders.extend(environment_folders(config));
    let [configuration, parts] = LOADER_CONFIGURATION.map(PathBuf::from);
    let mut configurations = vec![configuration];
    for name in names(root, &parts)? {
        if name.as_bytes().ends_with(b".conf") {
            configurations.push(parts.join(name));
        }
    }
    for path in configurations {
        if let Some(file) = open_present(root, &path, AS_PATH)? {
            folders.extend(configured_folders(&content(file, &path)?));
        }
    }
    folders.extend(LOADER_FOLDERS.map(PathBuf::from));
    let mut found = Vec::new();
    for folder in folders {
        let names = names(root, &folder)?;
        let drivers = names
            .iter()
            .filter(|name| name.as_bytes().starts_with(DRIVER));
        found.extend(drivers.map(|name| folder.join(name)));
    }
    Ok(found)
}

fn environment_folders(config: &Value) -> Vec<PathBuf> {
    let process = &config["process"];
    let directory = Path::new(process["cwd"].as_str().unwrap_or("/"));
    let variables = process["env"].as_array().into_iter().flatten();
    let lists =
        variables.filter_map(|variable| variable.as_str()?.strip_prefix("LD_LIBRARY_PATH="));
    let folders = lists.flat_map(|list| list.split([':', ';']));
    folders.map(|folder| directory.join(folder)).collect()
}

fn configured_folders(text: &[u8]) -> Vec<PathBuf> {
    let lines = text.split(|byte| *byte == b'\n');
    let uncommented = lines.filter_map(|line| line.split(|byte| *byte == b'#').next());
    let folders = uncommented.map(<[u8]>::trim_ascii);
    folders
        .filter(|folder| folder.starts_with(b"/"))
        .map(|folder| PathBuf::from(OsStr::from_bytes(folder)))
        .collect()
}

/// The names in a folder, sorted; none if there is no such folder.
fn names(root: &OwnedFd, folder: &Path) -> Result<Vec<OsString>, HookError> {
    let mut names = Vec::new();
    let Some(opened) = open_present(root, folder, AS_FOLDER)? else {
        return Ok(names);
    };
    for entry in Dir::new(opened).map_err(unreadable(folder))? {
        let entry = entry.map_err(unreadable(folder))?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Opens a path in the container; `None` if nothing is there for us. Volumes that even root may not
/// read (FUSE, NFS) are left to the preload list.
fn open_present(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<Option<OwnedFd>, HookError> {
    match open_in(root, path, flags) {
        Ok(opened) => Ok(Some(opened)),
        // No file can have a path that is too long, as one in a variable of the image may be.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::ACCESS) => {
            Ok(None)
        }
        Err(error) => Err(unreadable(path)(error)),
    }
}

/// Opens a library with [`AS_PATH`]; `None` if this is no ELF file, or a shim.
fn open_library(root: &OwnedFd, path: &Path, shims: &[FileId]) -> Result<Option<File>, HookError> {
    let Some(library) = open_present(root, path, AS_PATH)?.map(File::from) else {
        return Ok(None);
    };
    let metadata = library.metadata().map_err(unreadable(path))?;
    if !metadata.is_file() || shims.contains(&id(&metadata)) {
        return Ok(None);
    }
    let mut header = [0; ELF_HEADER];
    let read =
        File::open(by_descriptor(&library)).and_then(|mut opened| opened.read_exact(&mut header));
    let no_driver = [ErrorKind::UnexpectedEof, ErrorKind::PermissionDenied];
    match read {
        Ok(()) => Ok(header.starts_with(ELF).then_some(library)),
        Err(error) if no_driver.contains(&error.kind()) => Ok(None),
        Err(error) => Err(unreadable(path)(error)),
    }
}

/// Mounts the library at `path` where the shim of this index loads it from, and the shim over it.
fn cover(
    root: &OwnedFd,
    path: &Path,
    library: &File,
    version: &Path,
    index: usize,
) -> Result<(), HookError> {
    let failed = |file: &Path, place: &Path, source: Errno| HookError::Mount {
        file: file.to_owned(),
        place: place.to_owned(),
        source: source.into(),
    };
    let mounts = fs::read(MOUNTS).map_err(|source| HookError::Host {
        path: MOUNTS.into(),
        source,
    })?;
    let found = statx(library, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
    let mount = found.map_err(unreadable(path))?.stx_mnt_id;
    if is_shared(&String::from_utf8_lossy(&mounts), mount) {
        return Err(HookError::Shared(path.to_owned()));
    }
    stop_propagation(root).map_err(|source| HookError::Propagation {
        path: DIRECTORY.into(),
        source: source.into(),
    })?;
    let folder = Path::new(FOLDER).join(compat_folder(index));
    let real = folder.join(LIBRARIES[0].real);
    let placeholder = open_in(root, &real, AS_PATH).map_err(unreadable(&real))?;
    mount_read_only(library, &placeholder).map_err(|error| failed(path, &real, error))?;
    let shim = version.join(compat_shim(index));
    rustix::fs::open(&shim, AS_PATH, Mode::empty())
        .and_then(|opened| mount_read_only(&opened, library))
        .map_err(|error| failed(&shim, path, error))
}

/// Whether what is mounted in this mount propagates to others, by the text of [`MOUNTS`].
fn is_shared(mounts: &str, mount: u64) -> bool {
    let mount = mount.to_string();
    mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        let is_it = fields.next() == Some(mount.as_str());
        let mut optional = fields.skip(5).take_while(|field| *field != "-");
        is_it && optional.any(|field| field.starts_with("shared:"))
    })
}

/// What is mounted in the container directory must not appear on the host, which has the same one.
fn stop_propagation(root: &OwnedFd) -> Result<(), Errno> {
    let directory = open_in(root, Path::new(DIRECTORY), AS_PATH)?;
    mount_change(by_descriptor(&directory), MountPropagationFlags::PRIVATE)
}

/// Mounts a file on another one. A shim belongs to all containers, so none may write to it.
fn mount_read_only(file: impl AsFd, place: impl AsFd) -> Result<(), Errno> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let mount = open_tree(file, "", clone)?;
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&mount, "", place, "", both)?;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    // In a user namespace the kernel refuses to remove it.
    if fstatvfs(&mount)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        flags |= MountFlags::NOEXEC;
    }
    mount_remount(by_descriptor(&mount), flags, "")
}

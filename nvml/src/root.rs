//! Finds the driver's files below a root directory, such as that of a driver container. Symbolic
//! links never lead out of the root.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::error::NvmlError;

/// Where distributions install the driver's libraries.
pub const FOLDERS: [&str; 8] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
];

/// More links in a row are a cycle.
const MAX_LINKS: usize = 16;

/// What to load: `library` itself if it is a path or there is no `root`, otherwise the file of that
/// name below the root.
pub fn library(library: &Path, root: Option<&Path>) -> Result<OsString, NvmlError> {
    let Some(root) = root.filter(|_| library.components().count() == 1) else {
        return Ok(library.to_owned().into_os_string());
    };
    let name = library.to_string_lossy();
    let found = find(root, &name).ok_or_else(|| NvmlError::NotInRoot {
        library: name.into_owned(),
        root: root.to_owned(),
        searched: &FOLDERS,
    })?;
    Ok(root.join(found).into_os_string())
}

/// The file of this name in one of [`FOLDERS`], links resolved, relative to the root.
pub fn find(root: &Path, name: &str) -> Option<PathBuf> {
    let mut places = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    places.find_map(|place| resolve(root, &place).ok())
}

/// Resolves `path` below the root to a file, relative to the root. An absolute link starts at the
/// root, as in a container with that root. Fails with the system's error where there is no such file,
/// or none that may be read.
pub fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let at = follow(root, path).ok_or_else(|| io::Error::other("a cycle of symbolic links"))?;
    if fs::metadata(root.join(&at))?.is_file() {
        Ok(at)
    } else {
        Err(io::Error::other("not a file"))
    }
}

/// Whether `path` leads to something below the root. A path that may not be read counts as existing.
pub fn exists(root: &Path, path: &Path) -> bool {
    follow(root, path).is_some_and(|at| root.join(at).try_exists().unwrap_or(true))
}

/// Where `path` leads below the root, relative to it; `None` for a cycle of links.
fn follow(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut links = 0;
    let mut rest: Vec<PathBuf> = parts(path);
    let mut at = PathBuf::new();
    while let Some(next) = rest.pop() {
        if next == Path::new("..") {
            at.pop();
            continue;
        }
        let here = at.join(&next);
        match fs::read_link(root.join(&here)) {
            Ok(target) => {
                links += 1;
                if links > MAX_LINKS {
                    return None;
                }
                if target.is_absolute() {
                    at = PathBuf::new();
                }
                rest.extend(parts(&target));
            }
            Err(_) => at = here,
        }
    }
    Some(at)
}

/// The components of a path in reverse order.
fn parts(path: &Path) -> Vec<PathBuf> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    });
    let mut parts: Vec<PathBuf> = parts.collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn finds_library_in_root_of_driver_container() {
        let place = tempfile::tempdir().expect("tempdir");
        let root = place.path().join("driver");
        let lib = root.join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&lib).expect("made");
        fs::create_dir_all(root.join("opt")).expect("made");
        fs::write(lib.join("libnvidia-ml.so.580.82"), "nvml").expect("written");
        symlink("libnvidia-ml.so.580.82", lib.join("libnvidia-ml.so.1")).expect("linked");
        let check = |name: &str, expected: Option<&str>| {
            let expected = expected.map(|path| root.join(path).into_os_string());
            let found = library(Path::new(name), Some(&root));
            assert_eq!(found.ok(), expected, "{name}");
        };
        let real = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.82";
        check("libnvidia-ml.so.1", Some(real));
        check("libcuda.so.1", None);
        // An absolute link starts at the driver's root, and no link leads above it.
        fs::write(root.join("opt/cuda"), "cuda").expect("written");
        symlink("/opt/cuda", lib.join("libcuda.so.1")).expect("linked");
        check("libcuda.so.1", Some("opt/cuda"));
        fs::write(place.path().join("outside"), "not the driver's").expect("written");
        let above = "../../../../../outside";
        symlink(above, lib.join("libcuda.so.2")).expect("linked");
        check("libcuda.so.2", None);
        symlink("libcuda.so.3", lib.join("libcuda.so.3")).expect("linked");
        check("libcuda.so.3", None);
        let folder = Path::new("/usr/lib/x86_64-linux-gnu");
        for (path, expected) in [
            (folder.to_owned(), true),
            (folder.join("libcuda.so.1"), true),
            (folder.join("libcuda.so.2"), false),
            (folder.join("libcuda.so.3"), false),
            ("/opt/other".into(), false),
        ] {
            assert_eq!(exists(&root, &path), expected, "{}", path.display());
        }
    }

    #[test]
    fn reports_why_a_file_cannot_be_resolved() {
        let place = tempfile::tempdir().expect("tempdir");
        let root = place.path();
        fs::create_dir(root.join("folder")).expect("made");
        fs::write(root.join("file"), "").expect("written");
        symlink("cycle", root.join("cycle")).expect("linked");
        for (path, expected) in [
            ("missing", "No such file or directory (os error 2)"),
            ("file/below", "Not a directory (os error 20)"),
            ("folder", "not a file"),
            ("cycle", "a cycle of symbolic links"),
        ] {
            let error = resolve(root, Path::new(path)).expect_err(path);
            assert_eq!(error.to_string(), expected, "{path}");
        }
    }

    #[test]
    fn loads_path_or_rootless_name_unchanged() {
        let (name, path) = ("libnvidia-ml.so.1", "/opt/libnvidia-ml.so.1");
        let root = Some(Path::new("/nonexistent"));
        let library = |name: &str, root| library(Path::new(name), root);
        assert_eq!(library(path, root).expect("taken"), path);
        assert_eq!(library(name, None).expect("taken"), name);
        let missing = library(name, root).expect_err("not there").to_string();
        for part in [name, "/nonexistent", "usr/lib64"] {
            assert!(missing.contains(part), "{missing}");
        }
    }
}

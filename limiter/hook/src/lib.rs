//! The preload list of a container under the injection method preload: our library, followed by
//! what the image preloads, which is known only when the container is created.
//!
//! An OCI runtime runs this as a `createRuntime` hook: the container's root file system exists, and
//! our list covers the image's in the container's own mounts only. Links of the image are never
//! followed out of its root.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aliquot_shim::{FOLDER, LIMITER};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde_json::Value;
use thiserror::Error;

/// The file from which the loader reads what to load first.
const LIST: &str = "/etc/ld.so.preload";
/// The longest list of an image that is accepted, in bytes.
pub const MAX_LENGTH: u64 = 64 << 10;

/// Why a list could not be merged. The container is not created then.
#[derive(Debug, Error)]
pub enum HookError {
    /// The container state from the runtime is not JSON.
    #[error("cannot read the container state from standard input: {0}")]
    State(#[source] serde_json::Error),
    /// The container state names no bundle.
    #[error("the container state has no bundle")]
    NoBundle,
    /// The bundle's configuration cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The bundle's configuration is not JSON, or names no root.
    #[error("{} has no root.path", .0.display())]
    Root(PathBuf),
    /// The image's list cannot be read.
    #[error("cannot read the image's {LIST}: {0}")]
    Image(#[source] io::Error),
    /// The image's list is too long.
    #[error("the image's {LIST} is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// The container's list cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Where the list is that a container would have without us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOrigin {
    /// A folder out of which no link is followed, or the file itself.
    pub root: PathBuf,
    /// The file in it; empty where `root` is the file.
    pub rest: PathBuf,
}

/// Reads the container state from `state` and updates the list at `ours`. It is written in place,
/// because the container has that very file mounted.
pub fn run(state: impl Read, ours: &Path) -> Result<(), HookError> {
    let state: Value = serde_json::from_reader(state).map_err(HookError::State)?;
    let bundle = state["bundle"].as_str().ok_or(HookError::NoBundle)?;
    let path = Path::new(bundle).join("config.json");
    let read = |source| HookError::Bundle {
        path: path.clone(),
        source,
    };
    let config = fs::read(&path).map_err(read)?;
    let config = serde_json::from_slice(&config).unwrap_or_default();
    let origin = origin(&config, Path::new(bundle), ours);
    let origin = origin.ok_or_else(|| HookError::Root(path.clone()))?;
    let list = merged(&found(&origin)?);
    fs::write(ours, list).map_err(|source| HookError::Write {
        path: ours.to_owned(),
        source,
    })
}

/// The nearest mount above the list, or the image's root.
pub fn origin(config: &Value, bundle: &Path, ours: &Path) -> Option<ListOrigin> {
    let root = config["root"]["path"].as_str()?;
    let mut nearest = (Path::new("/"), bundle.join(root));
    for mount in config["mounts"].as_array().into_iter().flatten() {
        let place = mount["destination"].as_str().map(Path::new);
        let source = mount["source"].as_str().map(Path::new);
        let (Some(place), Some(source)) = (place, source) else {
            continue;
        };
        let is_nearer = Path::new(LIST).starts_with(place) && place.starts_with(nearest.0);
        if is_nearer && source.is_absolute() && source != ours {
            nearest = (place, source.to_owned());
        }
    }
    let rest = Path::new(LIST).strip_prefix(nearest.0).ok()?;
    Some(ListOrigin {
        root: nearest.1,
        rest: rest.to_owned(),
    })
}

/// The content of the list; empty if there is none, or no regular file.
fn found(origin: &ListOrigin) -> Result<Vec<u8>, HookError> {
    let image = |error: Errno| HookError::Image(error.into());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = if origin.rest.as_os_str().is_empty() {
        rustix::fs::open(&origin.root, flags, Mode::empty())
    } else {
        let folder = flags | OFlags::DIRECTORY;
        let root = rustix::fs::open(&origin.root, folder, Mode::empty()).map_err(image)?;
        openat2(
            root,
            &origin.rest,
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )
    };
    let file = match file {
        Ok(file) => File::from(file),
        // No loader would find anything there either.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(Vec::new()),
        Err(error) => return Err(image(error)),
    };
    let metadata = file.metadata().map_err(HookError::Image)?;
    if !metadata.is_file() {
        return Ok(Vec::new());
    }
    let mut list = Vec::new();
    let mut file = file.take(MAX_LENGTH + 1);
    file.read_to_end(&mut list).map_err(HookError::Image)?;
    if list.len() as u64 > MAX_LENGTH {
        return Err(HookError::TooLong);
    }
    Ok(list)
}

/// Puts our library first: the first one that has a symbol wins.
pub fn merged(image: &[u8]) -> Vec<u8> {
    let mut list = format!("{FOLDER}/{LIMITER}\n").into_bytes();
    if !image.starts_with(&list) {
        list.extend_from_slice(image);
        return list;
    }
    image.to_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OURS: &str = "/var/lib/aliquot/seats/a/ld.so.preload";

    fn check(mounts: &Value, root: &str, expected: Option<(&str, &str)>) {
        let config = json!({"root": {"path": root}, "mounts": mounts});
        let found = origin(&config, Path::new("/run/b"), Path::new(OURS));
        let expected = expected.map(|(root, rest)| ListOrigin {
            root: root.into(),
            rest: rest.into(),
        });
        assert_eq!(found, expected, "{mounts}");
    }

    #[test]
    fn finds_preload_list_of_image_or_nearest_volume() {
        let ours = json!({"destination": LIST, "source": OURS});
        let etc = json!({"destination": "/etc", "source": "/vol/etc"});
        let file = json!({"destination": LIST, "source": "/vol/list"});
        let proc = json!({"destination": "/proc", "source": "proc"});
        let list = "etc/ld.so.preload";
        check(
            &json!([proc, ours]),
            "rootfs",
            Some(("/run/b/rootfs", list)),
        );
        check(&json!([]), "/elsewhere", Some(("/elsewhere", list)));
        check(&Value::Null, "rootfs", Some(("/run/b/rootfs", list)));
        check(
            &json!([etc, ours]),
            "rootfs",
            Some(("/vol/etc", "ld.so.preload")),
        );
        check(&json!([file, etc, ours]), "rootfs", Some(("/vol/list", "")));
        check(
            &json!([{"destination": "/etcetera", "source": "/x"}]),
            "rootfs",
            Some(("/run/b/rootfs", list)),
        );
        let none = origin(&json!({}), Path::new("/run/b"), Path::new(OURS));
        assert_eq!(none, None);
    }

    #[test]
    fn puts_limiter_first_and_once() {
        let ours = "/.aliquot/lib/libvgpu.so\n";
        assert_eq!(merged(b""), ours.as_bytes());
        let both = format!("{ours}/a.so # why\n/b.so");
        assert_eq!(merged(b"/a.so # why\n/b.so"), both.as_bytes());
        assert_eq!(merged(both.as_bytes()), both.as_bytes());
    }
}

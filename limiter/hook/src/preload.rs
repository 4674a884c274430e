//! The preload list of a container: our library, followed by what the image preloads.
//!
//! The container's root file system exists when the hook runs, and our list covers the image's in the
//! container's own mounts only.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use aliquot_shim::{FOLDER, LIMITER};
use rustix::fs::Mode;
use rustix::io::Errno;
use serde_json::Value;

use crate::{AS_FOLDER, AS_PATH, Bundle, HookError, content, open_in, unreadable};

/// The file from which the loader reads what to load first.
const LIST: &str = "/etc/ld.so.preload";

/// Where the list is that a container would have without us.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListOrigin {
    /// A folder out of which no link is followed, or the file itself.
    root: PathBuf,
    /// The file in it; empty where `root` is the file.
    rest: PathBuf,
}

/// Reads the container state from `state` and updates the list at `ours`. It is written in place,
/// because the container has that very file mounted.
pub fn run(state: impl Read, ours: &Path) -> Result<(), HookError> {
    let bundle = Bundle::read(state)?;
    let origin = origin(&bundle.config, &bundle.folder, ours).ok_or_else(|| bundle.no_root())?;
    // Ours is first: the first one that has a symbol wins.
    let mut list = format!("{FOLDER}/{LIMITER}\n").into_bytes();
    let image = found(&origin)?;
    if image.starts_with(&list) {
        list.clear();
    }
    list.extend(image);
    fs::write(ours, list).map_err(|source| HookError::Write {
        path: ours.to_owned(),
        source,
    })
}

/// The nearest mount above the list, or the image's root.
fn origin(config: &Value, bundle: &Path, ours: &Path) -> Option<ListOrigin> {
    let root = config["root"]["path"].as_str()?;
    let (mut nearest, mut mounted) = (Path::new("/"), bundle.join(root));
    for mount in config["mounts"].as_array().into_iter().flatten() {
        let place = mount["destination"].as_str().map(Path::new);
        let source = mount["source"].as_str().map(Path::new);
        let (Some(place), Some(source)) = (place, source) else {
            continue;
        };
        let is_nearer = Path::new(LIST).starts_with(place) && place.starts_with(nearest);
        if is_nearer && source.is_absolute() && source != ours {
            (nearest, mounted) = (place, source.to_owned());
        }
    }
    let rest = Path::new(LIST).strip_prefix(nearest).ok()?;
    Some(ListOrigin {
        root: mounted,
        rest: rest.to_owned(),
    })
}

/// The content of the list; empty if there is none, or no regular file.
fn found(origin: &ListOrigin) -> Result<Vec<u8>, HookError> {
    let list = Path::new(LIST);
    let file = if origin.rest.as_os_str().is_empty() {
        rustix::fs::open(&origin.root, AS_PATH, Mode::empty())
    } else {
        let root = rustix::fs::open(&origin.root, AS_FOLDER, Mode::empty());
        open_in(&root.map_err(unreadable(list))?, &origin.rest, AS_PATH)
    };
    match file {
        Ok(file) => content(file, list),
        // No loader would find anything there either.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Vec::new()),
        Err(error) => Err(unreadable(list)(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OURS: &str = "/var/lib/aliquot/containers/a/ld.so.preload";

    #[test]
    fn finds_preload_list_of_image_or_nearest_volume() {
        let ours = json!({"destination": LIST, "source": OURS});
        let etc = json!({"destination": "/etc", "source": "/vol/etc"});
        let file = json!({"destination": LIST, "source": "/vol/list"});
        let others = json!([
            {"destination": "/proc", "source": "proc"},
            {"destination": "/etcetera", "source": "/x"},
            ours,
        ]);
        let list = "etc/ld.so.preload";
        for (mounts, root, expected) in [
            (others, "rootfs", ("/run/b/rootfs", list)),
            (json!([]), "/elsewhere", ("/elsewhere", list)),
            (Value::Null, "rootfs", ("/run/b/rootfs", list)),
            (json!([etc, ours]), "rootfs", ("/vol/etc", "ld.so.preload")),
            (json!([file, etc, ours]), "rootfs", ("/vol/list", "")),
        ] {
            let config = json!({"root": {"path": root}, "mounts": mounts});
            let found = origin(&config, Path::new("/run/b"), Path::new(OURS));
            let found = found.expect("a root");
            let place = (found.root.to_str(), found.rest.to_str());
            assert_eq!(place, (Some(expected.0), Some(expected.1)), "{config}");
        }
        let none = origin(&json!({}), Path::new("/run/b"), Path::new(OURS));
        assert_eq!(none, None);
    }
}

//! How libvgpu.so gets before the driver in a container: its files on the host, and what is changed
//! in the driver's mounts (docs/concepts/way-in.md).
//!
//! Fed by: the library that the image of the agent carries, NVIDIA's own edits.
//! Must not: change a file that a container has mounted; a new version lies beside the old one.

use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aliquot_facade::{FOLDER, LIBRARIES, LIMITER, Library, Machine, stand_in};
use serde_json::json;

use crate::cdi::{self, Edits};
use crate::files::{self, FileError, failed};

/// Where a container's loader reads what to load before everything else.
pub(crate) const PRELOAD: &str = "/etc/ld.so.preload";
/// The same file in a seat's directory.
pub(crate) const PRELOAD_FILE: &str = "ld.so.preload";

/// The program that puts an image's own list behind ours; it lies beside the library.
const HOOK: &str = "aliquot-hook";
/// Seconds that it may take.
const HOOK_TIMEOUT: u32 = 10;

/// An empty file of a version.
const EMPTY: &str = "empty";

/// The library and the stand-ins of one version, on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed(PathBuf);

/// Removes the versions under `root` that are neither `installed` nor named by a spec in `specs`. A
/// container that runs keeps what it has mounted.
pub fn collect(root: &Path, installed: &Installed, specs: &Path) -> Result<usize, FileError> {
    let mut named_by = Vec::new();
    for file in files::names(specs)? {
        if cdi::name_of(&file).is_some() {
            let path = specs.join(file);
            named_by.push(fs::read_to_string(&path).map_err(failed("read", &path))?);
        }
    }
    let mut removed = 0;
    for version in files::names(root)? {
        let folder = root.join(version);
        let start = format!("{}/", folder.display());
        let is_named = named_by.iter().any(|spec| spec.contains(&start));
        if folder != installed.0 && !is_named {
            files::remove(&folder)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Puts the library at `source`, the hook that lies beside it and the stand-ins into a folder of
/// `root` that is named after their content, whole or not at all.
pub fn install(source: &Path, root: &Path) -> Result<Installed, FileError> {
    let library = fs::read(source).map_err(failed("read", source))?;
    let hook = source.with_file_name(HOOK);
    let program = fs::read(&hook);
    if let Err(error) = &program {
        // Their runtime will not find it either, and say so.
        let hook = hook.display();
        tracing::warn!(%hook, %error, "containers whose driver is not mounted by CDI will not start");
    }
    let machine = Machine::HERE.ok_or_else(|| {
        let source = io::Error::other("no stand-in for this processor");
        failed("stand before the driver with", root)(source)
    })?;
    let mut content = vec![(LIMITER, library)];
    content.extend(LIBRARIES.map(|one| (one.name, stand_in(one, FOLDER, machine))));
    content.push((EMPTY, Vec::new()));
    content.extend(program.ok().map(|program| (HOOK, program)));
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let version = format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish());
    let folder = root.join(&version);
    if !folder.exists() {
        let new = root.join(format!("{version}.new"));
        files::remove(&new)?;
        files::directory(&new, 0o755)?;
        for (name, bytes) in &content {
            files::replace(&new.join(name), bytes)?;
        }
        let hook = new.join(HOOK);
        if hook.exists() {
            let executable = Permissions::from_mode(0o755);
            fs::set_permissions(&hook, executable).map_err(failed("chmod", &hook))?;
        }
        fs::rename(&new, &folder).map_err(failed("rename to", &folder))?;
    }
    Ok(Installed(folder))
}

/// Puts what the container will need into its seat's directory: the library, empty files on
/// which the real libraries are mounted, and what a loader preloads. All but the last are files of
/// the version under one more name.
pub fn equip(seat: &Path, installed: &Installed) -> Result<(), FileError> {
    let lib = seat.join("lib");
    files::directory(&lib, 0o755)?;
    let reals = LIBRARIES.map(|one| (EMPTY, lib.join(one.real)));
    for (name, place) in reals.into_iter().chain([(LIMITER, lib.join(LIMITER))]) {
        // A running container keeps the version that it has.
        match fs::hard_link(installed.0.join(name), &place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("link", &place)(error));
            }
            _ => {}
        }
    }
    // Its container's own: the hook writes the image's list into it, and a running one keeps it.
    let preload = seat.join(PRELOAD_FILE);
    if !preload.exists() {
        files::put(&preload, format!("{FOLDER}/{LIMITER}\n").as_bytes())?;
    }
    Ok(())
}

/// Changes the driver's mounts: its libraries move to where the stand-ins need them, and these
/// take their places. Where nothing is mounted that we could stand in for, the loader is told
/// to preload ours, and the runtime to put the image's own list behind it.
pub fn stand_before(edits: &mut Edits, seat: &str, installed: &Installed) {
    let mut moved = Vec::new();
    let mut replaced = false;
    for mount in &mut edits.mounts {
        let Some(library) = mount["containerPath"].as_str().and_then(named) else {
            continue;
        };
        let mut real = mount.clone();
        real["containerPath"] = json!(format!("{FOLDER}/{}", library.real));
        moved.push(real);
        mount["hostPath"] = json!(installed.0.join(library.name));
        replaced |= library == LIBRARIES[0];
    }
    edits.mounts.extend(moved);
    if !replaced {
        let list = format!("{seat}/{PRELOAD_FILE}");
        edits.mounts.push(json!({
            "hostPath": list,
            "containerPath": PRELOAD,
            "options": ["ro", "nosuid", "nodev", "bind"],
        }));
        edits.add_hook(json!({
            "hookName": "createRuntime",
            "path": installed.0.join(HOOK),
            "args": [HOOK, "preload", list],
            "timeout": HOOK_TIMEOUT,
        }));
    }
}

/// The library that lies at this path under one of its names: with its first number or a longer
/// version (`libcuda.so.580.82`).
fn named(path: &str) -> Option<Library> {
    let file = path.rsplit('/').next()?;
    LIBRARIES.into_iter().find(|one| {
        let stem = one.name.trim_end_matches('1');
        file.strip_prefix(stem)
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use serde_json::Value;

    use super::*;

    fn mount(host: &str, container: &str) -> Value {
        json!({"hostPath": host, "containerPath": container, "options": ["ro", "bind"]})
    }

    fn pairs(edits: &Edits) -> Vec<(&str, &str)> {
        let text = |value: &Value| value.as_str().map(str::len);
        let known = edits
            .mounts
            .iter()
            .filter(|one| text(&one["hostPath"]).is_some());
        known
            .filter_map(|one| Some((one["hostPath"].as_str()?, one["containerPath"].as_str()?)))
            .collect()
    }

    #[test]
    fn the_drivers_libraries_change_places_with_the_stand_ins() {
        let lib = "/usr/lib/x86_64-linux-gnu";
        let mut edits = Edits {
            mounts: [
                "libcuda.so.580.82",
                "libcudadebugger.so.580.82",
                "libnvidia-ml.so.580.82",
            ]
            .map(|name| mount(&format!("/host/{name}"), &format!("{lib}/{name}")))
            .into(),
            ..Edits::default()
        };
        stand_before(&mut edits, "/seat", &Installed("/l/1".into()));
        assert_eq!(
            pairs(&edits),
            [
                (
                    "/l/1/libcuda.so.1",
                    "/usr/lib/x86_64-linux-gnu/libcuda.so.580.82"
                ),
                (
                    "/host/libcudadebugger.so.580.82",
                    "/usr/lib/x86_64-linux-gnu/libcudadebugger.so.580.82"
                ),
                (
                    "/l/1/libnvidia-ml.so.1",
                    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.82"
                ),
                ("/host/libcuda.so.580.82", "/.aliquot/lib/libcuda-real.so.1"),
                (
                    "/host/libnvidia-ml.so.580.82",
                    "/.aliquot/lib/libnvidia-ml-real.so.1"
                ),
            ]
        );
    }

    #[test]
    fn a_driver_that_is_not_mounted_by_us_is_met_by_preload() {
        let mut edits = Edits::default();
        stand_before(&mut edits, "/seat", &Installed("/l/1".into()));
        assert_eq!(
            pairs(&edits),
            [("/seat/ld.so.preload", "/etc/ld.so.preload")]
        );
        assert_eq!(
            edits.other["hooks"],
            json!([{
                "hookName": "createRuntime",
                "path": "/l/1/aliquot-hook",
                "args": ["aliquot-hook", "preload", "/seat/ld.so.preload"],
                "timeout": 10,
            }])
        );
    }

    #[test]
    fn a_new_version_lies_beside_the_old_one_until_no_container_is_given_that() {
        let room = tempfile::tempdir().expect("tempdir");
        let (source, versions, seat) = (
            room.path().join("libvgpu.so"),
            room.path().join("limiter"),
            room.path().join("seat"),
        );
        let hook = source.with_file_name(HOOK);
        fs::write(&source, "one").expect("written");
        fs::write(&hook, "a program").expect("written");
        let first = install(&source, &versions).expect("installed");
        assert_eq!(install(&source, &versions).expect("again"), first);
        let hook = fs::metadata(first.0.join(HOOK)).expect("installed");
        assert_eq!(hook.permissions().mode() & 0o777, 0o755);
        equip(&seat, &first).expect("equipped");
        let library = seat.join("lib").join(LIMITER);
        let inode = fs::metadata(&library).expect("there").ino();
        fs::write(&source, "two").expect("written");
        let second = install(&source, &versions).expect("installed");
        assert_ne!(first, second);
        let list = seat.join(PRELOAD_FILE);
        let ours = fs::read(&list).expect("read");
        assert_eq!(ours, b"/.aliquot/lib/libvgpu.so\n");
        fs::write(&list, "with what the image brings").expect("written");
        equip(&seat, &second).expect("equipped");
        let kept = fs::read(&list).expect("read");
        assert_eq!(kept, b"with what the image brings");
        assert_eq!(fs::read(&library).expect("read"), b"one");
        assert_eq!(fs::metadata(&library).expect("there").ino(), inode);
        assert_eq!(files::names(&versions).expect("list").len(), 2);
        // As long as a container's spec names the old one it stays.
        let specs = room.path().join("cdi");
        fs::create_dir(&specs).expect("made");
        let spec = specs.join(cdi::file_name("GPU-a-0-1"));
        fs::write(&spec, format!("{}/libcuda.so.1", first.0.display())).expect("written");
        assert_eq!(collect(&versions, &second, &specs).expect("looked"), 0);
        fs::write(&spec, format!("{}/libcuda.so.1", second.0.display())).expect("written");
        assert_eq!(collect(&versions, &second, &specs).expect("looked"), 1);
        assert!(!first.0.exists() && second.0.exists());
        let names = files::names(&seat.join("lib")).expect("list");
        assert_eq!(
            names,
            ["libcuda-real.so.1", "libnvidia-ml-real.so.1", "libvgpu.so"]
        );
    }
}

//! Injection of the limiter into containers: its files on the host, and the changes to the driver's
//! mounts (docs/limiter.md). A file that a container has mounted is never changed; a new
//! version is installed beside the old one.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use aliquot_node_state::container_directory::{LIB, PRELOAD_IN_CONTAINER, PRELOAD_LIST};
use aliquot_nvml::root;
use aliquot_shim::{
    Architecture, COMPAT_LIBRARIES, ExportsError, FOLDER, LIBRARIES, LIMITER, ShimmedLibrary,
    build_compat_shim, build_driver_shim, build_shim, compat_folder, compat_shim, exported_calls,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use thiserror::Error;

use crate::container_edits::cdi::{self, Edits};
use crate::files::{self, FileError, failed};

/// The program of the OCI hooks; it is beside the library.
const HOOK: &str = "aliquot-hook";
/// What the hook itself runs, beside it.
const HOOK_LIMIT: &str = "aliquot-hook-limit";
const HOOK_TIMEOUT: u32 = 10;
/// The hooks' environment. Without one, runc up to 1.3 gives a hook in the container's namespaces
/// the environment of the container, and `LD_PRELOAD` of an image would run on the host
/// (CVE-2025-23266).
const HOOK_ENVIRONMENT: [&str; 1] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"];

/// An empty file of each version.
const EMPTY: &str = "empty";

/// The installed limiter, shim libraries and OCI hook of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledLimiter {
    /// The folder with the libraries.
    pub folder: PathBuf,
    /// The hook, which the container runtime runs on the host.
    pub hook: PathBuf,
}

/// The shim libraries with a driver's own calls, by the names of the libraries.
pub type DriverShims = BTreeMap<&'static str, PathBuf>;

/// The installed shim libraries with a driver's own calls, by the driver's library on the host, and
/// what that was when they were built. A driver has few libraries, and a node few drivers.
#[derive(Debug, Default)]
pub struct KnownShims(Mutex<BTreeMap<PathBuf, (files::Identity, PathBuf)>>);

#[derive(Debug, Error)]
enum ShimError {
    #[error(transparent)]
    Exports(#[from] ExportsError),
    #[error(transparent)]
    Install(#[from] FileError),
}

impl From<io::Error> for ShimError {
    fn from(error: io::Error) -> Self {
        Self::Exports(error.into())
    }
}

impl InstalledLimiter {
    /// Installs shim libraries for the driver that these edits mount from below `host_root`. A
    /// library that cannot be read gets none of its own: the version's one has the calls of known
    /// drivers. Returns the shims, and which libraries cannot be read.
    pub fn install_driver_shims(
        &self,
        edits: &Edits,
        host_root: &Path,
        known: &KnownShims,
    ) -> Result<(DriverShims, Vec<String>), FileError> {
        let (mut shims, mut problems) = (DriverShims::new(), Vec::new());
        let Some(machine) = Architecture::HERE else {
            return Ok((shims, problems));
        };
        for mount in &edits.mounts {
            let library = mount["containerPath"].as_str().and_then(named);
            let (Some(library), Some(real)) = (library, mount["hostPath"].as_str()) else {
                continue;
            };
            let real = Path::new(real);
            match self.driver_shim(library, host_root, real, machine, known) {
                Ok(shim) => drop(shims.insert(library.name, shim)),
                Err(ShimError::Install(error)) => return Err(error),
                Err(ShimError::Exports(error)) => problems.push(format!(
                    "cannot read which calls {} exports: {error}; programs that are linked in containers find the calls of known drivers",
                    real.display()
                )),
            }
        }
        Ok((shims, problems))
    }

    /// The shim for a driver's `library`, which is at `real` on the host. It is built again when that
    /// file has changed.
    fn driver_shim(
        &self,
        library: ShimmedLibrary,
        host_root: &Path,
        real: &Path,
        machine: Architecture,
        known: &KnownShims,
    ) -> Result<PathBuf, ShimError> {
        let file = host_root.join(root::resolve(host_root, real)?);
        // Before the content: if that changes meanwhile, it is read again next time.
        let identity = files::identity(&file)?;
        if let Some((before, shim)) = known.0.lock().get(real)
            && *before == identity
            && shim.exists()
        {
            return Ok(shim.clone());
        }
        let calls = exported_calls(library, &mut File::open(&file)?)?;
        let shim = self.install_shim(library, &build_driver_shim(library, &calls, machine))?;
        let mut known = known.0.lock();
        known.insert(real.to_owned(), (identity, shim.clone()));
        Ok(shim)
    }

    /// Installs a shim library in a folder that is named after its content.
    fn install_shim(&self, library: ShimmedLibrary, shim: &[u8]) -> Result<PathBuf, FileError> {
        static INSTALLING: Mutex<()> = Mutex::new(());
        let mut hasher = DefaultHasher::new();
        shim.hash(&mut hasher);
        let folder = self.folder.join(format!("driver-{:016x}", hasher.finish()));
        let path = folder.join(library.name);
        let _one_at_a_time = INSTALLING.lock();
        if !path.exists() {
            files::directory(&folder, 0o755)?;
            files::replace(&path, shim)?;
        }
        Ok(path)
    }
}

/// Removes the versions under `root` that are neither in the `installed` folder nor named by a spec in
/// `specs`. A running container retains what it has mounted. Returns how many were removed.
pub fn collect(root: &Path, installed: &Path, specs: &Path) -> Result<usize, FileError> {
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
        if folder != installed && !is_named {
            files::remove(&folder)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Installs the library at `source`, the hook's programs beside it and the shim libraries into a
/// folder of `root` that is named after their content, atomically; the programs also into the folder
/// of this name in `programs`, from where they are run.
pub fn install(source: &Path, root: &Path, programs: &Path) -> Result<InstalledLimiter, FileError> {
    let library = fs::read(source).map_err(failed("read", source))?;
    let mut executables = Vec::new();
    for name in [HOOK, HOOK_LIMIT] {
        match fs::read(source.with_file_name(name)) {
            Ok(bytes) => executables.push((name.to_owned(), bytes)),
            Err(error) => tracing::warn!(
                name,
                %error,
                "cannot read a program of the OCI hooks; without {HOOK} no container with a limit starts"
            ),
        }
    }
    let machine = Architecture::HERE.ok_or_else(|| {
        let source = io::Error::other("no shim library for this processor architecture");
        failed("install shim libraries in", root)(source)
    })?;
    let mut content = vec![(LIMITER.to_owned(), library)];
    content.extend(LIBRARIES.map(|one| (one.name.to_owned(), build_shim(one, FOLDER, machine))));
    let compat = |index| (compat_shim(index), build_compat_shim(index, machine));
    content.extend((0..COMPAT_LIBRARIES).map(compat));
    content.push((EMPTY.to_owned(), Vec::new()));
    content.extend(executables.iter().cloned());
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
        fs::rename(&new, &folder).map_err(failed("rename to", &folder))?;
    }
    let programs = programs.join(&version);
    for (name, bytes) in executables {
        let program = programs.join(name);
        files::directory(&programs, 0o755)?;
        files::replace(&program, &bytes)?;
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).map_err(failed("chmod", &program))?;
    }
    let hook = programs.join(HOOK);
    Ok(InstalledLimiter { folder, hook })
}

/// Adds to a container directory what injection needs: the library, empty files on which the real
/// driver libraries are mounted, and the preload list. All but the list are hard links to the
/// version's files.
pub fn add_to_directory(directory: &Path, installed: &InstalledLimiter) -> Result<(), FileError> {
    let lib = directory.join(LIB);
    files::directory(&lib, 0o755)?;
    let mut links = vec![(LIMITER, lib.join(LIMITER))];
    links.extend(LIBRARIES.map(|one| (EMPTY, lib.join(one.real))));
    for index in 0..COMPAT_LIBRARIES {
        let folder = lib.join(compat_folder(index));
        files::directory(&folder, 0o755)?;
        links.push((EMPTY, folder.join(LIBRARIES[0].real)));
    }
    for (name, place) in links {
        // A running container retains its version.
        match fs::hard_link(installed.folder.join(name), &place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("link", &place)(error));
            }
            _ => {}
        }
    }
    // Each container's own: the hook adds the image's list to it, and a running container retains
    // it.
    let preload = directory.join(PRELOAD_LIST);
    if !preload.exists() {
        files::put(&preload, format!("{FOLDER}/{LIMITER}\n").as_bytes())?;
    }
    Ok(())
}

/// Gives each hook of NVIDIA's that has no environment one of its own.
pub fn set_hook_environment(edits: &mut Edits) {
    let hooks = edits.other.get_mut("hooks").and_then(Value::as_array_mut);
    let hooks = hooks.into_iter().flatten();
    for hook in hooks.filter_map(Value::as_object_mut) {
        let own = hook.get("env").and_then(Value::as_array);
        if own.is_none_or(Vec::is_empty) {
            hook.insert("env".to_owned(), json!(HOOK_ENVIRONMENT));
        }
    }
}

/// Whether these edits mount the CUDA driver's library.
pub fn mounts_driver(edits: &Edits) -> bool {
    let mut paths = edits
        .mounts
        .iter()
        .filter_map(|mount| mount["containerPath"].as_str());
    paths.any(|path| named(path) == Some(LIBRARIES[0]))
}

/// Changes the driver's mounts: its libraries move to where the shim libraries load them from, and
/// the shims take their places, those in `shims` or else the version's. The loader also preloads the
/// limiter, which holds a program that finds another copy of the driver; a hook appends the image's
/// own preload list, and another one puts shims in the place of the image's own drivers.
pub fn inject(
    edits: &mut Edits,
    directory: &str,
    installed: &InstalledLimiter,
    shims: &DriverShims,
) {
    let mut moved = Vec::new();
    for mount in &mut edits.mounts {
        let Some(library) = mount["containerPath"].as_str().and_then(named) else {
            continue;
        };
        let mut real = mount.clone();
        real["containerPath"] = json!(format!("{FOLDER}/{}", library.real));
        moved.push(real);
        let shim = shims.get(library.name).cloned();
        mount["hostPath"] = json!(shim.unwrap_or_else(|| installed.folder.join(library.name)));
    }
    edits.mounts.extend(moved);
    let list = format!("{directory}/{PRELOAD_LIST}");
    edits.mounts.push(json!({
        "hostPath": list,
        "containerPath": PRELOAD_IN_CONTAINER,
        "options": ["ro", "nosuid", "nodev", "bind"],
    }));
    for (stage, arguments) in [
        ("createRuntime", json!([HOOK, "preload", list])),
        ("createContainer", json!([HOOK, "compat", installed.folder])),
    ] {
        edits.add_hook(hook(installed, stage, &arguments));
    }
}

/// Has the driver, whose libraries these edits still mount unchanged, limit the container's cgroup
/// on these GPUs before its first program runs.
pub fn limit_by_driver(
    edits: &mut Edits,
    directory: &str,
    installed: &InstalledLimiter,
    gpus: &[&str],
) {
    let nvml = edits.mounts.iter().find_map(|mount| {
        let library = mount["containerPath"].as_str().and_then(named);
        let is_nvml = library == Some(LIBRARIES[1]);
        mount["hostPath"].as_str().filter(|_| is_nvml)
    });
    if let Some(nvml) = nvml.map(str::to_owned)
        && !gpus.is_empty()
    {
        // Behind NVIDIA's own hook, which takes limits from the container's environment.
        let arguments = [&[HOOK, "limit", nvml.as_str(), directory][..], gpus].concat();
        edits.add_hook(hook(installed, "createRuntime", &json!(arguments)));
    }
}

fn hook(installed: &InstalledLimiter, stage: &str, arguments: &Value) -> Value {
    json!({
        "hookName": stage,
        "path": installed.hook,
        "args": arguments,
        "env": HOOK_ENVIRONMENT,
        "timeout": HOOK_TIMEOUT,
    })
}

/// The library with a shim at this path, by its name with the first number or a longer version
/// (`libcuda.so.580.82`).
fn named(path: &str) -> Option<ShimmedLibrary> {
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

    use super::*;

    fn limiter() -> InstalledLimiter {
        InstalledLimiter {
            folder: "/l/1".into(),
            hook: "/exec/1/aliquot-hook".into(),
        }
    }

    fn mount(host: &str, container: &str) -> Value {
        json!({"hostPath": host, "containerPath": container, "options": ["ro", "bind"]})
    }

    fn pairs(edits: &Edits) -> Vec<(&str, &str)> {
        let mounts = edits.mounts.iter();
        mounts
            .filter_map(|one| Some((one["hostPath"].as_str()?, one["containerPath"].as_str()?)))
            .collect()
    }

    #[test]
    fn swaps_driver_libraries_with_shims() {
        let (cuda, debugger, nvml) = (
            "libcuda.so.580.82",
            "libcudadebugger.so.580.82",
            "libnvidia-ml.so.580.82",
        );
        let host = |name: &str| format!("/host/{name}");
        let lib = |name: &str| format!("/usr/lib/x86_64-linux-gnu/{name}");
        let mut edits = Edits {
            mounts: [cuda, debugger, nvml]
                .map(|name| mount(&host(name), &lib(name)))
                .into(),
            ..Edits::default()
        };
        let installed = limiter();
        let shim = "/l/1/driver-2/libcuda.so.1";
        let shims = DriverShims::from([("libcuda.so.1", shim.into())]);
        inject(&mut edits, "/directory", &installed, &shims);
        let expected = [
            (shim, lib(cuda)),
            (&host(debugger), lib(debugger)),
            ("/l/1/libnvidia-ml.so.1", lib(nvml)),
            (&host(cuda), "/.aliquot/lib/libcuda-real.so.1".to_owned()),
            (
                &host(nvml),
                "/.aliquot/lib/libnvidia-ml-real.so.1".to_owned(),
            ),
            ("/directory/ld.so.preload", "/etc/ld.so.preload".to_owned()),
        ];
        let expected = expected
            .each_ref()
            .map(|(host, container)| (*host, &**container));
        assert_eq!(pairs(&edits), expected);
    }

    #[test]
    fn preloads_limiter_and_runs_hooks_for_the_image() {
        let mut edits = Edits::default();
        let installed = limiter();
        inject(&mut edits, "/directory", &installed, &DriverShims::new());
        assert_eq!(
            pairs(&edits),
            [("/directory/ld.so.preload", "/etc/ld.so.preload")]
        );
        assert_eq!(
            edits.other["hooks"],
            json!([
                {
                    "hookName": "createRuntime",
                    "path": "/exec/1/aliquot-hook",
                    "args": ["aliquot-hook", "preload", "/directory/ld.so.preload"],
                    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                    "timeout": 10,
                },
                {
                    "hookName": "createContainer",
                    "path": "/exec/1/aliquot-hook",
                    "args": ["aliquot-hook", "compat", "/l/1"],
                    "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                    "timeout": 10,
                },
            ])
        );
    }

    #[test]
    fn hook_sets_limits_by_the_mounted_driver_where_it_has_them() {
        let nvml = mount("/host/libnvidia-ml.so.615.10", "/lib/libnvidia-ml.so.1");
        let installed = limiter();
        for (mounts, gpus, expected) in [
            (vec![nvml.clone()], &["GPU-a", "GPU-b"][..], 1),
            (vec![nvml], &[], 0),
            (
                vec![mount("/host/cuda", "/lib/libcuda.so.1")],
                &["GPU-a"],
                0,
            ),
        ] {
            let mut edits = Edits {
                mounts,
                ..Edits::default()
            };
            limit_by_driver(&mut edits, "/directory", &installed, gpus);
            let hooks = edits.other.get("hooks").and_then(Value::as_array);
            let hooks = hooks.map_or(&[][..], Vec::as_slice);
            assert_eq!(hooks.len(), expected);
            for hook in hooks {
                let arguments = json!([
                    "aliquot-hook",
                    "limit",
                    "/host/libnvidia-ml.so.615.10",
                    "/directory",
                    "GPU-a",
                    "GPU-b",
                ]);
                assert_eq!(hook["hookName"], "createRuntime");
                assert_eq!(hook["path"], "/exec/1/aliquot-hook");
                assert_eq!(hook["args"], arguments);
            }
        }
    }

    #[test]
    fn no_hook_runs_with_the_environment_of_the_container() {
        let hook = |env: &Value| json!({"path": "/usr/bin/nvidia-cdi-hook", "env": env});
        let (theirs, ours) = (json!(["NVIDIA_CTK_DEBUG=false"]), json!(HOOK_ENVIRONMENT));
        let mut edits = Edits::default();
        set_hook_environment(&mut edits);
        assert_eq!(edits, Edits::default());
        let bare = json!({"path": "/usr/bin/nvidia-cdi-hook"});
        for before in [bare, hook(&json!([])), hook(&theirs), json!("damaged")] {
            edits.add_hook(before);
        }
        set_hook_environment(&mut edits);
        let after = [hook(&ours), hook(&ours), hook(&theirs), json!("damaged")];
        assert_eq!(edits.other["hooks"], json!(after));
    }

    #[test]
    fn installs_shim_with_calls_of_the_mounted_driver() {
        let dir = tempfile::tempdir().expect("tempdir");
        let source = dir.path().join("libvgpu.so");
        fs::write(&source, "one").expect("written");
        let root = dir.path().join("limiter");
        let installed = install(&source, &root, &root).expect("installed");
        let host = dir.path().join("host");
        fs::create_dir_all(host.join("usr/lib64")).expect("made");
        let edits = Edits {
            mounts: ["libcuda.so.580.82", "libnvidia-ml.so.580.82"]
                .map(|name| {
                    let path = format!("/usr/lib64/{name}");
                    mount(&path, &path)
                })
                .into(),
            ..Edits::default()
        };
        let machine = Architecture::HERE.expect("a shim library");
        let real = host.join("usr/lib64/libcuda.so.580.82");
        let known = KnownShims::default();
        let shims_of = |calls: &[String]| {
            // A shim library exports what the driver does.
            fs::write(&real, build_driver_shim(LIBRARIES[0], calls, machine)).expect("written");
            let (shims, problems) = installed
                .install_driver_shims(&edits, &host, &known)
                .expect("installed");
            let text = "cannot read which calls /usr/lib64/libnvidia-ml.so.580.82 exports: cannot read it: No such file or directory (os error 2);";
            assert!(problems[0].starts_with(text), "{problems:?}");
            shims
        };
        let calls = ["cuInit", "cuInitOfNextDriver"].map(str::to_owned);
        let shims = shims_of(&calls);
        // NVML has no file here.
        assert_eq!(shims.keys().copied().collect::<Vec<_>>(), ["libcuda.so.1"]);
        let shim = &shims["libcuda.so.1"];
        assert!(shim.starts_with(&installed.folder) && shim.ends_with("libcuda.so.1"));
        let mut file = File::open(shim).expect("installed");
        let found = exported_calls(LIBRARIES[0], &mut file).expect("calls");
        assert_eq!(found, calls);
        assert_eq!(shims_of(&calls), shims);
        assert_ne!(&shims_of(&calls[..1])["libcuda.so.1"], shim);
        assert!(shim.exists(), "a container may have it mounted");
    }

    #[test]
    fn retains_old_limiter_version_while_specs_name_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (source, versions, directory) = (
            dir.path().join("libvgpu.so"),
            dir.path().join("limiter"),
            dir.path().join("directory"),
        );
        let programs = dir.path().join("exec/limiter");
        let hooks = [HOOK, HOOK_LIMIT];
        fs::write(&source, "one").expect("written");
        for name in hooks {
            fs::write(source.with_file_name(name), "a program").expect("written");
        }
        let install = || install(&source, &versions, &programs).expect("installed");
        let first = install();
        assert_eq!(install(), first);
        assert!(first.hook.starts_with(&programs));
        for name in hooks {
            let hook = fs::metadata(first.hook.with_file_name(name)).expect("installed");
            assert_eq!(hook.permissions().mode() & 0o777, 0o755);
        }
        add_to_directory(&directory, &first).expect("added");
        let library = directory.join(LIB).join(LIMITER);
        let inode = fs::metadata(&library).expect("there").ino();
        fs::write(&source, "two").expect("written");
        let second = install();
        assert_ne!(first, second);
        let list = directory.join(PRELOAD_LIST);
        let ours = fs::read(&list).expect("read");
        assert_eq!(ours, b"/.aliquot/lib/libvgpu.so\n");
        fs::write(&list, "with what the image brings").expect("written");
        add_to_directory(&directory, &second).expect("added");
        let retained = fs::read(&list).expect("read");
        assert_eq!(retained, b"with what the image brings");
        assert_eq!(fs::read(&library).expect("read"), b"one");
        assert_eq!(fs::metadata(&library).expect("there").ino(), inode);
        assert_eq!(files::names(&versions).expect("list").len(), 2);
        // The old one stays while a container's spec names it.
        let specs = dir.path().join("cdi");
        fs::create_dir(&specs).expect("made");
        let spec = specs.join(cdi::file_name("GPU-a-0-1"));
        let old_hook = first.hook.parent().expect("in a folder");
        let new_hook = second.hook.parent().expect("in a folder");
        let collected = |installed: &InstalledLimiter| {
            let (library, hook) = (installed.folder.display(), installed.hook.display());
            fs::write(&spec, format!("{library}/libcuda.so.1 {hook}")).expect("written");
            let libraries = collect(&versions, &second.folder, &specs).expect("looked");
            (
                libraries,
                collect(&programs, new_hook, &specs).expect("looked"),
            )
        };
        assert_eq!(collected(&first), (0, 0));
        assert_eq!(collected(&second), (1, 1));
        assert!(!first.folder.exists() && second.folder.exists());
        assert!(!old_hook.exists() && new_hook.exists());
        // A shim and a placeholder for each compat library of an image.
        let names = files::names(&directory.join(LIB)).expect("list");
        let compat = (0..COMPAT_LIBRARIES).map(compat_folder);
        let others = ["libcuda-real.so.1", "libnvidia-ml-real.so.1", "libvgpu.so"];
        let expected: Vec<String> = compat.chain(others.map(str::to_owned)).collect();
        assert_eq!(names, expected);
        for index in 0..COMPAT_LIBRARIES {
            let folder = directory.join(LIB).join(compat_folder(index));
            let placeholder = fs::read(folder.join("libcuda-real.so.1")).expect("there");
            assert!(placeholder.is_empty());
            let shim = fs::read(second.folder.join(compat_shim(index))).expect("installed");
            let machine = Architecture::HERE.expect("a shim library");
            assert_eq!(shim, build_compat_shim(index, machine));
        }
    }
}

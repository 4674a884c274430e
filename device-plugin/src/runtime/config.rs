//! The relevant parts of a container runtime's configuration: containerd's files with their
//! imports, or CRI-O's with its drop-ins. Unknown content is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, TableLike};

use super::RuntimeKind;

/// Where containerd's is: by default, in k3s, in RKE2, in a snap.
const CONTAINERD: [&str; 4] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
];
const CRIO: [&str; 1] = ["/etc/crio/crio.conf"];
/// The roots below which it is searched: the agent's own container, where it may be mounted, and
/// the node, through the host's processes.
const ROOTS: [&str; 2] = ["/", "/proc/1/root"];
/// containerd's plugin in configurations of version 2 and 3.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// The depth to which imports are followed.
const DEEPEST: u32 = 3;

/// A container runtime's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// `enable_cdi`, if set.
    pub cdi: Option<bool>,
    /// The directories of CDI specs, if set.
    pub spec_directories: Option<Vec<PathBuf>>,
    /// The names of the runtimes, which runtime classes call handlers.
    pub handlers: BTreeSet<String>,
    /// The handler of pods without a runtime class, if set.
    pub default_handler: Option<String>,
    /// The programs of the handlers, if set.
    pub programs: BTreeMap<String, PathBuf>,
}

/// Reads the configuration of this runtime: at `path`, else at its usual places, in our own
/// container or on the node. The error is for the administrator.
pub fn read(kind: RuntimeKind, path: Option<&Path>) -> Result<RuntimeConfig, String> {
    read_below(&ROOTS.map(Path::new), kind, path)
}

pub(super) fn read_below(
    roots: &[&Path],
    kind: RuntimeKind,
    path: Option<&Path>,
) -> Result<RuntimeConfig, String> {
    let default_paths = match kind {
        RuntimeKind::Crio => &CRIO[..],
        RuntimeKind::Containerd | RuntimeKind::Other => &CONTAINERD[..],
    };
    let default_paths = default_paths.iter().map(Path::new);
    let paths: Vec<&Path> = path.map_or_else(|| default_paths.collect(), |path| vec![path]);
    let all = roots.iter().flat_map(|root| {
        let of_root = paths.iter().map(|path| (*root, below(root, path)));
        of_root.collect::<Vec<_>>()
    });
    let mut existing = all.filter(|(_, path)| path.exists() || drop_ins(path).exists());
    let Some((root, path)) = existing.next() else {
        return Err(format!("{} does not exist", paths[0].display()));
    };
    let mut config = RuntimeConfig::default();
    match kind {
        RuntimeKind::Crio => {
            let mut files = vec![path.clone()];
            files.extend(all_in(&drop_ins(&path), ""));
            for file in files.iter().filter(|file| file.exists()) {
                config.add_crio(&document(file)?);
            }
        }
        RuntimeKind::Containerd | RuntimeKind::Other => config.add_containerd(root, &path, 0)?,
    }
    Ok(config)
}

pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// CRI-O's directory of drop-ins.
fn drop_ins(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.d", path.display()))
}

fn document(path: &Path) -> Result<DocumentMut, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let parsed = text.parse::<DocumentMut>();
    parsed.map_err(|error| format!("{}: {}", path.display(), error.message()))
}

impl RuntimeConfig {
    fn add_crio(&mut self, document: &DocumentMut) {
        let crio = document.get("crio").and_then(|crio| crio.get("runtime"));
        if let Some(runtime) = crio.and_then(Item::as_table_like) {
            self.add(runtime, runtime.get("runtimes"));
            self.add_default_handler(runtime.get("default_runtime"));
        }
    }

    /// Imported files override the importing one.
    fn add_containerd(&mut self, root: &Path, path: &Path, depth: u32) -> Result<(), String> {
        let document = document(path)?;
        for name in PLUGINS {
            let plugin = document.get("plugins").and_then(|all| all.get(name));
            if let Some(plugin) = plugin.and_then(Item::as_table_like) {
                let containerd = plugin.get("containerd");
                self.add(plugin, containerd.and_then(|one| one.get("runtimes")));
                self.add_default_handler(
                    containerd.and_then(|one| one.get("default_runtime_name")),
                );
            }
        }
        let imports = document.get("imports").and_then(Item::as_array);
        let imports = imports.into_iter().flatten().filter_map(|one| one.as_str());
        for import in imports.filter(|_| depth < DEEPEST) {
            let directory = path.parent().unwrap_or(root);
            let pattern = match Path::new(import) {
                import if import.is_absolute() => below(root, import),
                import => directory.join(import),
            };
            for file in matching(&pattern) {
                self.add_containerd(root, &file, depth + 1)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, table: &dyn TableLike, runtimes: Option<&Item>) {
        let cdi = table.get("enable_cdi").and_then(Item::as_bool);
        self.cdi = cdi.or(self.cdi);
        if let Some(directories) = table.get("cdi_spec_dirs").and_then(Item::as_array) {
            let directories = directories.iter().filter_map(|one| one.as_str());
            self.spec_directories = Some(directories.map(PathBuf::from).collect());
        }
        let runtimes = runtimes.and_then(Item::as_table_like);
        for (name, runtime) in runtimes.into_iter().flat_map(TableLike::iter) {
            self.handlers.insert(name.to_owned());
            let options = runtime.get("options").and_then(|all| all.get("BinaryName"));
            let program = options.or_else(|| runtime.get("runtime_path"));
            if let Some(program) = program
                .and_then(Item::as_str)
                .filter(|path| !path.is_empty())
            {
                self.programs.insert(name.to_owned(), program.into());
            }
        }
    }

    fn add_default_handler(&mut self, name: Option<&Item>) {
        let name = name.and_then(Item::as_str).filter(|name| !name.is_empty());
        if let Some(name) = name {
            self.default_handler = Some(name.to_owned());
        }
    }
}

/// The files that match a pattern whose last part may contain one `*`, by name.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str());
    let (Some(directory), Some(name)) = (pattern.parent(), name) else {
        return Vec::new();
    };
    match name.split_once('*') {
        None => vec![pattern.to_owned()],
        Some((start, end)) => {
            let all = all_in(directory, end).into_iter();
            let begins = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(start))
            };
            all.filter(begins).collect()
        }
    }
}

fn all_in(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let ends = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(ending))
    };
    let mut paths: Vec<PathBuf> = paths.filter(ends).collect();
    paths.sort();
    paths
}

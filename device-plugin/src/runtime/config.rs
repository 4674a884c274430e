//! The relevant parts of a container runtime's configuration: containerd's files with their
//! imports, or CRI-O's with its drop-ins. Unknown content is ignored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_nvml::root::resolve;
use toml_edit::{DocumentMut, Item, TableLike};

use super::RuntimeKind;

/// Where containerd's is: in k3s, RKE2, k0s, Talos, a snap, and by default. The default is last: on
/// Talos a containerd without Kubernetes has its configuration there, and Docker's package leaves a
/// file there that k3s and k0s do not read.
const CONTAINERD: [&str; 6] = [
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/etc/cri/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/containerd/config.toml",
];
const CRIO: [&str; 1] = ["/etc/crio/crio.conf"];
/// The roots below which it is searched: the agent's own container, where it may be mounted, and
/// the node, through the host's processes.
const ROOTS: [&str; 2] = ["/", "/proc/1/root"];
/// containerd's plugin in configurations of version 2 and 3.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// The first containerd in which an imported file changes only the keys that it sets.
const MERGING: (u32, u32) = (2, 0);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// Its file on the node, without those that it imports.
    pub file: PathBuf,
    /// `enable_cdi`, if set.
    pub cdi: Option<bool>,
    /// The handler of pods without a runtime class, if set.
    pub default_handler: Option<String>,
    /// The programs of the runtimes, which runtime classes call handlers, if set.
    pub programs: BTreeMap<String, PathBuf>,
}

/// Reads the configuration of this runtime in this version: at `path`, else at the first of its
/// usual places that exists, in our own container or on the node. The error is for the
/// administrator.
pub fn read(
    kind: RuntimeKind,
    version: Option<(u32, u32)>,
    path: Option<&Path>,
) -> Result<RuntimeConfig, String> {
    read_below(&ROOTS.map(Path::new), kind, version, path)
}

pub(super) fn read_below(
    roots: &[&Path],
    kind: RuntimeKind,
    version: Option<(u32, u32)>,
    path: Option<&Path>,
) -> Result<RuntimeConfig, String> {
    let default_paths = match kind {
        RuntimeKind::Crio => &CRIO[..],
        RuntimeKind::Containerd | RuntimeKind::Other => &CONTAINERD[..],
    };
    let default_paths = default_paths.iter().map(Path::new);
    let paths: Vec<&Path> = path.map_or_else(|| default_paths.collect(), |path| vec![path]);
    let mut all = roots
        .iter()
        .flat_map(|root| paths.iter().map(move |path| (*root, *path)));
    let exists = |(root, path): &(&Path, &Path)| {
        resolve(root, path).is_ok()
            || kind == RuntimeKind::Crio && below(root, &drop_ins(path)).exists()
    };
    let Some((root, path)) = all.find(exists) else {
        let paths = paths.iter().map(|path| path.display().to_string());
        let paths: Vec<String> = paths.collect();
        return Err(match paths.as_slice() {
            [path] => format!("{path} does not exist"),
            _ => format!("none of {} exists", paths.join(", ")),
        });
    };
    let mut config = RuntimeConfig {
        file: path.to_owned(),
        ..RuntimeConfig::default()
    };
    match kind {
        RuntimeKind::Crio => {
            let main = resolve(root, path).map(|_| path.to_owned()).ok();
            let files = main.into_iter().chain(all_in(root, &drop_ins(path), ""));
            for file in files {
                config.add_crio(&document(root, &file)?);
            }
        }
        RuntimeKind::Containerd | RuntimeKind::Other => {
            let merges = version.is_none_or(|version| version >= MERGING);
            config.add_containerd(root, path, merges)?;
        }
    }
    Ok(config)
}

pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn drop_ins(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.d", path.display()))
}

/// Reads a file below the root, with links as the host resolves them.
fn document(root: &Path, path: &Path) -> Result<DocumentMut, String> {
    let file = resolve(root, path).map_or_else(|_| below(root, path), |file| root.join(file));
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", path.display()))?;
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

    /// As containerd reads it: each file once, and what it imports after everything that was
    /// imported before, so that a later file overrides an earlier one. Where files are not merged,
    /// a later section of a plugin replaces an earlier one.
    fn add_containerd(&mut self, root: &Path, path: &Path, merges: bool) -> Result<(), String> {
        let mut pending = VecDeque::from([path.to_owned()]);
        let mut loaded = BTreeSet::new();
        while let Some(path) = pending.pop_front() {
            if !loaded.insert(path.clone()) {
                continue;
            }
            let document = document(root, &path)?;
            for name in PLUGINS {
                let plugin = document.get("plugins").and_then(|all| all.get(name));
                let Some(plugin) = plugin.and_then(Item::as_table_like) else {
                    continue;
                };
                if !merges {
                    let file = std::mem::take(&mut self.file);
                    *self = Self {
                        file,
                        ..Self::default()
                    };
                }
                let containerd = plugin.get("containerd");
                self.add(plugin, containerd.and_then(|one| one.get("runtimes")));
                self.add_default_handler(
                    containerd.and_then(|one| one.get("default_runtime_name")),
                );
            }
            let imports = document.get("imports").and_then(Item::as_array);
            let imports = imports.into_iter().flatten().filter_map(|one| one.as_str());
            let directory = path.parent().unwrap_or(&path);
            pending.extend(imports.flat_map(|import| matching(root, &directory.join(import))));
        }
        Ok(())
    }

    fn add(&mut self, table: &dyn TableLike, runtimes: Option<&Item>) {
        let cdi = table.get("enable_cdi").and_then(Item::as_bool);
        self.cdi = cdi.or(self.cdi);
        let runtimes = runtimes.and_then(Item::as_table_like);
        for (name, runtime) in runtimes.into_iter().flat_map(TableLike::iter) {
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

/// The files below the root that match a pattern whose last part may contain one `*`, by name.
fn matching(root: &Path, pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str());
    let (Some(directory), Some(name)) = (pattern.parent(), name) else {
        return Vec::new();
    };
    match name.split_once('*') {
        None => vec![pattern.to_owned()],
        Some((start, end)) => {
            let all = all_in(root, directory, end).into_iter();
            let begins = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(start))
            };
            all.filter(begins).collect()
        }
    }
}

/// The files of a directory below the root with this ending, by name.
fn all_in(root: &Path, directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(below(root, directory));
    let entries = entries.into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| name.ends_with(ending));
    let mut paths: Vec<PathBuf> = names.map(|name| directory.join(name)).collect();
    paths.sort();
    paths
}

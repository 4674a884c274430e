//! What matters of a container runtime's configuration.
//!
//! Fed by: the files of containerd (with what they import) or CRI-O (with its drop-ins). Must not:
//! fail on what it does not know, or write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, TableLike};

use super::Kind;

/// Where containerd has it: by default, in k3s, in RKE2, in a snap.
const CONTAINERD: [&str; 4] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
];
const CRIO: [&str; 1] = ["/etc/crio/crio.conf"];
/// Below which it is looked for: in the agent's own container, where it may be mounted, and, as
/// the agent has the node's processes, on the node.
const ROOTS: [&str; 2] = ["/", "/proc/1/root"];
/// containerd's plugin in its configurations of version 2 and 3.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// Files that files import in turn.
const DEEPEST: u32 = 3;

/// What it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `enable_cdi`, where it is written.
    pub cdi: Option<bool>,
    /// Where CDI specs are read, where that is written.
    pub spec_directories: Option<Vec<PathBuf>>,
    /// The names of the runtimes, which runtime classes call handlers.
    pub handlers: BTreeSet<String>,
    /// The handler of pods without a runtime class, where that is written.
    pub usual: Option<String>,
    /// The programs behind the handlers, where they are written.
    pub programs: BTreeMap<String, PathBuf>,
}

/// Reads the configuration of this runtime: at `path`, else where it usually is, in our own
/// container or on the node. The error is for the node's owner.
pub fn read(kind: Kind, path: Option<&Path>) -> Result<Config, String> {
    read_below(&ROOTS.map(Path::new), kind, path)
}

pub(super) fn read_below(
    roots: &[&Path],
    kind: Kind,
    path: Option<&Path>,
) -> Result<Config, String> {
    let usual = match kind {
        Kind::Crio => &CRIO[..],
        Kind::Containerd | Kind::Other => &CONTAINERD[..],
    };
    let usual = usual.iter().map(Path::new);
    let paths: Vec<&Path> = path.map_or_else(|| usual.collect(), |path| vec![path]);
    let all = roots.iter().flat_map(|root| {
        let of_root = paths.iter().map(|path| (*root, below(root, path)));
        of_root.collect::<Vec<_>>()
    });
    let mut there = all.filter(|(_, path)| path.exists() || drop_ins(path).exists());
    let Some((root, path)) = there.next() else {
        return Err(format!("{} is not there", paths[0].display()));
    };
    let mut config = Config::default();
    match kind {
        Kind::Crio => {
            let mut files = vec![path.clone()];
            files.extend(all_in(&drop_ins(&path), ""));
            for file in files.iter().filter(|file| file.exists()) {
                config.add_crio(&document(file)?);
            }
        }
        Kind::Containerd | Kind::Other => config.add_containerd(root, &path, 0)?,
    }
    Ok(config)
}

pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// CRI-O's folder of further files.
fn drop_ins(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.d", path.display()))
}

fn document(path: &Path) -> Result<DocumentMut, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let parsed = text.parse::<DocumentMut>();
    parsed.map_err(|error| format!("{}: {}", path.display(), error.message()))
}

impl Config {
    fn add_crio(&mut self, document: &DocumentMut) {
        let crio = document.get("crio").and_then(|crio| crio.get("runtime"));
        if let Some(runtime) = crio.and_then(Item::as_table_like) {
            self.add(runtime, runtime.get("runtimes"));
            self.add_usual(runtime.get("default_runtime"));
        }
    }

    /// What a file imports wins over it.
    fn add_containerd(&mut self, root: &Path, path: &Path, depth: u32) -> Result<(), String> {
        let document = document(path)?;
        for name in PLUGINS {
            let plugin = document.get("plugins").and_then(|all| all.get(name));
            if let Some(plugin) = plugin.and_then(Item::as_table_like) {
                let containerd = plugin.get("containerd");
                self.add(plugin, containerd.and_then(|one| one.get("runtimes")));
                self.add_usual(containerd.and_then(|one| one.get("default_runtime_name")));
            }
        }
        let imports = document.get("imports").and_then(Item::as_array);
        let imports = imports.into_iter().flatten().filter_map(|one| one.as_str());
        for import in imports.filter(|_| depth < DEEPEST) {
            let folder = path.parent().unwrap_or(root);
            let pattern = match Path::new(import) {
                import if import.is_absolute() => below(root, import),
                import => folder.join(import),
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
        if let Some(folders) = table.get("cdi_spec_dirs").and_then(Item::as_array) {
            let folders = folders.iter().filter_map(|one| one.as_str());
            self.spec_directories = Some(folders.map(PathBuf::from).collect());
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

    fn add_usual(&mut self, name: Option<&Item>) {
        let name = name.and_then(Item::as_str).filter(|name| !name.is_empty());
        if let Some(name) = name {
            self.usual = Some(name.to_owned());
        }
    }
}

/// The files of a pattern whose last part may have one `*`, by name.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str());
    let (Some(folder), Some(name)) = (pattern.parent(), name) else {
        return Vec::new();
    };
    match name.split_once('*') {
        None => vec![pattern.to_owned()],
        Some((start, end)) => {
            let all = all_in(folder, end).into_iter();
            let begins = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| name.starts_with(start))
            };
            all.filter(begins).collect()
        }
    }
}

fn all_in(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let ends = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(ending))
    };
    let mut paths: Vec<PathBuf> = paths.filter(ends).collect();
    paths.sort();
    paths
}

//! Whether containerd's configuration, with the files that it imports, enables CDI. Unknown content
//! is ignored.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use aliquot_nvml::root::resolve;
use toml_edit::{DocumentMut, Item};

/// Where it is: in k3s, RKE2, k0s, Talos, a snap, and by default. The default is last: on Talos a
/// containerd without Kubernetes has its configuration there, and Docker's package leaves a file
/// there that k3s and k0s do not read.
const PATHS: [&str; 6] = [
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/etc/cri/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/containerd/config.toml",
];
/// The roots below which it is searched: the agent's own container, where it may be mounted, and
/// the node, through the host's processes.
const ROOTS: [&str; 2] = ["/", "/proc/1/root"];
/// containerd's plugin in configurations of version 2 and 3.
const PLUGINS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// The first containerd in which an imported file changes only the keys that it sets.
const MERGING: (u32, u32) = (2, 0);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerdConfig {
    /// Its file on the node, without those that it imports.
    pub file: PathBuf,
    /// `enable_cdi`, if set.
    pub cdi: Option<bool>,
}

/// Reads the configuration of containerd in this version: at `path`, else at the first of its usual
/// places that exists, in our own container or on the node. The error is for the administrator.
pub fn read(version: Option<(u32, u32)>, path: Option<&Path>) -> Result<ContainerdConfig, String> {
    read_below(&ROOTS.map(Path::new), version, path)
}

pub(super) fn read_below(
    roots: &[&Path],
    version: Option<(u32, u32)>,
    path: Option<&Path>,
) -> Result<ContainerdConfig, String> {
    let paths: Vec<&Path> = match path {
        Some(path) => vec![path],
        None => PATHS.iter().map(Path::new).collect(),
    };
    let mut all = roots
        .iter()
        .flat_map(|root| paths.iter().map(move |path| (*root, *path)));
    let Some((root, path)) = all.find(|(root, path)| resolve(root, path).is_ok()) else {
        let paths = paths.iter().map(|path| path.display().to_string());
        let paths: Vec<String> = paths.collect();
        return Err(match paths.as_slice() {
            [path] => format!("{path} does not exist"),
            _ => format!("none of {} exists", paths.join(", ")),
        });
    };
    let merges = version.is_none_or(|version| version >= MERGING);
    Ok(ContainerdConfig {
        file: path.to_owned(),
        cdi: enables_cdi(root, path, merges)?,
    })
}

/// `enable_cdi` as containerd reads it: each file once, and what it imports after everything that
/// was imported before, so that a later file overrides an earlier one. Where files are not merged,
/// a later section of a plugin replaces an earlier one.
fn enables_cdi(root: &Path, path: &Path, merges: bool) -> Result<Option<bool>, String> {
    let mut cdi = None;
    let mut pending = VecDeque::from([path.to_owned()]);
    let mut loaded = BTreeSet::new();
    while let Some(path) = pending.pop_front() {
        if !loaded.insert(path.clone()) {
            continue;
        }
        let document = document(root, &path)?;
        for name in PLUGINS {
            let plugin = document.get("plugins").and_then(|all| all.get(name));
            if let Some(plugin) = plugin.and_then(Item::as_table_like) {
                let set = plugin.get("enable_cdi").and_then(Item::as_bool);
                cdi = if merges { set.or(cdi) } else { set };
            }
        }
        let imports = document.get("imports").and_then(Item::as_array);
        let directory = path.parent().unwrap_or(&path);
        for import in imports.into_iter().flatten().filter_map(|one| one.as_str()) {
            pending.extend(matching(root, &directory.join(import)));
        }
    }
    Ok(cdi)
}

pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads a file below the root, with links as the host resolves them.
fn document(root: &Path, path: &Path) -> Result<DocumentMut, String> {
    let file = resolve(root, path).map_or_else(|_| below(root, path), |file| root.join(file));
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", path.display()))?;
    let parsed = text.parse::<DocumentMut>();
    parsed.map_err(|error| format!("{}: {}", path.display(), error.message()))
}

/// The files below the root that match a pattern whose last part may contain one `*`, by name.
fn matching(root: &Path, pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().and_then(|name| name.to_str());
    let (Some(directory), Some(name)) = (pattern.parent(), name) else {
        return Vec::new();
    };
    let Some((start, end)) = name.split_once('*') else {
        return vec![pattern.to_owned()];
    };
    let mut paths: Vec<PathBuf> = fs::read_dir(below(root, directory))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(start) && name.ends_with(end))
        .map(|name| directory.join(name))
        .collect();
    paths.sort();
    paths
}

//! What matters of a container runtime's configuration.
//!
//! Fed by: the files of containerd (with what they import) or CRI-O (with its drop-ins). Must not:
//! fail on what it does not know, or write.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, Item, TableLike};

use super::Kind;

/// Where each runtime has it.
const CONTAINERD: &str = "/etc/containerd/config.toml";
const CRIO: &str = "/etc/crio/crio.conf";
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
}

/// Reads the configuration of this runtime: at `path`, else where it usually is. The error is for
/// the node's owner.
pub fn read(kind: Kind, path: Option<&Path>) -> Result<Config, String> {
    let usual = match kind {
        Kind::Crio => CRIO,
        Kind::Containerd | Kind::Other => CONTAINERD,
    };
    let path = path.unwrap_or_else(|| Path::new(usual));
    let mut config = Config::default();
    match kind {
        Kind::Crio => {
            let mut files = vec![path.to_owned()];
            let folder = PathBuf::from(format!("{}.d", path.display()));
            files.extend(all_in(&folder, ""));
            let there = files.iter().filter(|file| file.exists());
            let read = there.map(|file| document(file));
            let read: Vec<DocumentMut> = read.collect::<Result<_, _>>()?;
            if read.is_empty() {
                return Err(format!("{} is not there", path.display()));
            }
            for one in &read {
                config.add_crio(one);
            }
        }
        Kind::Containerd | Kind::Other => config.add_containerd(path, 0)?,
    }
    Ok(config)
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
        }
    }

    /// What a file imports wins over it.
    fn add_containerd(&mut self, path: &Path, depth: u32) -> Result<(), String> {
        let document = document(path)?;
        for name in PLUGINS {
            let plugin = document.get("plugins").and_then(|all| all.get(name));
            if let Some(plugin) = plugin.and_then(Item::as_table_like) {
                let containerd = plugin.get("containerd");
                self.add(plugin, containerd.and_then(|one| one.get("runtimes")));
            }
        }
        let imports = document.get("imports").and_then(Item::as_array);
        let imports = imports.into_iter().flatten().filter_map(|one| one.as_str());
        for import in imports.filter(|_| depth < DEEPEST) {
            let folder = path.parent().unwrap_or_else(|| Path::new("/"));
            for file in matching(&folder.join(import)) {
                self.add_containerd(&file, depth + 1)?;
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
        let names = runtimes.into_iter().flat_map(TableLike::iter);
        self.handlers.extend(names.map(|(name, _)| name.to_owned()));
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

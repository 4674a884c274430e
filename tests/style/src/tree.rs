//! Reads the repository's text files and cargo's metadata.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A text file, with its path from the top of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Such as `core/src/lib.rs`.
    pub path: String,
    /// All of its text.
    pub text: String,
}

/// The top of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of one file, named from the top.
pub fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))
}

/// All files with this extension, in the order of their paths. Build output
/// and hidden folders are left out.
pub fn files(extension: &str) -> Result<Vec<File>> {
    let top = root();
    let mut found = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == extension) {
                let path = path.strip_prefix(&top)?.display().to_string();
                let text = read(&path)?;
                found.push(File { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The output of `cargo metadata`, without network access.
pub fn metadata(arguments: &[&str]) -> Result<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version", "1"])
        .args(arguments)
        .current_dir(root())
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata did not print JSON")
}

/// The folder of a package of the workspace.
pub fn folder_of(metadata: &Value, package: &str) -> Result<PathBuf> {
    let packages = metadata["packages"].as_array().context("no packages")?;
    let found = packages.iter().find(|one| one["name"] == package);
    let manifest = found.and_then(|one| one["manifest_path"].as_str());
    let folder = manifest.and_then(|path| Path::new(path).parent());
    Ok(folder
        .with_context(|| format!("no package {package}"))?
        .to_owned())
}

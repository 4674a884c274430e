//! Where everything of one cluster lies on disk. Pure: paths from one root.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// Longest state path: unix sockets below it must stay under 108 bytes.
const LONGEST: usize = 60;

/// The marker without which a folder is not taken for a cluster's.
pub(crate) const MARKER: &str = "aliquot-cluster";

/// The paths of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Takes an absolute path of at most 60 bytes of plain characters.
    pub(crate) fn new(root: &Path) -> Result<Self> {
        let root = std::path::absolute(root)?;
        let text = root.to_string_lossy();
        ensure!(
            text.len() <= LONGEST,
            "state folder {text} has {} bytes; expected at most {LONGEST}, because Unix sockets lie below it",
            text.len()
        );
        ensure!(
            text.chars()
                .all(|c| c.is_ascii_alphanumeric() || "/-_.".contains(c)),
            "state folder {text:?}: expected only letters, digits and / - _ ."
        );
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The path of `name` below the root.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The same as text, for arguments and configuration files.
    pub(crate) fn text(&self, name: &str) -> String {
        self.at(name).to_string_lossy().into_owned()
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root.join("log").join(format!("{name}.log"))
    }

    pub(crate) fn pid_file(&self, name: &str) -> PathBuf {
        self.root.join("run").join(format!("{name}.pid"))
    }

    /// Makes the folders; the marker first, so that an interrupted start can be
    /// cleared away.
    pub(crate) fn create(&self) -> Result<()> {
        std::fs::create_dir_all(&self.root)?;
        std::fs::write(self.at(MARKER), "")?;
        for dir in [
            "log",
            "run",
            "kubelet",
            "cdi",
            "manifests",
            "cni",
            "containerd/root",
            "images",
            "kubeconfigs",
        ] {
            std::fs::create_dir_all(self.at(dir))?;
        }
        Ok(())
    }
}

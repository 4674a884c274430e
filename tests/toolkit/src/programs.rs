//! The programs that `build.sh` builds, and those of this workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};

/// A release of NVIDIA's container toolkit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The newest one.
    Newest,
    /// The oldest that is supported.
    Oldest,
}

impl Release {
    /// The folder of its programs.
    pub fn folder(self) -> PathBuf {
        folder().join(match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
        })
    }

    /// One of its programs.
    pub fn program(self, name: &str) -> PathBuf {
        self.folder().join(name)
    }
}

/// The low-level runtime.
pub fn runc() -> PathBuf {
    folder().join("runc")
}

/// What applies CDI devices to a bundle.
pub fn inject() -> PathBuf {
    folder().join("inject")
}

/// A script of this crate.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("scripts")
        .join(name)
}

/// The folder of the limiter's test clients.
pub fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../limiter/clients")
}

/// The built libvgpu.so; the hook's programs are beside it.
pub fn limiter() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(2).context("no target directory")?;
    for file in ["libvgpu.so", "aliquot-hook", "aliquot-hook-limit"] {
        ensure!(
            folder.join(file).is_file(),
            "{} has no {file}; expected: cargo build -p aliquot-limiter -p aliquot-hook",
            folder.display()
        );
    }
    Ok(folder.join("libvgpu.so"))
}

/// Runs a command to its end, which must be a success.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output)
}

fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
        let output = Command::new(&script).stderr(Stdio::inherit()).output();
        let output = output.expect("build.sh starts");
        assert!(output.status.success(), "build.sh: {}", output.status);
        let text = String::from_utf8(output.stdout).expect("a path");
        PathBuf::from(text.trim())
    })
}

//! Runs the scripts of a release.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::top;

/// Where a stand-in for the image is, unless a test sets another `REPOSITORY`.
pub const REPOSITORY: &str = "registry.example.com/team/aliquot";
/// Its digest there.
pub const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// The source repository.
pub const SOURCE: &str = "https://git.example.com/team/aliquot";
/// The platforms of `kubectl-aliquot`.
pub const PLATFORMS: [&str; 4] = ["linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"];

/// The version of the workspace.
pub fn version() -> Result<String> {
    let text = std::fs::read_to_string(top("Cargo.toml"))?;
    let mut lines = text.lines();
    let version = lines.find_map(|line| line.strip_prefix("version = "));
    Ok(version.context("no version")?.trim_matches('"').to_owned())
}

/// A script with the inputs that the workflow gives it.
pub fn script(script: &str, arguments: &[&str]) -> Result<Command> {
    let tag = format!("v{}", version()?);
    let mut command = Command::new(top(script));
    command
        .args(arguments)
        .env("REPOSITORY", REPOSITORY)
        .env("DIGEST", DIGEST)
        .env("SOURCE", SOURCE)
        .env("DOWNLOADS", format!("{SOURCE}/releases/download/{tag}"))
        .env("TAG", tag);
    Ok(command)
}

/// What a script printed, or an error with what it printed as its error.
pub fn success(command: &mut Command) -> Result<String> {
    let output = command.output().context(format!("{command:?}"))?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {err}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The archives of `kubectl-aliquot` for all platforms, with a stand-in for the program.
pub fn programs(folder: &Path) -> Result<()> {
    let path = folder.to_string_lossy();
    let first = ["x86_64-unknown-linux-gnu", &path];
    success(script("release/kubectl-aliquot.sh", &first)?.env("PROGRAM", "/bin/true"))?;
    let version = version()?;
    let [built, others @ ..] = PLATFORMS;
    for platform in others {
        for end in ["tar.gz", "spdx.json"] {
            let file =
                |platform: &str| folder.join(format!("kubectl-aliquot_{version}_{platform}.{end}"));
            std::fs::copy(file(built), file(platform))?;
        }
    }
    Ok(())
}

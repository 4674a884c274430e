//! The cluster's binaries, as `build.sh` and `runc.sh` print their places.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Builds the binaries where this machine has none (minutes), else looks them up.
pub(crate) async fn folder() -> Result<PathBuf> {
    printed("build.sh").await
}

/// The same of a runc that knows user namespaces.
pub(crate) async fn runc() -> Result<PathBuf> {
    printed("runc.sh").await
}

async fn printed(script: &str) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = tokio::process::Command::new(&script)
        .stderr(std::process::Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("run {}", script.display()))?;
    ensure!(
        output.status.success(),
        "{} ended with {}",
        script.display(),
        output.status
    );
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

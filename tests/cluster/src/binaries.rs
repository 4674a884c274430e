//! The folder of the cluster's binaries, as `build.sh` prints it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// Builds the binaries where this machine has none (minutes), else looks them up.
pub(crate) async fn folder() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
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

//! The cluster's binaries, as `build.sh`, `oldest.sh` and `runc.sh` print their places.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

/// Which Kubernetes: `newest`, also when it is not set, or `oldest`.
const WHICH: &str = "ALIQUOT_KUBERNETES";

/// Builds the binaries where this machine has none (minutes), else looks them up.
pub(crate) async fn folder() -> Result<PathBuf> {
    match &*std::env::var(WHICH).unwrap_or_default() {
        "" | "newest" => printed("build.sh").await,
        "oldest" => printed("oldest.sh").await,
        other => bail!("{WHICH}={other}; expected: newest, oldest"),
    }
}

/// The same of a runc that knows user namespaces.
pub(crate) async fn runc() -> Result<PathBuf> {
    printed("runc.sh").await
}

/// Karpenter with its kwok provider; its custom resource definitions are in `crds` beside it.
///
/// # Errors
/// It cannot be built.
pub async fn karpenter() -> Result<PathBuf> {
    printed("karpenter.sh").await
}

/// The folder of the custom resource definitions that docs/guides/integrations.md and the chart need.
///
/// # Errors
/// They cannot be downloaded, or are not those of the checksum.
pub async fn crds() -> Result<PathBuf> {
    printed("crds.sh").await
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

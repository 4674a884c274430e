//! What helm renders of `charts/aliquot`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Where the chart is installed.
pub(crate) const NAMESPACE: &str = "aliquot-system";

/// The objects of a template, some of the chart's values set to others (a path such as
/// `scheduler.cpuOnly`).
pub(crate) fn rendered(template: &str, values: &[(String, Value)]) -> Result<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = printed(&mut Command::new(top.join("hack/helm.sh")))?;
    let folder = tempfile::tempdir()?;
    let mut helm = Command::new(program.trim());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        helm.env(variable, folder.path());
    }
    helm.args(["template", "aliquot"])
        .arg(top.join("charts/aliquot"))
        .args(["-n", NAMESPACE, "-s", template])
        // A checkout's chart demands one.
        .arg("--set=image.repository=localhost/aliquot");
    for (path, value) in values {
        helm.arg(format!("--set-json={path}={value}"));
    }
    printed(&mut helm)
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

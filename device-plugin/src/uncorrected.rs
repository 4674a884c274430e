//! The GPUs on which compute shares are not corrected, as the monitor reports them in a file, and
//! the node's condition.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use aliquot_nvml::GpuFacts;

/// The condition: the driver reports no utilization of processes on some GPUs, so that the rates of
/// compute shares are not corrected there.
pub const UNCORRECTED: &str = "AliquotComputeUncorrected";

/// The UUIDs in a file of the monitor's; `None`: there is none, or it cannot be read.
pub fn read(path: &Path) -> Option<BTreeSet<String>> {
    let problem = match std::fs::read(path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(gpus) => return Some(gpus),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), problem, "cannot read a list of GPUs that the monitor writes");
    None
}

/// Status, reason and message of the condition; a GPU that the driver no longer lists is left out.
pub fn condition(uncorrected: &BTreeSet<String>, gpus: &[GpuFacts]) -> [String; 3] {
    let found = gpus.iter().filter(|gpu| uncorrected.contains(&gpu.uuid));
    let (mut names, mut reason) = (Vec::new(), "PartitionedGpus");
    for gpu in found {
        let mig = if gpu.mig.enabled { ", in MIG mode" } else { "" };
        if !gpu.mig.enabled {
            reason = "UtilizationNotReported";
        }
        names.push(format!("{} (index {}{mig})", gpu.uuid, gpu.index));
    }
    if names.is_empty() {
        let message = "the driver reports the utilization of processes on every GPU: the rates of compute shares are corrected";
        return ["False", "UtilizationReported", message].map(str::to_owned);
    }
    let message = format!(
        "compute shares are not corrected on {}: the driver reports no utilization of processes there; each launch is charged what the limiter measured",
        names.join(", ")
    );
    ["True".to_owned(), reason.to_owned(), message]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_list_of_uncorrected_gpus() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("uncorrected.json");
        assert_eq!(read(&path), None);
        std::fs::write(&path, r#"["GPU-a"]"#).expect("written");
        assert_eq!(read(&path), Some(["GPU-a".to_owned()].into()));
        std::fs::write(&path, "[").expect("written");
        assert_eq!(read(&path), None);
    }
}

//! The device nodes that let a container at an instance: one for the GPU instance, one for the
//! compute instance in it.
//!
//! Fed by: `/proc/driver/nvidia/capabilities` (as a path, so that tests have their own).
//! Must not: write.

use std::path::Path;

use crate::host::Part;

/// The names under `/dev` of the nodes of an instance of the card with this minor number, as far
/// as the driver tells them.
pub fn nodes(capabilities: &Path, minor: u32, part: &Part) -> Vec<String> {
    let outer = capabilities.join(format!("gpu{minor}/mig/gi{}", part.gpu_instance));
    let inner = outer.join(format!("ci{}", part.compute_instance));
    let access = [outer.join("access"), inner.join("access")];
    let numbers = access.iter().filter_map(|path| number(path));
    numbers
        .map(|number| format!("nvidia-caps/nvidia-cap{number}"))
        .collect()
}

/// `DeviceFileMinor: 12` of one of its lines.
fn number(path: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())
}

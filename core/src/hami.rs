//! HAMi's annotations: those that only its programs write, and its form of an allocation, for
//! dashboards that read it.

use std::fmt::Write as _;

use crate::allocation::Allocation;

/// The pod annotation with the devices of each container.
pub const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
/// The pod annotations that HAMi's scheduler and device plugin write, and nobody else.
pub const WRITTEN: [&str; 7] = [
    ALLOCATED,
    "hami.io/vgpu-node",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-mig-allocations",
    "hami.io/vgpu-time",
    "hami.io/bind-phase",
    "hami.io/bind-time",
];
/// The node annotation with the node's devices.
pub const REGISTER: &str = "hami.io/node-nvidia-register";

/// The vendor field of a share.
const VENDOR: &str = "NVIDIA";

/// Writes [`ALLOCATED`] for an allocation, its containers in the pod's order.
pub fn encode<'a>(allocation: &Allocation, containers: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for container in containers {
        for grant in allocation.grants(container).unwrap_or_default() {
            let (gpu, memory, cores) = (&grant.gpu, grant.memory.0, grant.cores.0);
            // Writing to a string cannot fail.
            let _ = write!(text, "{gpu},{VENDOR},{memory},{cores}:");
        }
        text.push(';');
    }
    text
}

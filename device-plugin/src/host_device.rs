//! How the host names a device: its number, and for a MIG instance its ids and capability nodes.

use std::path::{Path, PathBuf};

use aliquot_core::GpuUuid;
use aliquot_core::mig::published::MigPlacement;
use aliquot_nvml::{GpuInstance, MigDevice};

/// A device as device nodes and NVIDIA's spec name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    pub uuid: GpuUuid,
    /// `/dev/nvidia<minor>`, where the driver knows it.
    pub minor: Option<u32>,
    /// Set for a MIG instance of the GPU with this minor.
    pub instance: Option<InstanceIds>,
}

impl HostDevice {
    /// The UUID that a container sees: that of the instance.
    pub fn visible_uuid(&self) -> &str {
        let instance = self.instance.as_ref();
        instance.map_or(self.uuid.as_str(), |instance| &instance.uuid)
    }
}

/// How the driver identifies a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIds {
    /// `MIG-…`.
    pub uuid: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

impl InstanceIds {
    /// The ids of `instance`, whose UUID is that of `device`.
    pub fn new(instance: &GpuInstance, device: &MigDevice) -> Self {
        Self {
            uuid: device.uuid.clone(),
            gpu_instance: instance.id,
            compute_instance: device.id,
        }
    }
}

pub fn placement_of(one: &GpuInstance) -> MigPlacement {
    MigPlacement {
        profile: one.profile.clone(),
        start: one.start,
    }
}

/// Where the driver lists the capability nodes of an instance on the GPU with this minor number:
/// the GPU instance's, and that of the compute instance in it. `capabilities` is
/// `/proc/driver/nvidia/capabilities`.
pub fn capability_files(capabilities: &Path, minor: u32, instance: &InstanceIds) -> [PathBuf; 2] {
    let outer = capabilities.join(format!("gpu{minor}/mig/gi{}", instance.gpu_instance));
    let inner = outer.join(format!("ci{}", instance.compute_instance));
    [outer, inner].map(|folder| folder.join("access"))
}

/// The number of a capability node, in a line such as `DeviceFileMinor: 12`.
pub fn device_file_minor(path: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())
}

//! vgpu: several containers with shares of memory and compute, which libvgpu.so enforces.

use aliquot_core::inventory::{Gpu, Mode};
use aliquot_nvml::GpuFacts;
use aliquot_profiles::mode::{Scaling, Vgpu};

use super::{ContainerGrant, ModeEdits};

/// The GPU under this mode. The settings have all defaults filled in.
pub fn device(device: Gpu, facts: &GpuFacts, settings: &Vgpu) -> Gpu {
    let mut device = instance(device, settings);
    if facts.mig.enabled {
        // A GPU that somebody else partitioned cannot be shared as a whole.
        device.mode = Mode::Unknown;
    }
    device
}

/// An instance under this mode.
pub fn instance(device: Gpu, settings: &Vgpu) -> Gpu {
    let scaling = settings.memory_scaling.unwrap_or(Scaling::ONE);
    Gpu {
        mode: Mode::Vgpu,
        replicas: settings.split.unwrap_or(1),
        scaled: scaling.of(device.memory),
        ..device
    }
}

/// The limits are in the limits page; the variable only informs the user.
pub(super) fn add_edits(share: &ContainerGrant<'_>, edits: &mut ModeEdits) {
    edits.limited = true;
    edits.visible.push(share.grant.gpu.to_string());
    let (place, memory) = (share.index, share.grant.memory.0);
    let variable = format!("CUDA_DEVICE_MEMORY_LIMIT_{place}={memory}m");
    edits.variables.push(variable);
}

//! vgpu: containers share a device at the same time, each with limits that libvgpu.so enforces.

use aliquot_core::inventory::{self, Gpu};
use aliquot_nvml::GpuFacts;
use aliquot_profiles::mode::{Scaling, Vgpu};

use super::{Capabilities, ContainerGrant, ModeSetup, RequestedGrant, SharingMode};

pub(super) static ANY: Vgpu = Vgpu {
    split: None,
    memory_scaling: None,
    graphics: false,
    video: false,
};

impl SharingMode for Vgpu {
    /// The settings have all defaults filled in.
    fn devices(&self, whole: Gpu, _: &GpuFacts) -> Vec<Gpu> {
        let scaling = self.memory_scaling.unwrap_or(Scaling::ONE);
        vec![Gpu {
            mode: inventory::Mode::Vgpu,
            replicas: self.split.unwrap_or(1),
            scaled: scaling.of(whole.memory),
            ..whole
        }]
    }

    fn capabilities(&self, _: &Gpu) -> Option<Capabilities> {
        let (graphics, video) = (self.graphics, self.video);
        Some(Capabilities { graphics, video })
    }

    fn is_resizable(&self) -> bool {
        true
    }

    fn validate(&self, asked: &RequestedGrant<'_>) -> Result<(), String> {
        asked.require_amounts()
    }

    fn edits(&self, share: &ContainerGrant<'_>, setup: &mut ModeSetup) {
        setup.limited = true;
        setup.limit_by_driver(&share.grant.gpu);
        // The limits are in the limits page; the variable only informs the user.
        let (index, memory) = (setup.shown.len(), share.grant.memory_limit().0);
        let variable = format!("CUDA_DEVICE_MEMORY_LIMIT_{index}={memory}m");
        setup.variables.push(variable);
        setup.show(share.grant.gpu.as_str(), share.grant.clone());
    }
}

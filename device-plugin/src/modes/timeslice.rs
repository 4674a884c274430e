//! timeslice: containers take turns on the device, without limits.

use aliquot_core::Grant;
use aliquot_core::inventory::{self, Gpu};
use aliquot_nvml::GpuFacts;
use aliquot_profiles::mode::Timeslice;

use super::{ContainerGrant, ModeSetup, RequestedGrant, SharingMode, has_amounts};

pub(super) static ANY: Timeslice = Timeslice::new(1);

impl SharingMode for Timeslice {
    fn devices(&self, whole: Gpu, _: &GpuFacts) -> Vec<Gpu> {
        vec![Gpu {
            mode: inventory::Mode::Timeslice,
            replicas: self.replicas,
            resource: self.rename.clone().unwrap_or(whole.resource),
            strict: self.strict,
            ..whole
        }]
    }

    fn enforces_amounts(&self) -> bool {
        false
    }

    fn validate(&self, asked: &RequestedGrant<'_>) -> Result<(), String> {
        let grant = asked.grant;
        if !has_amounts(grant) {
            return Ok(());
        }
        Err(format!(
            "the pod's allocation has {} and {} compute of {}, whose sharing mode is now timeslice, which enforces no amounts: delete the pod and create it again",
            grant.memory, grant.cores, grant.gpu
        ))
    }

    fn edits(&self, share: &ContainerGrant<'_>, setup: &mut ModeSetup) {
        let grant = share.grant.clone();
        // Nothing is allocated of it: the whole device is the limit.
        let memory = share.device.map_or(grant.memory, |device| device.memory);
        setup.show(share.grant.gpu.as_str(), Grant { memory, ..grant });
    }
}

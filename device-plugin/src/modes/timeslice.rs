//! timeslice: containers take turns on the device, without limits.

use aliquot_core::Grant;
use aliquot_core::inventory::{self, Gpu};
use aliquot_nvml::GpuFacts;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Timeslice;

use super::{ContainerGrant, ModeError, ModeSetup, SharingMode, SharingModes};
use crate::host_device::InstanceIds;

pub(super) static ANY: Timeslice = Timeslice::new(1);

impl SharingMode for Timeslice {
    fn name(&self) -> &'static str {
        "timeslice"
    }

    fn devices(&self, whole: Gpu, _: &GpuFacts) -> Vec<Gpu> {
        vec![Gpu {
            mode: inventory::Mode::Timeslice,
            replicas: self.replicas,
            resource: self.rename.clone().unwrap_or(whole.resource),
            strict: self.strict,
            ..whole
        }]
    }

    fn setup(&self) -> Mode {
        Mode::Timeslice(Self::new(2))
    }

    fn prepare(
        &self,
        _: &SharingModes,
        share: &ContainerGrant<'_>,
        setup: &mut ModeSetup,
    ) -> Result<Option<InstanceIds>, ModeError> {
        let grant = share.grant.clone();
        // Nothing is allocated of it: the whole device is the limit.
        let memory = share.device.map_or(grant.memory, |device| device.memory);
        setup.show(share.grant.gpu.as_str(), Grant { memory, ..grant });
        Ok(None)
    }
}

//! exclusive: one container at a time has the device, without limits.

use aliquot_core::inventory::{self, Gpu};
use aliquot_nvml::GpuFacts;
use aliquot_profiles::mode::Exclusive;

use super::SharingMode;

pub(super) static ANY: Exclusive = Exclusive { rename: None };

impl SharingMode for Exclusive {
    fn devices(&self, whole: Gpu, _: &GpuFacts) -> Vec<Gpu> {
        vec![Gpu {
            mode: inventory::Mode::Exclusive,
            replicas: 1,
            resource: self.rename.clone().unwrap_or(whole.resource),
            ..whole
        }]
    }
}

//! MIG: a GPU's profiles, its current layout, and changes of it. Raw calls: `nvml_wrapper` lacks
//! most of them, and its placements are always empty.

mod edit;
mod error;
mod profiles;
mod read;

use aliquot_core::Mib;
use aliquot_core::mig::Geometry;

pub(crate) use edit::{create, destroy, switch};
pub use error::MigError;
pub(crate) use read::{layout, read_enabled_layout};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigMode {
    pub capable: bool,
    pub enabled: bool,
}

/// The current MIG layout of a GPU, as the driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigLayout {
    /// The GPU's profiles, in the driver's order; unknown while MIG is off.
    pub geometry: Option<Geometry>,
    /// The existing instances, ordered by start.
    pub instances: Vec<GpuInstance>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// As the driver names it, such as `3g.20gb`.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// The memory that programs can allocate: without what the driver reserves, where it reports that.
    pub memory: Mib,
    pub id: u32,
    /// Its compute instances: one with all compute slices; none if its creation was interrupted;
    /// several if somebody else partitioned it.
    pub devices: Vec<MigDevice>,
}

/// A compute instance, which processes see as a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// `MIG-…`. The driver derives it from the GPU and the place on it, so an instance that is
    /// created again has it again.
    pub uuid: String,
    /// The driver's id within its GPU instance.
    pub id: u32,
    /// It has all compute slices of its GPU instance.
    pub whole: bool,
}

/// When a new MIG mode takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Now,
    /// At the next GPU reset: processes use the GPU.
    AtReset,
}

impl GpuInstance {
    /// The one compute instance that spans it.
    #[must_use]
    pub fn device(&self) -> Option<&MigDevice> {
        match self.devices.as_slice() {
            [device] if device.whole => Some(device),
            _ => None,
        }
    }
}

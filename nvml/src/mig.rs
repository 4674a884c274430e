//! MIG: what a card can be cut into, how it is cut now, and changes of that.
//! Raw calls: the wrapper lacks most, and its placements are always empty. Fed by NVML; must not
//! choose a place.

mod edit;
mod error;
mod profiles;
mod read;

use aliquot_core::Mib;
use aliquot_core::mig::Geometry;

pub(crate) use edit::{create, destroy, switch};
pub use error::MigError;
pub(crate) use read::{cut, cut_while_on};

/// MIG on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mig {
    /// The card has MIG.
    pub capable: bool,
    /// It is on now.
    pub enabled: bool,
    /// It will be on after the next reset.
    pub pending: bool,
}

/// How a card is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// What it can be cut into, in the driver's order; unknown while MIG is off.
    pub geometry: Option<Geometry>,
    /// The instances that exist, by place.
    pub instances: Vec<Instance>,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// As the driver names it, such as `3g.20gb`.
    pub profile: String,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
    /// Memory.
    pub memory: Mib,
    /// The driver's id of it.
    pub id: u32,
    /// The devices in it: one that has all its compute slices, or none where making it was cut
    /// short, or several parts that somebody else made.
    pub devices: Vec<Device>,
}

/// A compute instance: what a process sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `MIG-…`: the driver's uuid, new for every one that is made; or an older one that somebody
    /// goes on to call it by.
    pub uuid: String,
    /// The driver's uuid of it now.
    pub current: String,
    /// The driver's id of it, within its GPU instance.
    pub id: u32,
    /// It has all compute slices of its GPU instance.
    pub whole: bool,
}

/// Whether a new mode holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// It holds.
    Now,
    /// From the next reset on: processes use the card.
    AtReset,
}

impl Instance {
    /// The one device that has all of it.
    #[must_use]
    pub fn device(&self) -> Option<&Device> {
        match self.devices.as_slice() {
            [device] if device.whole => Some(device),
            _ => None,
        }
    }
}

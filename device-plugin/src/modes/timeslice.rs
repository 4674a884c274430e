//! timeslice: containers take turns on a card, without limits.
//!
//! Fed by: the mode's settings. Must not: promise memory or compute.

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_nvml::CardFacts;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Timeslice;

use super::{Switch, SwitchError};

/// The card as a unit.
pub fn unit(card: Gpu, settings: &Timeslice) -> Gpu {
    Gpu {
        mode: Shared::Timeslice,
        seats: settings.replicas,
        resource: settings.rename.clone().unwrap_or(card.resource),
        strict: settings.strict,
        ..card
    }
}

/// The length of turns.
pub(super) struct Slices;

impl Switch for Slices {
    fn enter(&self, _: &CardFacts, _: &Mode) -> Result<(), SwitchError> {
        Ok(())
    }

    fn leave(&self, _: &CardFacts, _: &Mode) -> Result<(), SwitchError> {
        Ok(())
    }
}

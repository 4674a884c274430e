//! timeslice: containers take turns on a card, without limits.
//!
//! Fed by: the mode's settings. Must not: promise memory or compute.

use aliquot_core::inventory::{Gpu, Mode as Shared};
use aliquot_nvml::CardFacts;
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{SliceLength, Timeslice};

use super::{ModeError, Switch};

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
    /// NVML has no call for the length of turns: any other than the driver's own is refused, for
    /// a turn must not be shorter or longer than what was written.
    fn enter(&self, _: &CardFacts, settings: &Mode) -> Result<(), ModeError> {
        match settings {
            Mode::Timeslice(slices) if slices.slice_length != SliceLength::Default => {
                let accepted = "sliceLength: NVML cannot set it; accepted: default";
                Err(ModeError::Refused(accepted.to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn leave(&self, _: &CardFacts, _: &Mode, _: &Mode) -> Result<(), ModeError> {
        Ok(())
    }
}

//! exclusive: one container has the whole card, with nothing between it and the driver.
//!
//! Fed by: the mode's settings. Must not: limit anything.

use aliquot_core::inventory::{Gpu, Mode};
use aliquot_profiles::mode::Exclusive;

/// The card as a unit.
pub fn unit(card: Gpu, settings: &Exclusive) -> Gpu {
    Gpu {
        mode: Mode::Exclusive,
        seats: 1,
        resource: settings.rename.clone().unwrap_or(card.resource),
        ..card
    }
}

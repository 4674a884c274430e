//! What the driver measured of each share, as the arbiter takes it.
//!
//! Fed by: a look of the monitor. Must not: take for zero what the driver did not say.

use std::collections::BTreeSet;

use super::shell::Levels;
use super::{Measured, PERCENT};
use crate::judge::{Look, Outcome};

/// The measures of one look, which ended at `at` nanoseconds of the monotonic clock. The driver
/// lists who worked: of a card where somebody did, all others did not.
pub fn levels(look: &Look, outcome: &Outcome, at: u64) -> Levels {
    let told: BTreeSet<&str> = look.busy.keys().map(|(card, _)| card.as_str()).collect();
    let seats = look.seats.all.iter().zip(&outcome.uses);
    seats
        .map(|(seat, uses)| {
            let devices = seat.devices.iter().zip(uses).map(|(device, found)| {
                let used = u64::from(found.busy) * PERCENT;
                let said = told.contains(device.uuid.as_str());
                said.then_some(Measured { used, at })
            });
            (seat.name.clone(), devices.collect())
        })
        .collect()
}

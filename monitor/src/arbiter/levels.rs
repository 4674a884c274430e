//! What the driver measured of each share, as the arbiter takes it.
//!
//! Fed by: a look of the monitor. Must not: take for zero what the driver did not say.

use super::shell::Levels;
use super::{Measured, PERCENT};
use crate::judge::{Look, Outcome};

/// The measures of one look, which ended at `at` nanoseconds of the monotonic clock. The driver
/// lists who worked: of a card with a new sample, all others did not.
pub fn levels(look: &Look, outcome: &Outcome, at: u64) -> Levels {
    let seats = look.seats.all.iter().zip(&outcome.uses);
    seats
        .map(|(seat, uses)| {
            let devices = seat.devices.iter().zip(uses).map(|(device, found)| {
                let used = u64::from(found.busy) * PERCENT;
                let said = look.told.contains(device.uuid.as_str()) && !found.blind;
                said.then_some(Measured { used, at })
            });
            (seat.name.clone(), devices.collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::judge::Use;
    use crate::seats::Seats;
    use crate::testing::seat;

    #[test]
    fn a_sample_of_before_is_no_new_measure() {
        let check = |told: &[&str], blind: bool, expected: Option<u64>| {
            let look = Look {
                seats: Arc::new(Seats {
                    all: vec![seat("s0", "u1", "main", &["GPU-a"])],
                    ..Seats::default()
                }),
                told: told.iter().map(|card| (*card).to_owned()).collect(),
                ..Look::default()
            };
            let used = Use {
                busy: 30,
                blind,
                ..Use::default()
            };
            let outcome = Outcome {
                uses: vec![vec![used]],
                ..Outcome::default()
            };
            let found = levels(&look, &outcome, 7)["s0"][0];
            assert_eq!(found.map(|one| one.used / PERCENT), expected, "{told:?}");
        };
        check(&["GPU-a"], false, Some(30));
        check(&["GPU-b"], false, None);
        check(&[], false, None);
        // A process that worked may be its own: its rate went up to twice its share.
        check(&["GPU-a"], true, None);
    }
}

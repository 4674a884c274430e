//! Adds up for how long a container used a device, by the driver's measurements. The limiter learns
//! from it what launches cost that it cannot measure.

use super::{FULL_DEVICE, Measurement};

/// A measurement covers no more nanoseconds than this: the driver reports nothing of an idle device.
const LONGEST: u64 = 1_000_000_000;

/// The measurements of one container on one device.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyTime {
    /// The time of the last one; 0: there was none.
    seen: u64,
}

impl BusyTime {
    /// Nanoseconds for which the container used the device since the measurement before.
    pub fn add(&mut self, measured: Option<Measurement>) -> u64 {
        let Some(found) = measured.filter(|one| one.at > self.seen) else {
            return 0;
        };
        let before = std::mem::replace(&mut self.seen, found.at);
        let passed = if before == 0 { 0 } else { found.at - before };
        found.used.min(FULL_DEVICE) * passed.min(LONGEST) / FULL_DEVICE
    }
}

#[cfg(test)]
mod tests {
    use super::super::PERCENT;
    use super::*;

    #[test]
    fn adds_measured_use_of_time_between_measurements() {
        const MS: u64 = 1_000_000;
        let mut busy = BusyTime::default();
        for (percent, at, expected) in [
            (Some(50), 9_000 * MS, 0),
            (Some(50), 9_200 * MS, 100 * MS),
            (None, 9_400 * MS, 0),
            (Some(25), 9_600 * MS, 100 * MS),
            (Some(99), 9_600 * MS, 0),
            // The device was idle before.
            (Some(10), 30_000 * MS, 100 * MS),
            (Some(0), 30_200 * MS, 0),
        ] {
            let measured = percent.map(|percent: u64| Measurement {
                used: percent * PERCENT,
                at,
            });
            assert_eq!(busy.add(measured), expected, "{percent:?} at {at}");
        }
    }
}

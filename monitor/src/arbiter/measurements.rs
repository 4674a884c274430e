//! The driver's measurements of a sample, for the arbiter. What the driver did not report is not zero.

use std::collections::BTreeMap;

use super::{FULL_DEVICE, Measurement, PERCENT};
use crate::evaluation::Evaluation;
use crate::node_sample::NodeSample;

/// A measurement covers no more nanoseconds than this: the driver reports nothing of an idle device.
const LONGEST: u64 = 1_000_000_000;

/// The driver's measurements by container id, for each device in the order of its limits page.
pub type Measurements = BTreeMap<String, Vec<Option<Measurement>>>;

/// The measurements of one sample, which completed at `at` nanoseconds of the monotonic clock. The
/// driver lists the processes that worked: on a GPU with a new sample, all others did not.
pub fn measurements(sample: &NodeSample, evaluation: &Evaluation, at: u64) -> Measurements {
    let containers = sample.containers.all.iter().zip(&evaluation.uses);
    containers
        .map(|(container, uses)| {
            let devices = container.devices.iter().zip(uses).map(|(device, found)| {
                let used = u64::from(found.busy) * PERCENT;
                let is_reported =
                    sample.newly_sampled.contains(device.uuid.as_str()) && !found.blind;
                is_reported.then_some(Measurement { used, at })
            });
            (container.id.clone(), devices.collect())
        })
        .collect()
}

/// For how long a container used a device, added up from its measurements. The limiter learns from it
/// what launches cost that it cannot measure.
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
    use std::sync::Arc;

    use super::*;
    use crate::evaluation::ContainerUse;
    use crate::managed_containers::ManagedContainers;
    use crate::testing::container;

    #[test]
    fn ignores_sample_that_is_not_new() {
        for (newly_sampled, blind, expected) in [
            (Some("GPU-a"), false, Some(30)),
            (Some("GPU-b"), false, None),
            (None, false, None),
            // An unknown process may be its own; taking it for idle would raise its rate.
            (Some("GPU-a"), true, None),
        ] {
            let sample = NodeSample {
                containers: Arc::new(ManagedContainers {
                    all: vec![container("s0", "u1", "main", &["GPU-a"])],
                    ..ManagedContainers::default()
                }),
                newly_sampled: newly_sampled.into_iter().map(str::to_owned).collect(),
                ..NodeSample::default()
            };
            let used = ContainerUse {
                busy: 30,
                blind,
                ..ContainerUse::default()
            };
            let evaluation = Evaluation {
                uses: vec![vec![used]],
                ..Evaluation::default()
            };
            let found = measurements(&sample, &evaluation, 7)["s0"][0];
            let used = found.map(|one| one.used / PERCENT);
            assert_eq!(used, expected, "{newly_sampled:?}");
        }
    }

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

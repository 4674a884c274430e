//! The driver's measurements of a sample, for the arbiter. What the driver did not report is not zero.

use std::collections::BTreeMap;

use super::{Measurement, PERCENT};
use crate::evaluation::Evaluation;
use crate::node_sample::NodeSample;

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
                is_reported.then_some(Measurement {
                    used,
                    at,
                    is_late: found.is_late,
                    processes: u32::try_from(found.processes).unwrap_or(u32::MAX),
                })
            });
            (container.id.clone(), devices.collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::ContainerUse;
    use crate::testing::{container, node_sample};

    #[test]
    fn ignores_sample_that_is_not_new() {
        for (newly_sampled, blind, expected) in [
            (Some("GPU-a"), false, Some(30)),
            (Some("GPU-b"), false, None),
            (None, false, None),
            // An unknown process may be its own; taking it for idle would raise its rate.
            (Some("GPU-a"), true, None),
        ] {
            let mut sample = node_sample(vec![container("s0", "u1", "main", &["GPU-a"])]);
            sample.newly_sampled = newly_sampled.into_iter().map(str::to_owned).collect();
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
}

//! The driver's measurements of a sample, for the arbiter. What the driver did not report is not zero.

use super::runner::Measurements;
use super::{Measurement, PERCENT};
use crate::evaluation::{Evaluation, NodeSample};

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::evaluation::ContainerUse;
    use crate::managed_containers::ManagedContainers;
    use crate::testing::container;

    #[test]
    fn ignores_sample_that_is_not_new() {
        let check = |newly_sampled: &[&str], blind: bool, expected: Option<u64>| {
            let sample = NodeSample {
                containers: Arc::new(ManagedContainers {
                    all: vec![container("s0", "u1", "main", &["GPU-a"])],
                    ..ManagedContainers::default()
                }),
                newly_sampled: newly_sampled.iter().map(|gpu| (*gpu).to_owned()).collect(),
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
            assert_eq!(
                found.map(|one| one.used / PERCENT),
                expected,
                "{newly_sampled:?}"
            );
        };
        check(&["GPU-a"], false, Some(30));
        check(&["GPU-b"], false, None);
        check(&[], false, None);
        // An unknown process may be its own; taking it for idle would raise its rate.
        check(&["GPU-a"], true, None);
    }
}

//! Metrics of each allocatable device, computed from the published state when they are scraped. No
//! label carries a name that users choose.

use std::fmt;
use std::sync::{Arc, OnceLock};

use aliquot_core::inventory::{Gpu, Health};
use aliquot_core::mig::published::{CreatedInstance, Mig};
use aliquot_core::mig::{Geometry, Instance, table};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::gpus::inventory::NodePublisher;

/// Name, help text, and the value for a device that has one.
type DeviceMetric = (&'static str, &'static str, fn(&Gpu) -> Option<f64>);

const DEVICE_METRICS: [DeviceMetric; 6] = [
    (
        "gpu_healthy",
        "1 while the device is healthy, 0 while it is out of service",
        |gpu| Some(flag_value(gpu.health == Health::Ok)),
    ),
    (
        "gpu_cordoned",
        "1 while the device is healthy but accepts no new allocation",
        |gpu| Some(flag_value(gpu.cordon.is_some())),
    ),
    (
        "gpu_replicas",
        "Containers that can share the device at once; 0 under dynamic MIG",
        |gpu| Some(f64::from(gpu.replicas)),
    ),
    (
        "gpu_mig_free_slices",
        "Memory slices without an instance on a GPU with dynamic MIG",
        |gpu| Some(f64::from(free_slices(gpu)?.count_ones())),
    ),
    (
        "gpu_mig_free_run",
        "Longest run of adjacent free memory slices",
        |gpu| Some(f64::from(longest_run(free_slices(gpu)?))),
    ),
    (
        "gpu_mig_fragmentation_ratio",
        "Fraction of the free memory slices outside the longest run; 0 if none is free",
        |gpu| {
            let left = free_slices(gpu)?;
            let free = left.count_ones().max(1);
            let beside = left.count_ones() - longest_run(left);
            Some(f64::from(beside) / f64::from(free))
        },
    ),
];

/// Exports the metrics of every device, once the node is set.
#[derive(Debug)]
pub struct DeviceCollector(pub Arc<OnceLock<NodePublisher>>);

impl Collector for DeviceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(published) = self.0.get() else {
            return Ok(());
        };
        let node = published.get();
        for (name, help, figure) in DEVICE_METRICS {
            let gpus = node.inventory.gpus.iter();
            let found: Vec<_> = gpus
                .filter_map(|gpu| figure(gpu).map(|value| (gpu, value)))
                .collect();
            if found.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (gpu, value) in found {
                let (uuid, index) = (gpu.uuid.to_string(), gpu.index.to_string());
                let labels = [
                    ("gpu", uuid.as_str()),
                    ("index", index.as_str()),
                    ("mode", gpu.mode.name()),
                ];
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

fn flag_value(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Memory slices without an instance, one bit each. `None` without dynamic MIG, and when the number
/// of slices of an instance on it is unknown.
fn free_slices(gpu: &Gpu) -> Option<u16> {
    let Some(Mig::Dynamic(dynamic)) = &gpu.mig else {
        return None;
    };
    // A MIG profile that is no longer allowed may still have an instance in use.
    let (known, others): (Vec<&CreatedInstance>, Vec<&CreatedInstance>) =
        (dynamic.instances.iter()).partition(|one| dynamic.geometry.find(&one.profile).is_some());
    let free = dynamic
        .geometry
        .left(&placed_instances(&dynamic.geometry, &known))
        .0;
    if others.is_empty() {
        return Some(free);
    }
    let all = table::geometry(&gpu.model)?;
    let made = placed_instances(&all, &others);
    (made.len() == others.len()).then(|| free & all.left(&made).0)
}

/// The placements of those instances whose profile this geometry has.
fn placed_instances(geometry: &Geometry, instances: &[&CreatedInstance]) -> Vec<Instance> {
    let instance = |one: &&CreatedInstance| {
        Some(Instance {
            profile: geometry.find(&one.profile)?,
            start: one.start,
            busy: true,
        })
    };
    instances.iter().filter_map(instance).collect()
}

/// The length of the longest run of ones.
fn longest_run(mut bits: u16) -> u32 {
    let mut length = 0;
    while bits != 0 {
        bits &= bits << 1;
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use aliquot_core::mig::published::DynamicMig;

    use super::*;

    #[test]
    fn counts_free_slices_and_longest_run_beside_any_profile() {
        let mut gpu = crate::testing::gpu("GPU-a", 0);
        let all = table::geometry(&gpu.model).expect("known");
        let small = all.profiles().iter().filter(|one| one.size == 1);
        let allowed = Geometry::new(7, small.cloned().collect()).expect("a geometry");
        let mut check = |profiles: &[(&str, u8)], free: Option<f64>, run: Option<f64>| {
            let made = |(profile, start): &(&str, u8)| CreatedInstance {
                profile: (*profile).to_owned(),
                start: *start,
                uuid: "MIG-1".into(),
                gi: 1,
                ci: 0,
            };
            gpu.mig = Some(Mig::Dynamic(DynamicMig {
                geometry: allowed.clone(),
                instances: profiles.iter().map(made).collect(),
                reserved: Vec::new(),
            }));
            let found = [3, 4].map(|metric: usize| (DEVICE_METRICS[metric].2)(&gpu));
            assert_eq!(found, [free, run], "{profiles:?}");
        };
        check(&[], Some(7.0), Some(7.0));
        check(&[("1g.10gb", 6)], Some(6.0), Some(6.0));
        check(&[("1g.10gb", 1), ("1g.10gb", 4)], Some(5.0), Some(2.0));
        check(&[("3g.40gb", 0)], Some(3.0), Some(3.0));
        check(&[("3g.40gb", 0), ("1g.10gb", 5)], Some(2.0), Some(1.0));
        check(&[("9g.99gb", 0)], None, None);
    }
}

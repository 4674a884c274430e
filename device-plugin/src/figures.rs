//! Figures of each unit, read from what is published when they are asked for.
//!
//! Fed by: [`Published`]. Must not: have a series for anything that users name.

use std::fmt;

use aliquot_core::inventory::{Gpu, Health};
use aliquot_core::mig::published::{Made, Mig};
use aliquot_core::mig::{Geometry, Instance, table};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::inventory::Published;

/// One figure: name, help, and what it is of a unit that has it.
type Figure = (&'static str, &'static str, fn(&Gpu) -> Option<f64>);

const FIGURES: [Figure; 6] = [
    (
        "gpu_healthy",
        "1 while the unit may be used, 0 while it is out of service",
        |gpu| Some(yes(gpu.health == Health::Ok)),
    ),
    (
        "gpu_cordoned",
        "1 while the unit takes nothing new although it is healthy",
        |gpu| Some(yes(gpu.cordon.is_some())),
    ),
    (
        "gpu_seats",
        "Shares that the unit can carry at once; 0 of one that is cut as pods come",
        |gpu| Some(f64::from(gpu.seats)),
    ),
    (
        "gpu_mig_free_slices",
        "Memory slices of a card that is cut as pods come in which no instance is",
        |gpu| Some(f64::from(left(gpu)?.count_ones())),
    ),
    (
        "gpu_mig_free_run",
        "The most of these that lie side by side",
        |gpu| Some(f64::from(longest(left(gpu)?))),
    ),
    (
        "gpu_mig_fragmentation_ratio",
        "Part of these that does not lie in the longest run; 0 where none is free",
        |gpu| {
            let left = left(gpu)?;
            let free = left.count_ones().max(1);
            let beside = left.count_ones() - longest(left);
            Some(f64::from(beside) / f64::from(free))
        },
    ),
];

/// Shows them.
#[derive(Debug)]
pub struct Units(pub Published);

impl Collector for Units {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let node = self.0.get();
        for (name, help, figure) in FIGURES {
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

fn yes(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Memory slices without an instance, one bit each; `None` of no such card, and where an instance
/// on it is of nobody knows how many slices.
fn left(gpu: &Gpu) -> Option<u16> {
    let Some(Mig::Dynamic(cut)) = &gpu.mig else {
        return None;
    };
    // Of a profile that its owner does not allow any more there may be one that is held.
    let (known, others): (Vec<&Made>, Vec<&Made>) =
        (cut.instances.iter()).partition(|one| cut.geometry.find(&one.profile).is_some());
    let free = cut.geometry.left(&made(&cut.geometry, &known)).0;
    if others.is_empty() {
        return Some(free);
    }
    let all = table::geometry(&gpu.model)?;
    let made = made(&all, &others);
    (made.len() == others.len()).then(|| free & all.left(&made).0)
}

/// Those of them that have a profile of this geometry.
fn made(geometry: &Geometry, instances: &[&Made]) -> Vec<Instance> {
    let instance = |one: &&Made| {
        Some(Instance {
            profile: geometry.find(&one.profile)?,
            start: one.start,
            busy: true,
        })
    };
    instances.iter().filter_map(instance).collect()
}

/// The longest run of ones.
fn longest(mut bits: u16) -> u32 {
    let mut length = 0;
    while bits != 0 {
        bits &= bits << 1;
        length += 1;
    }
    length
}

#[cfg(test)]
mod tests {
    use aliquot_core::mig::published::Cut;

    use super::*;

    #[test]
    fn an_instance_of_a_profile_that_is_not_allowed_any_more_was_free() {
        let mut gpu = crate::testing::gpu("GPU-a", 0);
        let all = table::geometry(&gpu.model).expect("known");
        let small = all.profiles().iter().filter(|one| one.size == 1);
        let allowed = Geometry::new(7, small.cloned().collect()).expect("a geometry");
        let mut check = |profiles: &[(&str, u8)], free: Option<f64>| {
            let made = |(profile, start): &(&str, u8)| Made {
                profile: (*profile).to_owned(),
                start: *start,
                uuid: "MIG-1".into(),
                gi: 1,
                ci: 0,
            };
            gpu.mig = Some(Mig::Dynamic(Cut {
                geometry: allowed.clone(),
                instances: profiles.iter().map(made).collect(),
                reserved: Vec::new(),
            }));
            assert_eq!((FIGURES[3].2)(&gpu), free, "{profiles:?}");
        };
        check(&[], Some(7.0));
        check(&[("1g.10gb", 6)], Some(6.0));
        check(&[("3g.40gb", 0)], Some(3.0));
        check(&[("3g.40gb", 0), ("1g.10gb", 6)], Some(2.0));
        check(&[("9g.99gb", 0)], None);
    }

    #[test]
    fn the_longest_run_of_free_slices_is_found() {
        for (bits, expected) in [
            (0, 0),
            (0b1, 1),
            (0b1011, 2),
            (0b1111_0111, 4),
            (u16::MAX, 16),
        ] {
            assert_eq!(longest(bits), expected, "{bits:b}");
        }
    }
}

//! Figures of each unit, read from what is published when they are asked for.
//!
//! Fed by: [`Published`]. Must not: have a series for anything that users name.

use std::fmt;

use aliquot_core::inventory::{Gpu, Health};
use aliquot_core::mig::Instance;
use aliquot_core::mig::published::{Cut, Mig};
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

/// Memory slices without an instance, one bit each.
fn left(gpu: &Gpu) -> Option<u16> {
    let Some(Mig::Dynamic(cut)) = &gpu.mig else {
        return None;
    };
    Some(cut.geometry.left(&made(cut)).0)
}

fn made(cut: &Cut) -> Vec<Instance> {
    let made = cut.instances.iter();
    let instance = |one: &aliquot_core::mig::published::Made| {
        Some(Instance {
            profile: cut.geometry.find(&one.profile)?,
            start: one.start,
            busy: true,
        })
    };
    made.filter_map(instance).collect()
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
    use super::*;

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

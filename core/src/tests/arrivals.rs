//! Requests for instances that come and go on eight GPUs, and the part of them that is
//! refused: Poisson arrivals, exponential durations, 40/25/18/10/7 % of 1g, 2g, 3g, 4g and
//! 7g; a load of 1 asks for all compute slices.
//!
//! Checks that no allocated instance changes until it ends.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::modes::node_ledger::NodeLedger;
use crate::mig::place::{InstancePlacement, place};
use crate::mig::{Geometry, Instance};

const GPUS: usize = 8;
const ARRIVALS: u32 = 8_000;
/// The same for the ledger, whose steps take longer.
const LEDGER_ARRIVALS: u32 = 600;
const SEEDS: u32 = 4;
/// Profiles by their index in the table, and how many of 100 requests are for them.
const MIX: [(usize, u32); 5] = [(0, 40), (3, 25), (4, 18), (5, 10), (6, 7)];

#[derive(Clone, Copy, Debug)]
pub(super) enum Chooser {
    Ours,
    /// Least loss, then the fullest GPU and the highest start: the best published choice.
    BestKnown,
    /// The first GPU, the lowest start.
    LowestStart,
}

/// The part of all requested compute slices that was refused, mean of all seeds.
pub(super) fn refused(geometry: &Geometry, load: f64, chooser: Chooser) -> f64 {
    let seeds = (1..=SEEDS).map(|seed| {
        let mut choose =
            |gpus: &[Vec<Instance>], profile: usize, _| choose(geometry, gpus, profile, chooser);
        run(
            geometry,
            load,
            seed.into(),
            ARRIVALS,
            &mut choose,
            &mut |_| {},
        )
    });
    seeds.sum::<f64>() / f64::from(SEEDS)
}

/// The parts refused by the ledger of a node with these GPUs, whose agent publishes its
/// instances, and by [`place`] alone.
pub(super) fn refused_by_ledger(geometry: &Geometry, load: f64) -> (f64, f64) {
    let ledger = RefCell::new(NodeLedger::new(geometry));
    let mut reserve = |gpus: &[Vec<Instance>], profile: usize, arrival: u32| {
        ledger.borrow_mut().reserve(gpus, profile, arrival)
    };
    let mut release = |arrival: u32| ledger.borrow_mut().release(arrival);
    let by_ledger = run(
        geometry,
        load,
        1,
        LEDGER_ARRIVALS,
        &mut reserve,
        &mut release,
    );
    let mut alone =
        |gpus: &[Vec<Instance>], profile: usize, _| choose(geometry, gpus, profile, Chooser::Ours);
    let alone = run(geometry, load, 1, LEDGER_ARRIVALS, &mut alone, &mut |_| {});
    (by_ledger, alone)
}

type Choose<'a> = &'a mut dyn FnMut(&[Vec<Instance>], usize, u32) -> Option<InstancePlacement>;

fn run(
    geometry: &Geometry,
    load: f64,
    seed: u64,
    arrivals: u32,
    choose: Choose<'_>,
    ended: &mut dyn FnMut(u32),
) -> f64 {
    let compute = |at: usize| f64::from(geometry.profiles()[at].compute);
    let mean: f64 = MIX
        .iter()
        .map(|&(at, of)| compute(at) * f64::from(of) / 100.0)
        .sum();
    let rate = load * 7.0 * 8.0 / mean;
    let mut random = Random(seed);
    let mut gpus: Vec<Vec<Instance>> = vec![vec![]; GPUS];
    // When each instance ends, in nanoseconds.
    let mut ends: BTreeMap<(u64, u32), (usize, u8)> = BTreeMap::new();
    let (mut now, mut asked, mut refused) = (0, 0.0, 0.0);
    for arrival in 0..arrivals {
        now += random.exponential(1.0 / rate);
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
            ended(end.key().1);
            let (gpu, start) = end.remove();
            let there = gpus[gpu].iter_mut();
            let over = there.into_iter().find(|one| one.busy && one.start == start);
            over.expect("an allocated instance stays").busy = false;
        }
        let profile = random.pick();
        asked += compute(profile);
        let Some(placed) = choose(&gpus, profile, arrival) else {
            refused += compute(profile);
            continue;
        };
        apply(geometry, &mut gpus[placed.gpu], &placed);
        let end = now + random.exponential(1.0);
        ends.insert((end, arrival), (placed.gpu, placed.start));
    }
    refused / asked
}

fn choose(
    geometry: &Geometry,
    gpus: &[Vec<Instance>],
    profile: usize,
    chooser: Chooser,
) -> Option<InstancePlacement> {
    if let Chooser::Ours = chooser {
        let offered: Vec<_> = gpus.iter().map(|all| (geometry, &**all)).collect();
        return place(&offered, &geometry.profiles()[profile].name);
    }
    let allocated = |gpu: usize| -> Vec<Instance> {
        let all = gpus[gpu].iter().copied();
        all.filter(|one| one.busy).collect()
    };
    let offers = (0..GPUS).flat_map(|gpu| {
        let starts: Vec<u8> = geometry.starts(profile, &allocated(gpu)).collect();
        starts.into_iter().map(move |start| (gpu, start))
    });
    let (gpu, start) = match chooser {
        Chooser::BestKnown => offers.min_by_key(|&(gpu, start)| {
            let before = allocated(gpu);
            let mut after = before.clone();
            after.push(Instance::busy(profile, start));
            let size = |one: &Instance| u32::from(geometry.profiles()[one.profile].size);
            let full: u32 = before.iter().map(size).sum();
            let loss = worth(geometry, &before) - worth(geometry, &after);
            (loss, Reverse(full), Reverse(start), gpu)
        }),
        _ => offers.min(),
    }?;
    let idle = gpus[gpu].iter().filter(|one| !one.busy);
    Some(InstancePlacement {
        gpu,
        profile,
        start,
        ready: false,
        destroys: idle.map(|one| one.start).collect(),
    })
}

/// The remaining capacity of a GPU: its starts, weighted by memory slices.
fn worth(geometry: &Geometry, allocated: &[Instance]) -> usize {
    let each = MIX.map(|(at, _)| {
        geometry.starts(at, allocated).count() * usize::from(geometry.profiles()[at].size)
    });
    each.iter().sum()
}

/// Does what the driver would, and checks that no allocated instance ends or overlaps.
fn apply(geometry: &Geometry, gpu: &mut Vec<Instance>, placed: &InstancePlacement) {
    if placed.ready {
        let there = gpu
            .iter_mut()
            .find(|one| !one.busy && one.start == placed.start);
        there.expect("what is ready is there").busy = true;
        return;
    }
    for start in &placed.destroys {
        let at = gpu.iter().position(|one| !one.busy && one.start == *start);
        gpu.remove(at.expect("only idle instances are destroyed"));
    }
    let open: Vec<u8> = geometry.starts(placed.profile, gpu).collect();
    assert!(open.contains(&placed.start), "{placed:?} beside {gpu:?}");
    gpu.push(Instance::busy(placed.profile, placed.start));
}

/// Random numbers that are the same everywhere (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: u32) -> u32 {
        let next = self.next() >> 32;
        u32::try_from((next * u64::from(most)) >> 32).expect("below a u32")
    }

    /// Nanoseconds, exponential with this mean in seconds.
    fn exponential(&mut self, mean: f64) -> u64 {
        let part = (f64::from(self.below(u32::MAX)) + 1.0) / (f64::from(u32::MAX) + 1.0);
        std::time::Duration::from_secs_f64(-part.ln() * mean)
            .as_nanos()
            .try_into()
            .expect("short")
    }

    fn pick(&mut self) -> usize {
        let mut at = self.below(100);
        for (profile, of) in MIX {
            if at < of {
                return profile;
            }
            at -= of;
        }
        unreachable!("the mix makes 100")
    }
}

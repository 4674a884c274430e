//! Requests for instances that come and go on eight cards, and how much of them
//! is refused: Poisson arrivals, exponential times, 40/25/18/10/7 % of 1g, 2g,
//! 3g, 4g and 7g; a load of 1 asks for all compute slices.
//!
//! Every held instance is checked to stay as it is until it ends.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::modes::books::Books;
use crate::mig::place::{Placement, place};
use crate::mig::{Geometry, Instance};

const CARDS: usize = 8;
const ARRIVALS: u32 = 8_000;
/// The same for the books, each step of which takes longer.
const BOOKED: u32 = 600;
const SEEDS: u32 = 4;
/// Profiles by their place in the table, and how many of 100 requests are for them.
const MIX: [(usize, u32); 5] = [(0, 40), (3, 25), (4, 18), (5, 10), (6, 7)];

#[derive(Clone, Copy, Debug)]
pub(super) enum Chooser {
    Ours,
    /// Least loss, then the fullest card and the highest start: best in print.
    BestKnown,
    /// Without a look at others: the first card, the lowest start.
    LowestStart,
}

/// The part of all requested compute slices that was refused, mean of all seeds.
pub(super) fn refused(geometry: &Geometry, load: f64, chooser: Chooser) -> f64 {
    let seeds = (1..=SEEDS).map(|seed| {
        let mut choose =
            |cards: &[Vec<Instance>], profile: usize, _| choose(geometry, cards, profile, chooser);
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

/// The part that is refused by the books of a node with these cards, whose agent
/// publishes what it made, and by [`place`] alone.
pub(super) fn refused_by_the_books(geometry: &Geometry, load: f64) -> (f64, f64) {
    let books = RefCell::new(Books::new(geometry));
    let mut reserve = |cards: &[Vec<Instance>], profile: usize, arrival: u32| {
        books.borrow_mut().reserve(cards, profile, arrival)
    };
    let mut release = |arrival: u32| books.borrow_mut().release(arrival);
    let booked = run(geometry, load, 1, BOOKED, &mut reserve, &mut release);
    let mut alone = |cards: &[Vec<Instance>], profile: usize, _| {
        choose(geometry, cards, profile, Chooser::Ours)
    };
    let alone = run(geometry, load, 1, BOOKED, &mut alone, &mut |_| {});
    (booked, alone)
}

type Choose<'a> = &'a mut dyn FnMut(&[Vec<Instance>], usize, u32) -> Option<Placement>;

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
    let mut cards: Vec<Vec<Instance>> = vec![vec![]; CARDS];
    // When which instance ends; times as nanoseconds, so that they have an order.
    let mut ends: BTreeMap<(u64, u32), (usize, u8)> = BTreeMap::new();
    let (mut now, mut asked, mut refused) = (0, 0.0, 0.0);
    for arrival in 0..arrivals {
        now += random.exponential(1.0 / rate);
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
            ended(end.key().1);
            let (card, start) = end.remove();
            let there = cards[card].iter_mut();
            let over = there.into_iter().find(|one| one.busy && one.start == start);
            over.expect("a held instance stays").busy = false;
        }
        let profile = random.pick();
        asked += compute(profile);
        let Some(placed) = choose(&cards, profile, arrival) else {
            refused += compute(profile);
            continue;
        };
        apply(geometry, &mut cards[placed.card], &placed);
        let end = now + random.exponential(1.0);
        ends.insert((end, arrival), (placed.card, placed.start));
    }
    refused / asked
}

fn choose(
    geometry: &Geometry,
    cards: &[Vec<Instance>],
    profile: usize,
    chooser: Chooser,
) -> Option<Placement> {
    if let Chooser::Ours = chooser {
        let offered: Vec<_> = cards.iter().map(|all| (geometry, &**all)).collect();
        return place(&offered, &geometry.profiles()[profile].name);
    }
    let held = |card: usize| -> Vec<Instance> {
        let all = cards[card].iter().copied();
        all.filter(|one| one.busy).collect()
    };
    let offers = (0..CARDS).flat_map(|card| {
        let starts: Vec<u8> = geometry.starts(profile, &held(card)).collect();
        starts.into_iter().map(move |start| (card, start))
    });
    let (card, start) = match chooser {
        Chooser::BestKnown => offers.min_by_key(|&(card, start)| {
            let before = held(card);
            let mut after = before.clone();
            let busy = true;
            after.push(Instance {
                profile,
                start,
                busy,
            });
            let size = |one: &Instance| u32::from(geometry.profiles()[one.profile].size);
            let full: u32 = before.iter().map(size).sum();
            let loss = worth(geometry, &before) - worth(geometry, &after);
            (loss, Reverse(full), Reverse(start), card)
        }),
        _ => offers.min(),
    }?;
    let idle = cards[card].iter().filter(|one| !one.busy);
    Some(Placement {
        card,
        profile,
        start,
        ready: false,
        destroys: idle.map(|one| one.start).collect(),
    })
}

/// What a card can still give: its starts, weighted by memory slices.
fn worth(geometry: &Geometry, held: &[Instance]) -> usize {
    let each = MIX.map(|(at, _)| {
        geometry.starts(at, held).count() * usize::from(geometry.profiles()[at].size)
    });
    each.iter().sum()
}

/// Does what the driver would: no instance that is held ends, and none overlaps.
fn apply(geometry: &Geometry, card: &mut Vec<Instance>, placed: &Placement) {
    if placed.ready {
        let there = card
            .iter_mut()
            .find(|one| !one.busy && one.start == placed.start);
        there.expect("what is ready is there").busy = true;
        return;
    }
    for start in &placed.destroys {
        let at = card.iter().position(|one| !one.busy && one.start == *start);
        card.remove(at.expect("only idle instances are destroyed"));
    }
    let open: Vec<u8> = geometry.starts(placed.profile, card).collect();
    assert!(open.contains(&placed.start), "{placed:?} beside {card:?}");
    card.push(Instance {
        profile: placed.profile,
        start: placed.start,
        busy: true,
    });
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

//! What each kernel costs, learnt from sampled launches.
//!
//! A sample is the time between two marks on the card's own clock, before and after a launch. Alone
//! on the card that is what the launch took, and the mean of it is what the next ones are charged.
//! With other streams and processes of the container at work some samples hold time of theirs.
//! Those are told by their length: two low quantiles of all samples, which others seldom reach, say
//! how far a kernel's own times spread, and what lies beyond is left out.
//! With other tenants at work most samples may hold time in which one of them had the card, and the
//! more the fuller it is; to charge that would free the card again, and so on. So then the shortest
//! of late counts, times how far the mean was above the shortest before: that does not depend on
//! how full the card is, and what is wrong with it is for the host's trim. A launch that took longer
//! than turns with the others can explain is charged what they cannot: one kernel may have long and
//! short launches of one size.
//! A kernel that waits for one on another card of the container, which we held up, took longer by
//! our own doing: to charge that at the container's rate would hold up this card for longer still,
//! and so on in turns.
//!
//! The table has a fixed size. Where it is full, newcomers share one more place, which knows their
//! mean, and now and then one of them gets that of a kernel which was not launched meanwhile: none is
//! unknown again and again.
//!
//! Fed by: the limiter's markers. Must not: lock; a lost update costs one sample.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// What an unknown kernel is charged until its first launches were measured, in nanoseconds.
pub const UNKNOWN: u64 = 1_000_000;
/// Launches of an unknown kernel that may be under way at once.
pub const BLIND: u32 = 2;

/// Samples over which the mean forgets, once there are as many.
const MEMORY: u64 = 16;
/// The part by which the shortest sample of late grows with each that is longer.
const LEAK: u64 = 128;
/// Fixed point of ratios.
const ONE: u64 = 256;
/// The largest spread that is believed.
const WIDEST: u64 = 3 * ONE;
/// Samples that were left out one after another, after which one is taken for want of better.
const PATIENCE: u32 = 24;
/// Nanoseconds for which a card stays with one of several tenants, about.
const SLICE: u64 = 2_000_000;
/// The part of itself by which the lower quantile moves with a sample: while few are known, later.
const STEPS: [u64; 2] = [8, 32];

/// Launches of kernels without a place of their own, after which one gets the place of a kernel
/// that was not launched meanwhile.
const VISITS: u32 = 64;

const KERNELS: usize = 4096;
const WAYS: usize = 4;

/// One launch, measured.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Nanoseconds between its two marks.
    pub took: u64,
    /// Tenants that had the card meanwhile, this one included.
    pub sharing: u32,
    /// Other work of the container may have run meanwhile.
    pub overlapped: bool,
    /// The launching thread was held up between the marks, so they may hold time that the card
    /// was idle.
    pub disturbed: bool,
    /// Nanoseconds for which launches of the container on its other cards were held up meanwhile.
    pub held: u64,
}

/// What is known of a kernel at one size, or of a graph.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Kernel {
    key: AtomicU64,
    mean: AtomicU64,
    /// The shortest sample of late.
    shortest: AtomicU64,
    /// What three in ten samples are shorter than.
    low: AtomicU64,
    /// Mean by shortest where no other tenant was, in parts of [`ONE`]; 0: not known.
    spread: AtomicU64,
    samples: AtomicU64,
    /// Launches whose measure is not known yet.
    open: AtomicU32,
    /// Samples left out, one after another.
    left_out: AtomicU32,
    /// Not 0: launched since a place was last looked for; of newcomers together, how often.
    late: AtomicU32,
}

/// All kernels of a process on a card.
#[derive(Debug)]
pub struct Costs(Box<[Kernel]>);

/// Places of a set: its kernels, and the one of all that found none.
const PLACES: usize = WAYS + 1;

impl Default for Costs {
    fn default() -> Self {
        let places = KERNELS / WAYS * PLACES;
        Self((0..places).map(|_| Kernel::default()).collect())
    }
}

/// A key of a kernel from its parts: never 0, and spread over all 64 bits.
#[inline]
pub fn key(parts: [u64; 3]) -> u64 {
    let mut mixed: u64 = 0x9e37_79b9_7f4a_7c15;
    for part in parts {
        mixed = (mixed ^ part).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^= mixed >> 32;
    }
    mixed | 1
}

impl Costs {
    /// The kernel of a key, perhaps in the place of another, or together with others.
    #[inline]
    pub fn kernel(&self, key: u64) -> &Kernel {
        let set = usize::try_from(key >> 40).unwrap_or(0) % (KERNELS / WAYS) * PLACES;
        let places = &self.0[set..set + PLACES];
        let found = places.iter().find(|one| one.key.load(Relaxed) == key);
        let found = found.unwrap_or_else(|| Self::enter(places, key));
        if found.late.load(Relaxed) == 0 {
            found.late.store(1, Relaxed);
        }
        found
    }

    #[cold]
    fn enter(places: &[Kernel], key: u64) -> &Kernel {
        let (ways, crowd) = places.split_at(WAYS);
        let crowd = &crowd[0];
        let mut found = ways.iter().find(|one| one.key.load(Relaxed) == 0);
        if found.is_none() && crowd.late.fetch_add(1, Relaxed) >= VISITS {
            found = ways.iter().find(|one| one.late.load(Relaxed) == 0);
            for one in ways {
                one.late.store(0, Relaxed);
            }
            crowd.late.store(1, Relaxed);
        }
        let Some(place) = found else {
            return crowd;
        };
        for word in [&place.mean, &place.low, &place.spread, &place.samples] {
            word.store(0, Relaxed);
        }
        place.open.store(0, Relaxed);
        place.left_out.store(0, Relaxed);
        place.key.store(key, Relaxed);
        place
    }
}

impl Kernel {
    /// It was measured.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.samples.load(Relaxed) > 0
    }

    /// What a launch of it is charged, in nanoseconds; [`UNKNOWN`] before the first measure.
    #[inline]
    pub fn cost(&self) -> u64 {
        if self.is_known() {
            self.mean.load(Relaxed)
        } else {
            UNKNOWN
        }
    }

    /// So many launches of it that nobody knows the cost of are under way that no more may go.
    pub fn is_blind(&self) -> bool {
        !self.is_known() && self.open.load(Relaxed) >= BLIND
    }

    /// A launch of it begins to be measured.
    pub fn begin(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    /// That came to nothing, or is about to be learnt from.
    pub fn end(&self) {
        let _ = self
            .open
            .fetch_update(Relaxed, Relaxed, |open| open.checked_sub(1));
    }

    /// Learns from a launch; what that one is to be charged, if it can be told.
    pub fn learn(&self, sample: Sample) -> Option<u64> {
        let (samples, mean) = (self.samples.load(Relaxed), self.mean.load(Relaxed));
        let took = sample.took;
        let held_up = sample.disturbed && (samples == 0 || took > mean);
        if !held_up {
            self.note(samples, took);
        }
        let shared = sample.sharing > 1;
        let longest = match (held_up, shared, sample.overlapped && samples > 0) {
            (true, ..) => 0,
            (false, false, true) => self.longest(),
            _ => u64::MAX,
        };
        if took > longest && self.left_out.fetch_add(1, Relaxed) < PATIENCE {
            return None;
        }
        self.left_out.store(0, Relaxed);
        // What it took if it waited for all that was held up.
        let least = took.saturating_sub(sample.held);
        let found = if shared {
            self.guess().max(beside(least, sample.sharing)).min(took)
        } else if samples > 0 {
            self.longest().max(least).min(took)
        } else {
            took
        };
        self.samples.store(samples + 1, Relaxed);
        let mean = average(mean, found, (samples + 1).min(MEMORY));
        self.mean.store(mean, Relaxed);
        if !shared {
            let short = self.shortest.load(Relaxed).max(1);
            let spread = (mean.saturating_mul(ONE) / short).clamp(ONE, WIDEST);
            self.spread.store(spread, Relaxed);
        }
        Some(found)
    }

    /// What it takes, as far as the shortest samples tell.
    fn guess(&self) -> u64 {
        let spread = self.spread.load(Relaxed).max(ONE);
        self.shortest.load(Relaxed).saturating_mul(spread) / ONE
    }

    /// Moves the two quantiles.
    fn note(&self, samples: u64, took: u64) {
        if self.low.load(Relaxed) == 0 {
            self.low.store(took, Relaxed);
            self.shortest.store(took, Relaxed);
        }
        let short = self.shortest.load(Relaxed);
        self.shortest
            .store(took.min(short + short / LEAK + 1), Relaxed);
        let step = STEPS[usize::from(samples > 32)] * 10;
        let low = self.low.load(Relaxed);
        let low = if took > low {
            took.min(low + (low * 3).div_ceil(step))
        } else {
            took.max(low - low * 7 / step)
        };
        self.low.store(low, Relaxed);
    }

    /// The longest sample that may be a launch's own time. For times that are lognormal it lies
    /// as far above the mean as the shortest of late lies below, about.
    fn longest(&self) -> u64 {
        let low = self.low.load(Relaxed);
        let ratio = low.saturating_mul(ONE) / self.shortest.load(Relaxed).max(1);
        let ratio = ratio.clamp(ONE, 8 * ONE);
        let longest = low.saturating_mul(ratio) / ONE * ratio / ONE * (ratio + ONE) / (2 * ONE);
        longest + longest / 16
    }
}

/// What a launch took at least, if others had the card in turns with it: each as long as it, and a
/// slice before and behind.
fn beside(took: u64, sharing: u32) -> u64 {
    let others = u64::from(sharing.saturating_sub(1));
    took.saturating_sub(2 * others * SLICE) / (others + 1)
}

/// The mean moved towards a value by one part of `parts`.
fn average(mean: u64, value: u64, parts: u64) -> u64 {
    if value >= mean {
        mean + (value - mean) / parts
    } else {
        mean - (mean - value) / parts
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;

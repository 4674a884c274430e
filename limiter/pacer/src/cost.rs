//! What each kernel costs, learnt from sampled launches.
//!
//! A sample is the time between two marks on the card's own clock, before and after a launch. Alone
//! on the card that is what the launch took, and the mean of it is what the next ones are charged.
//! With other tenants at work, or other streams and processes of the same container, some samples
//! hold time of theirs. Those are told by their length: two low quantiles of all samples, which
//! others seldom reach, say how far a kernel's own times spread, and what lies beyond is left out.
//!
//! The table has a fixed size and forgets the kernel in its way when it is full.
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
/// Samples that were left out one after another, after which one is taken for want of better.
const PATIENCE: u32 = 24;
/// The part of itself by which the lower quantile moves with a sample: while few are known, later.
const STEPS: [u64; 2] = [8, 32];

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
    samples: AtomicU64,
    /// Launches whose measure is not known yet.
    open: AtomicU32,
    /// Samples left out, one after another.
    left_out: AtomicU32,
}

/// All kernels of a process on a card.
#[derive(Debug)]
pub struct Costs(Box<[Kernel]>);

impl Default for Costs {
    fn default() -> Self {
        Self((0..KERNELS).map(|_| Kernel::default()).collect())
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
    /// The kernel of a key, perhaps in the place of another.
    #[inline]
    pub fn kernel(&self, key: u64) -> &Kernel {
        let set = usize::try_from(key >> 40).unwrap_or(0) % (KERNELS / WAYS) * WAYS;
        let ways = &self.0[set..set + WAYS];
        let found = ways.iter().find(|one| one.key.load(Relaxed) == key);
        found.unwrap_or_else(|| Self::enter(ways, key))
    }

    #[cold]
    fn enter(ways: &[Kernel], key: u64) -> &Kernel {
        let free = ways.iter().find(|one| one.key.load(Relaxed) == 0);
        let victim = usize::try_from(key >> 8).unwrap_or(0) % WAYS;
        let place = free.unwrap_or(&ways[victim]);
        for word in [&place.mean, &place.shortest, &place.low, &place.samples] {
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

    /// Learns from a launch; what that one took, if it can be told.
    pub fn learn(&self, sample: Sample) -> Option<u64> {
        let (samples, mean) = (self.samples.load(Relaxed), self.mean.load(Relaxed));
        let took = sample.took;
        let held_up = sample.disturbed && (samples == 0 || took > mean);
        let mixed = sample.sharing > 1 || sample.overlapped;
        let longest = if held_up {
            0
        } else if mixed && samples > 0 {
            self.longest()
        } else {
            u64::MAX
        };
        if !held_up {
            self.note(samples, took);
        }
        if took > longest && self.left_out.fetch_add(1, Relaxed) < PATIENCE {
            return None;
        }
        self.left_out.store(0, Relaxed);
        self.samples.store(samples + 1, Relaxed);
        let mean = average(mean, took, (samples + 1).min(MEMORY));
        self.mean.store(mean, Relaxed);
        Some(took)
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

/// The mean moved towards a value by one part of `parts`.
fn average(mean: u64, value: u64, parts: u64) -> u64 {
    if value >= mean {
        mean + (value - mean) / parts
    } else {
        mean - (mean - value) / parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alone(took: u64) -> Sample {
        Sample {
            took,
            sharing: 1,
            overlapped: false,
            disturbed: false,
        }
    }

    #[test]
    fn an_unknown_kernel_is_charged_a_guess_and_few_of_it_may_be_under_way() {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        assert_eq!((kernel.cost(), kernel.is_blind()), (UNKNOWN, false));
        kernel.begin();
        kernel.begin();
        assert!(kernel.is_blind());
        kernel.end();
        assert_eq!(kernel.learn(alone(5_000)), Some(5_000));
        assert_eq!((kernel.cost(), kernel.is_blind()), (5_000, false));
    }

    #[test]
    fn the_mean_follows_what_is_measured() {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        for took in [90, 110, 90, 110, 90, 110, 90, 110] {
            kernel.learn(alone(took * 1000));
        }
        assert!((98_000..102_000).contains(&kernel.cost()), "{kernel:?}");
        for _ in 0..100 {
            kernel.learn(alone(300_000));
        }
        assert!((295_000..=300_000).contains(&kernel.cost()), "{kernel:?}");
    }

    #[test]
    fn time_of_others_is_not_taken_for_the_kernels_own() {
        for (sharing, overlapped) in [(3, false), (1, true)] {
            let costs = Costs::default();
            let kernel = costs.kernel(key([1, 2, 3]));
            for i in 0..400 {
                // Every other launch waits for slices of 2 ms of others.
                let sample = Sample {
                    sharing,
                    overlapped,
                    ..alone(1_000_000 + i % 2 * (i % 5) * 2_000_000)
                };
                kernel.learn(sample);
            }
            let cost = kernel.cost();
            assert!((1_000_000..1_050_000).contains(&cost), "{kernel:?}");
        }
    }

    #[test]
    fn times_that_spread_by_themselves_are_not_cut_off() {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let mut random = fastrand::Rng::with_seed(7);
        let (mut sum, mut taken) = (0.0, 0.0);
        for i in 0..4000 {
            // Lognormal about 1 ms, sigma 0.3.
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "about a million"
            )]
            let took = (1e6 * (0.3 * normal).exp()) as u64;
            kernel.learn(Sample {
                overlapped: true,
                ..alone(took)
            });
            if i > 100 {
                #[expect(clippy::cast_precision_loss, reason = "about a million")]
                let cost = kernel.cost() as f64;
                sum += cost;
                taken += 1.0;
            }
        }
        let mean = sum / taken / 1e6;
        assert!((1.0..1.08).contains(&mean), "{mean}, of 1.046");
    }

    #[test]
    fn a_kernel_that_takes_longer_than_ever_is_believed_in_the_end() {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let mixed = |took| Sample {
            overlapped: true,
            ..alone(took)
        };
        for _ in 0..100 {
            kernel.learn(mixed(1_000));
        }
        assert_eq!(kernel.learn(mixed(50_000)), None);
        for _ in 0..1_500 {
            kernel.learn(mixed(50_000));
        }
        assert!(kernel.cost() > 40_000, "{kernel:?}");
    }

    #[test]
    fn a_launch_that_was_held_up_teaches_nothing_but_that_it_took_less() {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let late = |took| Sample {
            disturbed: true,
            ..alone(took)
        };
        assert_eq!(kernel.learn(late(9_000)), None);
        assert!(!kernel.is_known());
        kernel.learn(alone(1_000));
        assert_eq!(kernel.learn(late(9_000)), None);
        assert_eq!(kernel.learn(late(900)), Some(900));
        let taken = (0..60).filter_map(|_| kernel.learn(late(2_000))).count();
        assert!(
            (1..=3).contains(&taken),
            "where nothing better comes: {taken}"
        );
    }

    #[test]
    fn a_full_table_forgets_a_kernel_and_not_the_rest() {
        let costs = Costs::default();
        for function in 0..20_000 {
            let kernel = costs.kernel(key([function, 1, 1]));
            kernel.learn(alone(7_000));
            assert_eq!(costs.kernel(key([function, 1, 1])).cost(), 7_000);
        }
        let newest = 19_900..20_000;
        let known = newest.filter(|one| costs.kernel(key([*one, 1, 1])).is_known());
        assert!(known.count() > 80);
    }

    proptest! {
        #[test]
        fn a_cost_is_never_outside_what_was_measured(
            samples in prop::collection::vec((1_u64..1 << 40, 1_u32..10, any::<bool>(), any::<bool>()), 1..100),
        ) {
            let costs = Costs::default();
            let kernel = costs.kernel(key([1, 2, 3]));
            let (mut lowest, mut most) = (u64::MAX, 0);
            for (took, sharing, overlapped, disturbed) in samples {
                (lowest, most) = (lowest.min(took), most.max(took));
                let found = kernel.learn(Sample { took, sharing, overlapped, disturbed });
                prop_assert!(found.is_none_or(|found| found == took));
            }
            if kernel.is_known() {
                prop_assert!((lowest..=most).contains(&kernel.cost()), "{:?}", kernel);
            }
        }
    }
}

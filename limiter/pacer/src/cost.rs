//! What each kernel costs, learnt from measured launches.
//!
//! A sample is the time between two CUDA events, before and after a launch. On a device without
//! other work, that is the launch's own time, and the mean of the samples is what later launches
//! are charged.
//!
//! With other streams and processes of the container at work, some samples include time of theirs.
//! Their length gives them away: two low quantiles of all samples, which other work seldom reaches,
//! tell how far a kernel's own times spread, and longer samples are left out.
//!
//! With other tenants at work, most samples may include time in which one of them had the device,
//! the more so the busier it is; charging that would free the device again, and so on. So a kernel
//! that was measured undisturbed costs what it took then: alone on the device, or while the host
//! let all others wait. Until then the recent shortest sample counts, multiplied by the ratio
//! of the mean to the shortest before. A launch that took longer than time slicing with the other
//! tenants can explain is charged the excess: one kernel may have long and short launches of the
//! same size.
//!
//! A kernel that waits for one on another device of the container, which we held up, took longer
//! because of us. Charging that at the container's rate would hold up this device for even longer,
//! and so on in alternation.
//!
//! The table has a fixed size. Where a set is full, further kernels share one more entry, which
//! knows their mean; from time to time one of them replaces a kernel that was not launched
//! recently, so none stays unknown. Nothing is locked: a lost update costs one sample.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Nanoseconds charged for an unknown kernel until its first launches are measured.
pub const UNKNOWN_COST: u64 = 1_000_000;
/// Launches of an unknown kernel that may run at once.
pub const MAX_UNMEASURED: u32 = 2;

/// Weight of the mean in samples, once there are that many.
const MEAN_SAMPLES: u64 = 16;
/// The part by which the recent shortest sample grows with each longer one.
const SHORTEST_GROWTH: u64 = 128;
/// Fixed point of ratios.
const RATIO_ONE: u64 = 256;
/// Largest accepted spread.
const MAX_SPREAD: u64 = 3 * RATIO_ONE;
/// Consecutive samples that may be left out before one is used for want of a better one.
const MAX_LEFT_OUT: u32 = 24;
/// Approximate nanoseconds for which a device serves one of several tenants at a time.
const TIME_SLICE: u64 = 2_000_000;
/// The part of a device's time that is left where it changes tenants after each slice.
const SWITCHING: (u64, u64) = (8, 9);
/// The part by which the lower quantile moves with a sample: while few are known, and later.
const QUANTILE_STEPS: [u64; 2] = [8, 32];

/// Launches of kernels without an entry of their own, after which one of them gets the entry of a
/// kernel that was not launched since.
const EVICTION_INTERVAL: u32 = 64;

const KERNELS: usize = 4096;
const WAYS: usize = 4;

/// One measured launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSample {
    /// Nanoseconds between its two events.
    pub took: u64,
    /// Tenants that used the device meanwhile, including this one.
    pub sharing: u32,
    /// All other tenants waited. Without that, another one may have started just now.
    pub exclusive: bool,
    /// Other work of the container may have run meanwhile.
    pub overlapped: bool,
    /// The launching thread was delayed between the events, so they may include time in which the
    /// device was idle.
    pub disturbed: bool,
    /// Nanoseconds for which launches of the container on its other devices were held up meanwhile.
    pub delayed: u64,
}

/// What is known about a kernel at one size, or about a graph.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct KernelCost {
    key: AtomicU64,
    mean: AtomicU64,
    /// The recent shortest sample.
    shortest: AtomicU64,
    /// The value below which three in ten samples are.
    low: AtomicU64,
    /// Mean divided by shortest when no other tenant was active, in parts of [`RATIO_ONE`]; 0:
    /// unknown.
    spread: AtomicU64,
    samples: AtomicU64,
    /// Samples while no other tenant was active; if there are any, the mean is of them alone.
    undisturbed: AtomicU32,
    /// Of these, samples while all others waited.
    exclusive: AtomicU32,
    /// Launches whose measurement is under way.
    unmeasured: AtomicU32,
    /// Consecutive samples that were left out.
    left_out: AtomicU32,
    /// Not 0: launched since an entry was last replaced; of the shared entry, how often.
    recent: AtomicU32,
}

/// The costs of all kernels of a process on one device.
#[derive(Debug)]
pub struct Costs(Box<[KernelCost]>);

/// Entries of a set: its kernels, and the one that all others share.
const SET_SIZE: usize = WAYS + 1;

impl Default for Costs {
    fn default() -> Self {
        let places = KERNELS / WAYS * SET_SIZE;
        Self((0..places).map(|_| KernelCost::default()).collect())
    }
}

/// The key of a kernel: never 0, and spread over all 64 bits.
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
    /// The entry of a key, which may replace another kernel or be shared.
    #[inline]
    pub fn kernel(&self, key: u64) -> &KernelCost {
        let set = usize::try_from(key >> 40).unwrap_or(0) % (KERNELS / WAYS) * SET_SIZE;
        let places = &self.0[set..set + SET_SIZE];
        let found = places.iter().find(|one| one.key.load(Relaxed) == key);
        let found = found.unwrap_or_else(|| Self::insert(places, key));
        if found.recent.load(Relaxed) == 0 {
            found.recent.store(1, Relaxed);
        }
        found
    }

    #[cold]
    fn insert(places: &[KernelCost], key: u64) -> &KernelCost {
        let (ways, overflow) = places.split_at(WAYS);
        let overflow = &overflow[0];
        let mut found = ways.iter().find(|one| one.key.load(Relaxed) == 0);
        if found.is_none() && overflow.recent.fetch_add(1, Relaxed) >= EVICTION_INTERVAL {
            found = ways.iter().find(|one| one.recent.load(Relaxed) == 0);
            for one in ways {
                one.recent.store(0, Relaxed);
            }
            overflow.recent.store(1, Relaxed);
        }
        let Some(place) = found else {
            return overflow;
        };
        for word in [&place.mean, &place.low, &place.spread, &place.samples] {
            word.store(0, Relaxed);
        }
        place.unmeasured.store(0, Relaxed);
        place.left_out.store(0, Relaxed);
        place.undisturbed.store(0, Relaxed);
        place.exclusive.store(0, Relaxed);
        place.key.store(key, Relaxed);
        place
    }
}

impl KernelCost {
    /// Whether it was measured.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.samples.load(Relaxed) > 0
    }

    /// What a launch is charged, in nanoseconds; [`UNKNOWN_COST`] before the first measurement.
    #[inline]
    pub fn cost(&self) -> u64 {
        if self.is_known() {
            self.mean.load(Relaxed)
        } else {
            UNKNOWN_COST
        }
    }

    /// Whether so many launches of unknown cost are under way that no more may start.
    pub fn is_at_unmeasured_limit(&self) -> bool {
        !self.is_known() && self.unmeasured.load(Relaxed) >= MAX_UNMEASURED
    }

    /// A launch begins to be measured.
    pub fn begin_measurement(&self) {
        self.unmeasured.fetch_add(1, Relaxed);
    }

    /// The measurement failed, or is about to be learnt from.
    pub fn end_measurement(&self) {
        let _ = self
            .unmeasured
            .fetch_update(Relaxed, Relaxed, |unmeasured| unmeasured.checked_sub(1));
    }

    /// Learns from a launch; what that launch is to be charged, if that is known.
    pub fn learn(&self, sample: LaunchSample) -> Option<u64> {
        let (samples, mean) = (self.samples.load(Relaxed), self.mean.load(Relaxed));
        let took = sample.took;
        let unreliable = sample.disturbed && (samples == 0 || took > mean);
        if !unreliable {
            self.update_quantiles(samples, took);
        }
        let shared = sample.sharing > 1;
        let undisturbed = self.undisturbed.load(Relaxed);
        let exclusive = self.exclusive.load(Relaxed);
        let longest = match (unreliable, shared, sample.overlapped && samples > 0) {
            (true, ..) => 0,
            (false, false, true) => self.longest_plausible(),
            // Another tenant may have started just now.
            (false, false, false) if exclusive > 0 && !sample.exclusive => mean + mean / 4,
            _ => u64::MAX,
        };
        if took > longest && self.left_out.fetch_add(1, Relaxed) < MAX_LEFT_OUT {
            return None;
        }
        self.left_out.store(0, Relaxed);
        // Its own time if it waited for everything that was held up.
        let least = took.saturating_sub(sample.delayed);
        if shared && undisturbed > 0 {
            let excess = least_when_shared(least, sample.sharing);
            return Some(mean.max(excess / SWITCHING.1 * SWITCHING.0).min(took));
        }
        let found = if shared {
            self.estimate()
                .max(least_when_shared(least, sample.sharing))
                .min(took)
        } else if undisturbed > 0 && !sample.exclusive {
            self.longest_plausible().max(least).min(took)
        } else {
            took
        };
        self.samples.store(samples + 1, Relaxed);
        let weight = match (shared, sample.exclusive) {
            (true, _) => samples,
            (false, true) => u64::from(exclusive),
            (false, false) => u64::from(undisturbed),
        };
        let mean = average(mean, found, (weight + 1).min(MEAN_SAMPLES));
        self.mean.store(mean, Relaxed);
        if !shared {
            self.undisturbed
                .store(undisturbed.saturating_add(1), Relaxed);
            let one = u32::from(sample.exclusive);
            self.exclusive.store(exclusive.saturating_add(one), Relaxed);
            let short = self.shortest.load(Relaxed).max(1);
            let spread = (mean.saturating_mul(RATIO_ONE) / short).clamp(RATIO_ONE, MAX_SPREAD);
            self.spread.store(spread, Relaxed);
        }
        Some(found)
    }

    /// The cost as far as the shortest samples tell.
    fn estimate(&self) -> u64 {
        let spread = self.spread.load(Relaxed).max(RATIO_ONE);
        self.shortest.load(Relaxed).saturating_mul(spread) / RATIO_ONE
    }

    /// Moves the two quantiles.
    fn update_quantiles(&self, samples: u64, took: u64) {
        if self.low.load(Relaxed) == 0 {
            self.low.store(took, Relaxed);
            self.shortest.store(took, Relaxed);
        }
        let short = self.shortest.load(Relaxed);
        self.shortest
            .store(took.min(short + short / SHORTEST_GROWTH + 1), Relaxed);
        let step = QUANTILE_STEPS[usize::from(samples > 32)] * 10;
        let low = self.low.load(Relaxed);
        let low = if took > low {
            took.min(low + (low * 3).div_ceil(step))
        } else {
            took.max(low - low * 7 / step)
        };
        self.low.store(low, Relaxed);
    }

    /// The longest sample that may be a launch's own time. For lognormal times it is about as far
    /// above the mean as the recent shortest is below it.
    fn longest_plausible(&self) -> u64 {
        let low = self.low.load(Relaxed);
        let ratio = low.saturating_mul(RATIO_ONE) / self.shortest.load(Relaxed).max(1);
        let ratio = ratio.clamp(RATIO_ONE, 8 * RATIO_ONE);
        let longest = low.saturating_mul(ratio) / RATIO_ONE * ratio / RATIO_ONE
            * (ratio + RATIO_ONE)
            / (2 * RATIO_ONE);
        longest + longest / 16
    }
}

/// The least that a launch took itself if other tenants shared the device by time slices: each as
/// long as it, and a slice before and after.
fn least_when_shared(took: u64, sharing: u32) -> u64 {
    let others = u64::from(sharing.saturating_sub(1));
    took.saturating_sub(2 * others * TIME_SLICE) / (others + 1)
}

/// The mean moved towards a value by one part in `parts`.
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

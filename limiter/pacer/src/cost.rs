//! What each kernel costs, learnt from measured launches.
//!
//! A sample is the time between two CUDA events, before and after a launch. On a device without
//! other work, that is the launch's own time, and the mean of the samples is what later launches
//! are charged.
//!
//! With other threads or streams at work, some samples of small kernels include time of theirs. Their
//! length gives them away, and they are left out.
//!
//! While others have work on the device, the time includes theirs. The device serves processes in
//! turn, and the streams of one at once. Most launches of a kernel that is shorter than a time slice
//! are not interrupted; those that were are left out in the same way. A longer kernel is charged its
//! time divided by the processes with work, which also divides what the device loses by switching.
//! The mean moves four times as far with a launch alone on the device. A launch of a kernel of
//! [`LONG_KERNEL`] or more is charged its own time, divided by its process's streams with work:
//! one kernel may have long and short launches of the same size.
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
const MEAN_SAMPLES_BESIDE_OTHERS: u64 = 64;
/// The part by which the recent shortest sample grows with each longer one.
const SHORTEST_GROWTH: u64 = 128;
/// Fixed point of ratios.
const ONE: u64 = 256;
/// The part by which the lower quantile moves with a sample: while few are known, and later.
const QUANTILE_STEPS: [u64; 2] = [8, 32];
/// Consecutive samples that may be left out before one is used for want of a better one.
const MAX_LEFT_OUT: u32 = 24;
/// Mean nanoseconds of a kernel from which on each launch is measured and charged its own time.
const LONG_KERNEL: u64 = 500_000;

/// Nanoseconds for which a device serves a process before the next, by default (`nvidia-smi
/// compute-policy --set-timeslice`). A launch that was interrupted took longer.
const TIME_SLICE: u64 = 2_000_000;

/// Launches of kernels without an entry of their own, after which one of them gets the entry of a
/// kernel that was not launched since.
const EVICTION_INTERVAL: u32 = 64;

const KERNELS: usize = 4096;
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct LaunchSample {
    /// Nanoseconds between its two events.
    pub took: u64,
    /// Among how many the device divided its time meanwhile.
    pub sharing: Sharing,
    /// Other threads launch too, and their work may come between the events.
    pub overlapped: bool,
    /// The launching thread was delayed between the events, so they may include time in which the
    /// device was idle.
    pub disturbed: bool,
    /// Nanoseconds for which launches of the container on its other devices were held up meanwhile.
    pub delayed: u64,
}

/// Fixed point of processes of other containers.
pub const ONE_PROCESS: u32 = 256;
/// Others with work for a smaller part of the time leave a launch alone on the device.
const ALONE: u64 = ONE_PROCESS as u64 / 32;

/// Nanoseconds between two counts of others.
const TICK: u64 = 20_000_000;

/// Processes with work on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Of the container.
    pub own: u32,
    /// Streams of this process with work.
    pub streams: u64,
    /// What others lately took of the device, as a number of processes that always have work, in
    /// parts of [`ONE_PROCESS`].
    pub others: u32,
    /// The time that others took from a process with work so far, in nanoseconds.
    pub others_time: u64,
    /// When that was written, in nanoseconds.
    pub written: u64,
}

/// Among how many streams a device divides its time while a launch is on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// All in parts of [`ONE_PROCESS`].
    processes: u64,
    /// The same if those of the container at the end are others than at the begin: all began at once.
    most_processes: u64,
    streams: u64,
}

impl Sharing {
    /// One launch alone on the device.
    pub const ALONE: Self = Self {
        processes: ONE_PROCESS as u64,
        most_processes: ONE_PROCESS as u64,
        streams: ONE_PROCESS as u64,
    };

    /// From what runs at begin and end of a launch.
    pub fn new([begin, end]: [Running; 2]) -> Self {
        let one = u64::from(ONE_PROCESS);
        let both = |count: fn(Running) -> u64| {
            (count(begin).max(1).saturating_add(count(end).max(1))).saturating_mul(one) / 2
        };
        let own = both(|running| u64::from(running.own));
        let streams = both(|running| running.streams);
        let passed = end.written.saturating_sub(begin.written);
        let time = end.others_time.wrapping_sub(begin.others_time);
        // The host counts at most once during a short launch, so what it counted just before is
        // added.
        let before = TICK * u64::from(end.others) / (u64::from(end.others) + one);
        // Others that have work only now and then take less than if they always had some. So the
        // time that they take is averaged, and not their number.
        let window = passed.saturating_add(TICK);
        let taken = time.saturating_add(before).min(window - 1);
        let others = (taken.saturating_mul(one) / (window - taken)).min(64 * one);
        let counted = if others < ALONE { 0 } else { others };
        let itself = u32::from(begin.streams > 0);
        let before = u64::from(begin.own.saturating_sub(itself)) * one;
        let at_end = u64::from(end.own.max(1)) * one;
        Self {
            processes: own.saturating_add(counted),
            most_processes: before + at_end + counted,
            streams,
        }
    }

    /// The part of nanoseconds that belongs to one process.
    fn of_process(self, nanoseconds: u64) -> u64 {
        nanoseconds.saturating_mul(u64::from(ONE_PROCESS)) / self.processes
    }

    /// The least that it may be.
    fn least_of_process(self, nanoseconds: u64) -> u64 {
        nanoseconds.saturating_mul(u64::from(ONE_PROCESS)) / self.most_processes
    }

    /// The part of nanoseconds that belongs to one stream of a process.
    fn of_stream(self, nanoseconds: u64) -> u64 {
        nanoseconds.saturating_mul(u64::from(ONE_PROCESS)) / self.streams
    }

    /// The longest, in nanoseconds, for which the others have the device before it is this
    /// process's turn again: twice their time slices, because the changes between them take time,
    /// too.
    fn turn(self) -> u64 {
        2 * TIME_SLICE * self.processes.div_ceil(u64::from(ONE_PROCESS))
    }
}

/// What is known about a kernel at one size, or about a graph.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct KernelCost {
    key: AtomicU64,
    mean: AtomicU64,
    /// The recent shortest time that a launch was found to take, and the value below which two in ten
    /// are: other work seldom reaches them.
    shortest: AtomicU64,
    low: AtomicU64,
    samples: AtomicU64,
    /// Launches whose measurement is under way.
    unmeasured: AtomicU32,
    left_out: AtomicU32,
    /// Not 0 if the kernel was launched since an entry was last replaced; in the shared entry, how
    /// often.
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
        let known = places.iter().find(|one| one.key.load(Relaxed) == key);
        let found = known.unwrap_or_else(|| Self::insert(places, key));
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
        for word in [&place.mean, &place.shortest, &place.low, &place.samples] {
            word.store(0, Relaxed);
        }
        for word in [&place.unmeasured, &place.left_out] {
            word.store(0, Relaxed);
        }
        place.key.store(key, Relaxed);
        place
    }
}

impl KernelCost {
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

    /// Whether no launch of unknown cost may start before another one is measured.
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
        let sharing = sample.sharing;
        // Of small kernels, only some launches are measured: what else is in progress is not known, and
        // long samples are left out instead.
        let is_small = samples == 0 || mean < LONG_KERNEL;
        let took = if is_small {
            sample.took
        } else {
            sharing.of_stream(sample.took)
        };
        let low = match self.low.load(Relaxed) {
            0 => took,
            low => low,
        };
        let has_others = sharing.processes > Sharing::ALONE.processes;
        // Uninterrupted, or interrupted for no longer than one turn of the others.
        let fits_in_slice =
            took < TIME_SLICE || (low < TIME_SLICE && took < low.saturating_add(sharing.turn()));
        let own = match samples {
            _ if fits_in_slice => took,
            // A small share would pay for seconds for what is charged too much.
            0 => sharing.least_of_process(took),
            _ => sharing.of_process(took),
        };
        let is_unreliable = sample.disturbed && (samples == 0 || own > mean);
        if !is_unreliable {
            self.update_quantiles(samples, took);
        }
        let is_overlapped = sample.overlapped || sharing.streams > Sharing::ALONE.streams;
        let is_bounded = (is_small && is_overlapped) || (fits_in_slice && has_others);
        let longest = if is_bounded && samples > 0 {
            self.longest_plausible()
        } else {
            u64::MAX
        };
        if (is_unreliable || own > longest) && self.left_out.fetch_add(1, Relaxed) < MAX_LEFT_OUT {
            return None;
        }
        self.left_out.store(0, Relaxed);
        let shortest = match self.shortest.load(Relaxed) {
            whole if fits_in_slice => whole.min(own),
            whole => sharing.of_process(whole).min(own),
        };
        // Its own time if it waited for everything that was held up.
        let found = shortest.max(own.saturating_sub(sample.delayed).min(longest));
        self.samples.store(samples + 1, Relaxed);
        let parts = if sharing == Sharing::ALONE {
            MEAN_SAMPLES
        } else {
            MEAN_SAMPLES_BESIDE_OTHERS
        };
        let mean = average(mean, found, (samples + 1).min(parts));
        self.mean.store(mean, Relaxed);
        Some(if mean >= LONG_KERNEL { found } else { mean })
    }

    fn update_quantiles(&self, samples: u64, own: u64) {
        if self.low.load(Relaxed) == 0 {
            self.low.store(own, Relaxed);
            self.shortest.store(own, Relaxed);
        }
        let before = self.shortest.load(Relaxed);
        let short = own.min(before + before / SHORTEST_GROWTH + 1);
        self.shortest.store(short, Relaxed);
        let step = QUANTILE_STEPS[usize::from(samples > 32)] * 10;
        let low = match self.low.load(Relaxed) {
            low if own > low => own.min(low + (low * 2).div_ceil(step)),
            low => own.max(low - low * 8 / step),
        };
        self.low.store(low, Relaxed);
    }

    /// The longest sample that may be a launch's own time. For lognormal times it is about as far
    /// above the mean as the recent shortest is below it.
    fn longest_plausible(&self) -> u64 {
        let low = self.low.load(Relaxed);
        let quotient = low.saturating_mul(ONE) / self.shortest.load(Relaxed).max(1);
        let ratio = quotient.clamp(ONE, 8 * ONE);
        let longest = low.saturating_mul(ratio) / ONE * ratio / ONE * (ratio + ONE) / (2 * ONE);
        longest + longest / 16
    }
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

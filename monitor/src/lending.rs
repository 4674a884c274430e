//! Memory beyond a container's request is lent: anybody may use it while the GPU has it idle. A
//! container within its request that finds the GPU full gets its memory back. Nothing more is lent on
//! that GPU at once, borrowers that asked for it are notified, and after the grace period borrowers
//! are ended, those with the largest excess first, as many as it takes (docs/guides/resize.md).
//!
//! What a container says it lacks counts only up to its request, and only while the GPU is really
//! full, so a forged counters file ends nobody whom an honest one would not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aliquot_region::limits::NOTHING_LENT;

use crate::evaluation::Evaluation;
use crate::node_sample::NodeSample;
use crate::settings::Grace;

/// What a container lacks is known from a report of at most this age: the limiter renews it every few
/// milliseconds while a call waits.
const REPORT_AGE: Duration = Duration::from_millis(500);
/// A call-back ends when nothing was lacking for this long.
const QUIET: Duration = Duration::from_secs(2);
/// Time after which the memory of an ended borrower must be free; else another one is ended.
const ENDING: Duration = Duration::from_secs(5);
/// Bytes that the driver may count as free without giving them: with no more than that free, the
/// GPU is full.
const SLACK: u64 = 512 << 20;
/// How long a call may wait beyond the grace period.
const BEYOND_GRACE: Duration = Duration::from_secs(5);
/// A share that lacks so many bytes of its request is reported.
const SHORT: u64 = 256 << 20;

/// One share of a GPU; sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentShare {
    /// Index of its container and of the device in it.
    pub at: (usize, usize),
    pub container: String,
    pub request: u64,
    pub limit: u64,
    pub used: u64,
    /// Of that, the driver's own beyond what the limiter counts, which is not held against it.
    pub tolerated: u64,
    /// What a call within its request waits for.
    pub lacking: u64,
    /// It frees memory when it is notified.
    pub yields: bool,
    pub grace: Duration,
}

impl LentShare {
    /// What it borrows, without what the driver may take beyond the count. A share whose limit is its
    /// request, or unknown, borrows nothing.
    pub fn excess(&self) -> u64 {
        if self.is_borrower() {
            let held = self.used.saturating_sub(self.tolerated);
            held.saturating_sub(self.request)
        } else {
            0
        }
    }

    fn is_borrower(&self) -> bool {
        self.limit > self.request
    }

    /// What it must get.
    fn due(&self) -> u64 {
        self.lacking.min(self.request.saturating_sub(self.used))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuLending {
    /// Nothing beyond requests may be allocated now.
    pub called_back: bool,
    pub begins: bool,
    /// Milliseconds for which calls within a request may wait.
    pub max_wait_ms: u32,
    pub notify: Vec<usize>,
    pub end: Vec<usize>,
    /// Shares that from now on cannot get what they requested, because processes outside every share
    /// hold it, by index.
    pub short: Vec<usize>,
}

#[derive(Clone, Debug)]
struct CallBack {
    begun: Duration,
    /// When something was last lacking.
    lacking: Duration,
    notified: BTreeSet<String>,
    ended: BTreeMap<String, Duration>,
}

#[derive(Debug)]
pub struct Lending {
    grace: Grace,
    call_backs: BTreeMap<String, CallBack>,
    /// The shares that were short in the last sample: container, and index of the device in it.
    short: BTreeSet<(String, usize)>,
}

impl Lending {
    pub fn new(grace: Grace) -> Self {
        Self {
            grace,
            call_backs: BTreeMap::new(),
            short: BTreeSet::new(),
        }
    }

    /// Decides for each device of a sample with shares that have a limiter; `free` returns the bytes
    /// that are free on a device. Where that is unknown, nothing changes. `tolerance`: bytes that each
    /// process may use beyond what the limiter counts for it.
    pub fn evaluate(
        &mut self,
        sample: &NodeSample,
        evaluation: &Evaluation,
        tolerance: u64,
        free: impl Fn(&str) -> Option<u64>,
    ) -> Vec<(Vec<LentShare>, GpuLending)> {
        let all = shares(sample, evaluation, &self.grace, tolerance);
        self.call_backs.retain(|gpu, _| all.contains_key(gpu));
        let ids = sample.containers.ids();
        self.short.retain(|(id, _)| ids.contains(id.as_str()));
        let unmanaged = evaluation.unmanaged_memory();
        let decided = all.into_iter().filter_map(|(gpu, shares)| {
            let free = free(&gpu)?;
            let mut decision = self.decide(&gpu, &shares, free, sample.taken_at);
            let held = unmanaged.get(gpu.as_str()).copied().unwrap_or(0);
            decision.short = self.find_short(sample, &shares, free, held);
            Some((shares, decision))
        });
        decided.collect()
    }

    /// The shares that from now on cannot get what they requested, on a GPU that has `free` bytes and
    /// of which processes outside every share hold `unmanaged` bytes.
    fn find_short(
        &mut self,
        sample: &NodeSample,
        shares: &[LentShare],
        free: u64,
        unmanaged: u64,
    ) -> Vec<usize> {
        let lent: u64 = shares.iter().map(LentShare::excess).sum();
        let available = free.saturating_add(lent);
        let mut begun = Vec::new();
        for (index, share) in shares.iter().enumerate() {
            let (at, device) = share.at;
            let page = sample.page(at, device);
            // Host memory backs its request.
            let is_backed = page.guaranteed < page.request;
            let due = share.request.saturating_sub(share.used);
            let missing = due.saturating_sub(available).min(unmanaged);
            let key = (share.container.clone(), device);
            let least = if self.short.contains(&key) { 1 } else { SHORT };
            if is_backed || missing < least {
                self.short.remove(&key);
            } else if self.short.insert(key) {
                begun.push(index);
            }
        }
        begun
    }

    /// Decides for a GPU that has `free` bytes at `now` of a monotonic clock.
    fn decide(&mut self, gpu: &str, shares: &[LentShare], free: u64, now: Duration) -> GpuLending {
        let mut decision = GpuLending {
            max_wait_ms: NOTHING_LENT,
            ..GpuLending::default()
        };
        if !shares.iter().any(LentShare::is_borrower) {
            self.call_backs.remove(gpu);
            return decision;
        }
        let max_wait = (self.grace.longest() + BEYOND_GRACE).as_millis();
        decision.max_wait_ms = u32::try_from(max_wait).unwrap_or(u32::MAX);
        let wanted: u64 = shares.iter().map(LentShare::due).sum();
        // Nothing is due while the device has it free, whatever a container reports.
        let due = if free >= wanted.saturating_add(SLACK) {
            0
        } else {
            wanted
        };
        let is_lent = shares.iter().any(|share| share.excess() > 0);
        if due > 0 && is_lent && !self.call_backs.contains_key(gpu) {
            decision.begins = true;
            let begun = CallBack {
                begun: now,
                lacking: now,
                notified: BTreeSet::new(),
                ended: BTreeMap::new(),
            };
            self.call_backs.insert(gpu.to_owned(), begun);
        }
        let Some(call_back) = self.call_backs.get_mut(gpu) else {
            return decision;
        };
        if due > 0 {
            call_back.lacking = now;
        } else if now.saturating_sub(call_back.lacking) >= QUIET {
            self.call_backs.remove(gpu);
            return decision;
        }
        decision.called_back = true;
        if due > 0 {
            call_back.choose(shares, due.saturating_sub(free), now, &mut decision);
        }
        decision
    }
}

impl CallBack {
    /// Chooses whom to notify and whom to end, so that `missing` bytes become free; at least one byte is
    /// missing, also where the driver counts enough as free.
    fn choose(
        &mut self,
        shares: &[LentShare],
        missing: u64,
        now: Duration,
        decision: &mut GpuLending,
    ) {
        let is_ending = |ended: &BTreeMap<String, Duration>, share: &LentShare| {
            let then = ended.get(&share.container);
            then.is_some_and(|then| now.saturating_sub(*then) < ENDING)
        };
        // What the driver has still to release of those that were ended.
        let ending = shares.iter().filter(|share| is_ending(&self.ended, share));
        let mut coming: u64 = ending.map(LentShare::excess).sum();
        let mut borrowers: Vec<usize> = (0..shares.len())
            .filter(|index| shares[*index].excess() > 0)
            .collect();
        borrowers.sort_by_key(|index| std::cmp::Reverse(shares[*index].excess()));
        for index in borrowers {
            let share = &shares[index];
            if is_ending(&self.ended, share) {
                continue;
            }
            if share.yields && self.notified.insert(share.container.clone()) {
                decision.notify.push(index);
            }
            let is_over = now.saturating_sub(self.begun) >= share.grace;
            if is_over && coming < missing.max(1) {
                coming = coming.saturating_add(share.excess());
                decision.end.push(index);
                self.ended.insert(share.container.clone(), now);
            }
        }
    }
}

/// The shares of each device that have a limiter, by the device's UUID.
fn shares(
    sample: &NodeSample,
    evaluation: &Evaluation,
    grace: &Grace,
    tolerance: u64,
) -> BTreeMap<String, Vec<LentShare>> {
    let mut all: BTreeMap<String, Vec<LentShare>> = BTreeMap::new();
    for (at, container) in sample.containers.all.iter().enumerate() {
        if !container.limited {
            continue;
        }
        let reports = sample.counters_of(at).and_then(|read| read.as_ref().ok());
        let uses = evaluation.uses.get(at).map_or(&[][..], Vec::as_slice);
        for (device, found) in uses.iter().enumerate() {
            let lacking = reports.map(|(_, after)| after.device(device).lacking);
            let (bytes, written) = lacking.unwrap_or_default();
            let written = Duration::from_nanos(written);
            let age = sample.taken_at.saturating_sub(written);
            let lacking = if age <= REPORT_AGE { bytes } else { 0 };
            // Where the driver reports no sizes, only the tenant says it.
            let counted = found.tracked.saturating_sub(lacking).min(found.limit);
            let in_use = if found.is_measured() {
                found.measured
            } else {
                counted
            };
            let tolerance = tolerance.saturating_mul(found.processes).min(found.limit);
            let share = LentShare {
                at: (at, device),
                container: container.id.clone(),
                request: sample.page(at, device).request,
                limit: found.limit,
                used: in_use,
                tolerated: in_use.saturating_sub(counted).min(tolerance),
                lacking,
                yields: sample.yields.contains(&container.id),
                grace: grace.of(&container.namespace),
            };
            let device = sample.device_uuid(at, device).to_owned();
            all.entry(device).or_default().push(share);
        }
    }
    all
}

#[cfg(test)]
#[path = "lending_tests.rs"]
mod tests;

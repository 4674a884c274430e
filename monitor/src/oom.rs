//! The OOM killer: which process to kill when a container exceeds its memory limit, from the driver's
//! sizes of exactly that container's processes and from what the limiter counts for each of them. What
//! an honest process may have beyond the count is not held against it. Never after a single sample,
//! and never a second process while a killed one is still exiting. Where it may not kill, the same
//! judgement is reported.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_node_state::processes::ProcessIdentity;
use aliquot_region::counters::BLOCK;
use aliquot_region::host::SlotUsage;

/// Consecutive samples in which a process that was refused memory must be larger than it was then.
const MIN_SAMPLES: u32 = 2;
/// Time for which a container must be far above its limit.
const FAR_ABOVE: Duration = Duration::from_secs(10);
/// Far above the limit: by more than this, and by more than a tenth of the limit.
const MIN_EXCESS: u64 = 512 << 20;
/// Time after which a container that stays above its limit is reported again.
const REPORT_AGAIN: Duration = Duration::from_mins(5);
/// Samples after which a killed process that still exists is killed again: releasing tens of
/// gigabytes takes the driver seconds.
const KILL_RETRY: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomRule {
    pub limit: u64,
    /// Bytes that each process may use beyond what the limiter counts for it: the driver's own, such
    /// as code that it loads late. Their counts may be forged, so all together may use as much as the
    /// limit.
    pub tolerance: u64,
    /// Bytes of its processes that the driver reports twice, because they were imported from others.
    pub imported: u64,
    pub kill: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomVerdict {
    /// Bytes that all its processes use.
    pub used: u64,
    /// Kill this process, which grew after a refusal, or else grew last. `None`: report it to the pod,
    /// once each time that it exceeds its limit and every few minutes while it does.
    pub kill: Option<ProcessIdentity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    pub identity: ProcessIdentity,
    /// Bytes that it uses; `None` where the driver does not report them.
    pub bytes: Option<u64>,
    /// What the limiter counts for it; `None` for a process that bypasses the limiter.
    pub counted: Option<SlotUsage>,
    /// It is exiting, and releases its memory.
    pub exiting: bool,
}

impl ProcessMemory {
    /// Bytes beyond what the limiter counts for it, if it uses the limiter.
    fn beyond(&self) -> u64 {
        let both = self.bytes.zip(self.counted);
        both.map_or(0, |(bytes, counted)| bytes.saturating_sub(counted.used))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LimitedUse {
    /// Bytes that the limiter counts, as far as the driver does not report less.
    counted: u64,
    /// Bytes beyond those, without what an honest process may have.
    uncounted: u64,
}

impl LimitedUse {
    fn new(one: &ProcessMemory, tolerance: u64) -> Self {
        let (counted, uncounted) = match (one.bytes, one.counted) {
            (None, counted) => (counted.unwrap_or_default().used, 0),
            (Some(bytes), None) => (0, bytes),
            (Some(bytes), Some(counted)) => {
                let with_managed = bytes.saturating_add(counted.managed);
                let uncounted = one.beyond().saturating_sub(tolerance);
                (with_managed.min(counted.used), uncounted)
            }
        };
        Self { counted, uncounted }
    }

    fn sum(self) -> u64 {
        self.counted.saturating_add(self.uncounted)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ProcessGrowth {
    used: LimitedUse,
    is_measured: bool,
    /// The sample in which it last grew, and by how much.
    grew: (u64, u64),
    refused: u32,
    /// Bytes beyond the count when the limiter refused it memory, the least of all such times.
    uncounted_at_refusal: Option<u64>,
}

impl ProcessGrowth {
    fn grew_after_refusal(&self) -> bool {
        self.uncounted_at_refusal
            .is_some_and(|then| self.used.uncounted > then.saturating_add(BLOCK))
    }
}

#[derive(Clone, Debug, Default)]
pub struct OomWatch {
    sample: u64,
    /// Samples in a row in which the container was above its limit and a process grew after a
    /// refusal.
    growing: u32,
    /// Since when the container has been far above its limit.
    far_above: Option<Duration>,
    /// When the container was last reported, while it is above its limit.
    reported: Option<Duration>,
    processes: BTreeMap<ProcessIdentity, ProcessGrowth>,
    /// The process that was killed, and in which sample.
    killed: Option<(ProcessIdentity, u64)>,
    /// One was killed since the container was last within its limit: it had not the memory.
    has_killed: bool,
}

impl OomWatch {
    /// Adds one sample of the processes, taken at `now` of a monotonic clock, and returns what to do.
    pub fn update(
        &mut self,
        processes: &[ProcessMemory],
        rule: OomRule,
        now: Duration,
    ) -> Option<OomVerdict> {
        self.sample += 1;
        self.note(processes, rule);
        let each = self.processes.values().map(|one| one.used.sum());
        let used = each.fold(0_u64, u64::saturating_add);
        if rule.limit == 0 || used <= rule.limit {
            (self.growing, self.far_above, self.reported) = (0, None, None);
            self.has_killed = false;
            return None;
        }
        let waits_for_kill = |(_, then): (ProcessIdentity, u64)| self.sample < then + KILL_RETRY;
        if self.killed.is_some_and(waits_for_kill) {
            return None;
        }
        let identity = self.exceeding(used, rule.limit, now)?;
        if rule.kill {
            // It takes a moment to end, in which no other process may be killed for it.
            self.growing = 0;
            if !self.has_killed {
                self.far_above = None;
            }
            self.killed = Some((identity, self.sample));
            self.has_killed = true;
        } else {
            let is_recent = |then: Duration| now.saturating_sub(then) < REPORT_AGAIN;
            if self.reported.is_some_and(is_recent) {
                return None;
            }
            self.reported = Some(now);
        }
        Some(OomVerdict {
            used,
            kill: rule.kill.then_some(identity),
        })
    }

    /// The process to kill for a use above the limit, if it is time.
    fn exceeding(&mut self, used: u64, limit: u64, now: Duration) -> Option<ProcessIdentity> {
        if let Some((identity, _)) = self.killed {
            return Some(identity);
        }
        let growing = self.newest_grower(ProcessGrowth::grew_after_refusal);
        self.growing = growing.map_or(0, |_| self.growing + 1);
        let excess = (limit / 10).max(MIN_EXCESS);
        let is_far = used > limit.saturating_add(excess);
        let since = is_far.then(|| self.far_above.unwrap_or(now));
        self.far_above = since;
        let is_growing = self.growing >= MIN_SAMPLES;
        if is_growing && !self.has_killed {
            return growing;
        }
        let is_lasting = since.is_some_and(|since| now.saturating_sub(since) >= FAR_ABOVE);
        if !is_growing && !is_lasting {
            return None;
        }
        let uncounted = if self.has_killed {
            self.largest_uncounted()
        } else {
            self.newest_grower(|one| one.used.uncounted > 0)
        };
        uncounted.or_else(|| self.newest_grower(|one| one.used.sum() > 0))
    }

    /// Of the processes with memory that the limiter does not count, the one with the most.
    fn largest_uncounted(&self) -> Option<ProcessIdentity> {
        let all = self.processes.iter();
        let uncounted = all.filter(|(_, one)| one.is_measured && one.used.uncounted > 0);
        let largest = uncounted.max_by_key(|(identity, one)| (one.used.uncounted, identity.start));
        largest.map(|(identity, _)| *identity)
    }

    fn note(&mut self, processes: &[ProcessMemory], rule: OomRule) {
        let sample = self.sample;
        let living = processes.iter().filter(|one| !one.exiting);
        let lives =
            |identity: &ProcessIdentity| living.clone().any(|one| one.identity == *identity);
        self.processes.retain(|identity, _| lives(identity));
        self.killed = self.killed.filter(|(identity, _)| lives(identity));
        let (mut imported, mut tolerable) = (rule.imported, rule.limit);
        for one in living.clone() {
            let tolerance = rule.tolerance.min(tolerable);
            tolerable -= one.beyond().min(tolerance);
            let mut used = LimitedUse::new(one, tolerance);
            if one.counted.is_some() {
                let left = used.uncounted.saturating_sub(imported);
                imported -= used.uncounted - left;
                used.uncounted = left;
            }
            let refused = one.counted.map_or(0, |counted| counted.refused);
            let new = || ProcessGrowth {
                grew: (sample, 0),
                ..ProcessGrowth::default()
            };
            let known = self.processes.entry(one.identity).or_insert_with(new);
            let more = used.sum().saturating_sub(known.used.sum());
            if more > 0 {
                known.grew = (sample, more);
            }
            if refused != known.refused {
                let before = known.uncounted_at_refusal.unwrap_or(u64::MAX);
                known.uncounted_at_refusal = Some(used.uncounted.min(before));
            }
            known.refused = refused;
            known.used = used;
            known.is_measured = one.bytes.is_some();
        }
    }

    /// Of the processes whose size is known and for which `which` holds, the one that grew last; of
    /// several the one that grew most, then the youngest.
    fn newest_grower(&self, which: impl Fn(&ProcessGrowth) -> bool) -> Option<ProcessIdentity> {
        let all = self.processes.iter();
        let processes = all.filter(|(_, growth)| growth.is_measured && which(growth));
        let newest =
            processes.max_by_key(|(identity, growth)| (growth.grew, identity.start, identity.pid));
        newest.map(|(identity, _)| *identity)
    }
}

#[cfg(test)]
#[path = "oom_tests.rs"]
mod tests;

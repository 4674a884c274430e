//! The OOM killer: which process to kill when a container exceeds its memory limit, from the driver's
//! sizes of exactly that container's processes. Never after a single sample, and never a second
//! process while a killed one is still exiting.

use std::collections::BTreeMap;

use crate::processes::ProcessIdentity;

/// Consecutive samples above the limit before a process is killed.
const MIN_SAMPLES: u32 = 2;
/// Samples after which a killed process that still exists is killed again: releasing tens of
/// gigabytes takes the driver seconds.
const KILL_RETRY: u64 = 10;

/// The limit of a container on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomRule {
    /// Limit in bytes.
    pub limit: u64,
    /// Bytes above the limit for each process, at most its own size: what the driver allocates beyond
    /// what the limiter counts.
    pub tolerance: u64,
    /// Kill a process, not only report it.
    pub kill: bool,
}

/// What to do after a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomVerdict {
    /// Nothing.
    Within,
    /// Report it to the pod, once each time that it exceeds its limit.
    Report {
        /// Bytes used.
        used: u64,
    },
    /// Kill this process.
    Kill {
        /// Bytes used by all processes.
        used: u64,
        /// The process that grew last.
        identity: ProcessIdentity,
    },
}

/// One process of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Its identity.
    pub identity: ProcessIdentity,
    /// Bytes that it uses.
    pub bytes: u64,
    /// It is exiting, and releases its memory.
    pub exiting: bool,
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    bytes: u64,
    /// The sample in which it last grew, and by how much.
    grew: (u64, u64),
}

/// The state of one container on one device.
#[derive(Clone, Debug, Default)]
pub struct OomWatch {
    sample: u64,
    above: u32,
    reported: bool,
    processes: BTreeMap<ProcessIdentity, Growth>,
    /// The process that was killed, and in which sample.
    killed: Option<(ProcessIdentity, u64)>,
}

impl OomWatch {
    /// Adds one sample of the processes and returns what to do.
    pub fn update(&mut self, processes: &[ProcessMemory], rule: OomRule) -> OomVerdict {
        self.sample += 1;
        self.note(processes);
        let living = || self.processes.values().map(|one| one.bytes);
        let used = living().fold(0_u64, u64::saturating_add);
        let beyond = living().map(|bytes| bytes.min(rule.tolerance));
        let allowed = beyond.fold(rule.limit, u64::saturating_add);
        if rule.limit == 0 || used <= allowed {
            self.above = 0;
            self.reported = false;
            return OomVerdict::Within;
        }
        let killed = self.killed.map(|(identity, _)| identity);
        if self
            .killed
            .is_some_and(|(_, then)| self.sample < then + KILL_RETRY)
        {
            return OomVerdict::Within;
        }
        self.above += 1;
        if self.above < MIN_SAMPLES {
            return OomVerdict::Within;
        }
        match killed.or_else(|| self.newest_grower()) {
            Some(identity) if rule.kill => {
                // It takes a moment to end, in which no other process may be killed for it.
                self.above = 0;
                self.killed = Some((identity, self.sample));
                OomVerdict::Kill { used, identity }
            }
            _ if self.reported => OomVerdict::Within,
            _ => {
                self.reported = true;
                OomVerdict::Report { used }
            }
        }
    }

    fn note(&mut self, processes: &[ProcessMemory]) {
        let sample = self.sample;
        let living = processes.iter().filter(|one| !one.exiting);
        let lives =
            |identity: &ProcessIdentity| living.clone().any(|one| one.identity == *identity);
        self.processes.retain(|identity, _| lives(identity));
        self.killed = self.killed.filter(|(identity, _)| lives(identity));
        for one in living.clone() {
            let known = self.processes.entry(one.identity).or_insert(Growth {
                bytes: 0,
                grew: (sample, 0),
            });
            if let Some(more) = one.bytes.checked_sub(known.bytes).filter(|more| *more > 0) {
                known.grew = (sample, more);
            }
            known.bytes = one.bytes;
        }
    }

    /// The process that grew last; of several the one that grew most, then the youngest.
    fn newest_grower(&self) -> Option<ProcessIdentity> {
        let all = self.processes.iter();
        let processes = all.filter(|(_, growth)| growth.bytes > 0);
        let newest =
            processes.max_by_key(|(identity, growth)| (growth.grew, identity.start, identity.pid));
        newest.map(|(identity, _)| *identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: OomRule = OomRule {
        limit: 100,
        tolerance: 5,
        kill: true,
    };

    fn identity(pid: u32) -> ProcessIdentity {
        ProcessIdentity {
            pid,
            start: u64::from(pid),
        }
    }

    fn process(identity: ProcessIdentity, bytes: u64) -> ProcessMemory {
        ProcessMemory {
            identity,
            bytes,
            exiting: false,
        }
    }

    /// Checks the verdicts after each sample; a sample has the bytes of processes 1, 2, …, 0 for one
    /// that does not exist.
    fn check(what: &str, rule: OomRule, samples: &[&[u64]], expected: &[OomVerdict]) {
        let mut watch = OomWatch::default();
        let found: Vec<_> = samples
            .iter()
            .map(|sample| {
                let all = (1..).zip(sample.iter()).filter(|(_, bytes)| **bytes > 0);
                let processes: Vec<_> = all
                    .map(|(pid, bytes)| process(identity(pid), *bytes))
                    .collect();
                watch.update(&processes, rule)
            })
            .collect();
        assert_eq!(found, expected, "{what}");
    }

    fn kill(used: u64, pid: u32) -> OomVerdict {
        OomVerdict::Kill {
            used,
            identity: identity(pid),
        }
    }

    #[test]
    fn kills_newest_grower_after_two_samples_above_limit() {
        use OomVerdict::Within;
        check("within", RULE, &[&[100], &[105], &[105]], &[Within; 3]);
        check("one sample", RULE, &[&[106], &[105], &[106]], &[Within; 3]);
        check(
            "alone",
            RULE,
            &[&[50], &[106], &[106]],
            &[Within, Within, kill(106, 1)],
        );
        check(
            "the one that grew",
            RULE,
            &[&[60, 40], &[90, 40], &[90, 40]],
            &[Within, Within, kill(130, 1)],
        );
        check(
            "not the old and large",
            RULE,
            &[&[90], &[90, 30], &[90, 30]],
            &[Within, Within, kill(120, 2)],
        );
        check(
            "of two the one that grew more",
            RULE,
            &[&[50, 50], &[60, 90], &[60, 90]],
            &[Within, Within, kill(150, 2)],
        );
        check(
            "of equals the youngest",
            RULE,
            &[&[60, 60], &[60, 60]],
            &[Within, kill(120, 2)],
        );
        check(
            "one at a time, and the next only after two more samples",
            RULE,
            &[&[90, 90, 90], &[90, 90, 90], &[90, 90], &[90, 90], &[90]],
            &[Within, kill(270, 3), Within, kill(180, 2), Within],
        );
        check(
            "no limit",
            OomRule { limit: 0, ..RULE },
            &[&[500], &[500]],
            &[Within; 2],
        );
    }

    #[test]
    fn limits_tolerance_by_size_of_each_process() {
        let mut sample = vec![112];
        sample.extend([1; 5]);
        let expected = [OomVerdict::Within, kill(117, 1)];
        // 100 and 5 for the large one, 1 for each small one: 110 are allowed.
        check("small ones", RULE, &[&sample, &sample], &expected);
        sample[0] = 105;
        check(
            "within",
            RULE,
            &[&sample, &sample],
            &[OomVerdict::Within; 2],
        );
    }

    #[test]
    fn reports_once_per_excess_without_oom_killer() {
        use OomVerdict::{Report, Within};
        let rule = OomRule {
            kill: false,
            ..RULE
        };
        check(
            "reported",
            rule,
            &[&[120], &[120], &[120], &[90], &[120], &[121]],
            &[
                Within,
                Report { used: 120 },
                Within,
                Within,
                Within,
                Report { used: 121 },
            ],
        );
    }

    #[test]
    fn distinguishes_later_process_with_same_pid() {
        let mut watch = OomWatch::default();
        let (old, young) = (identity(1), ProcessIdentity { pid: 1, start: 9 });
        assert_eq!(watch.update(&[process(old, 120)], RULE), OomVerdict::Within);
        let found = watch.update(&[process(young, 120)], RULE);
        assert_eq!(
            found,
            OomVerdict::Kill {
                used: 120,
                identity: young
            }
        );
    }

    #[test]
    fn kills_no_other_process_while_first_releases_memory() {
        let mut watch = OomWatch::default();
        // The second grows a little while the first, which was killed, still exists.
        let kills = (1..=30).filter_map(|sample| {
            let small = if sample > 2 { 8 + sample } else { 10 };
            let both = [process(identity(1), 120), process(identity(2), small)];
            match watch.update(&both, RULE) {
                OomVerdict::Kill { identity, .. } => Some((sample, identity.pid)),
                _ => None,
            }
        });
        let kills: Vec<(u64, u32)> = kills.collect();
        assert_eq!(kills, [(2, 1), (13, 1), (24, 1)], "only the first, again");
    }

    #[test]
    fn ignores_memory_of_exiting_process() {
        let mut watch = OomWatch::default();
        let old = ProcessMemory {
            exiting: true,
            ..process(identity(1), 90)
        };
        for _ in 0..10 {
            let verdict = watch.update(&[old, process(identity(2), 90)], RULE);
            assert_eq!(verdict, OomVerdict::Within);
        }
    }
}

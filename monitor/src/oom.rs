//! Who is ended when a container holds more than its limit.
//!
//! Fed by: the driver's bytes of each process of exactly that container. Must not: know a process
//! from a counters file; decide by one look.

use std::collections::BTreeMap;

use crate::processes::Life;

/// Looks in a row above the limit before somebody is ended.
const LOOKS: u32 = 2;

/// What holds for a device of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Bytes that it may hold.
    pub limit: u64,
    /// Bytes beyond that for each process: what the driver takes beside what the library was told.
    pub tolerance: u64,
    /// Somebody is ended, not only told.
    pub kill: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// Tell the pod, once for each time that it passes its limit.
    Tell {
        /// Bytes held.
        held: u64,
    },
    /// End this one.
    Kill {
        /// Bytes held together.
        held: u64,
        /// The newest grower.
        life: Life,
    },
}

#[derive(Clone, Copy, Debug)]
struct Growth {
    bytes: u64,
    /// The look in which it last grew, and by how much.
    grew: (u64, u64),
}

/// One device of one container, from look to look.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    look: u64,
    above: u32,
    told: bool,
    processes: BTreeMap<Life, Growth>,
}

impl Watched {
    /// What follows from one more look at the processes and their bytes.
    pub fn after(&mut self, processes: &[(Life, u64)], rule: Rule) -> Verdict {
        self.look += 1;
        self.note(processes);
        let held = processes
            .iter()
            .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let number = u64::try_from(processes.len()).unwrap_or(u64::MAX);
        let allowed = rule
            .limit
            .saturating_add(rule.tolerance.saturating_mul(number));
        if rule.limit == 0 || held <= allowed {
            self.above = 0;
            self.told = false;
            return Verdict::Fine;
        }
        self.above += 1;
        if self.above < LOOKS {
            return Verdict::Fine;
        }
        match self.newest_grower() {
            Some(life) if rule.kill => {
                // Its end takes a moment, in which nobody else is to go for it.
                self.above = 0;
                Verdict::Kill { held, life }
            }
            _ if self.told => Verdict::Fine,
            _ => {
                self.told = true;
                Verdict::Tell { held }
            }
        }
    }

    fn note(&mut self, processes: &[(Life, u64)]) {
        let look = self.look;
        self.processes
            .retain(|life, _| processes.iter().any(|(one, _)| one == life));
        for (life, bytes) in processes {
            let known = self.processes.entry(*life).or_insert(Growth {
                bytes: 0,
                grew: (look, 0),
            });
            if let Some(more) = bytes.checked_sub(known.bytes).filter(|more| *more > 0) {
                known.grew = (look, more);
            }
            known.bytes = *bytes;
        }
    }

    /// Who grew last; of several the one that grew most, then the youngest.
    fn newest_grower(&self) -> Option<Life> {
        let all = self.processes.iter();
        let holders = all.filter(|(_, growth)| growth.bytes > 0);
        let newest = holders.max_by_key(|(life, growth)| (growth.grew, life.start, life.pid));
        newest.map(|(life, _)| *life)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        limit: 100,
        tolerance: 5,
        kill: true,
    };

    fn life(pid: u32) -> Life {
        Life {
            pid,
            start: u64::from(pid),
        }
    }

    /// The verdicts after each look; a look gives bytes to processes 1, 2, …, 0 for one that is
    /// not there.
    fn check(what: &str, rule: Rule, looks: &[&[u64]], expected: &[Verdict]) {
        let mut watched = Watched::default();
        let found: Vec<_> = looks
            .iter()
            .map(|look| {
                let all = (1..).zip(look.iter()).filter(|(_, bytes)| **bytes > 0);
                let processes: Vec<_> = all.map(|(pid, bytes)| (life(pid), *bytes)).collect();
                watched.after(&processes, rule)
            })
            .collect();
        assert_eq!(found, expected, "{what}");
    }

    fn kill(held: u64, pid: u32) -> Verdict {
        Verdict::Kill {
            held,
            life: life(pid),
        }
    }

    #[test]
    fn the_newest_grower_goes_after_two_looks_above_the_limit() {
        use Verdict::Fine;
        check("within", RULE, &[&[100], &[105], &[105]], &[Fine; 3]);
        check("one look", RULE, &[&[106], &[105], &[106]], &[Fine; 3]);
        check(
            "alone",
            RULE,
            &[&[50], &[106], &[106]],
            &[Fine, Fine, kill(106, 1)],
        );
        check(
            "the one that grew",
            RULE,
            &[&[60, 40], &[90, 40], &[90, 40]],
            &[Fine, Fine, kill(130, 1)],
        );
        check(
            "not the old and large",
            RULE,
            &[&[90], &[90, 30], &[90, 30]],
            &[Fine, Fine, kill(120, 2)],
        );
        check(
            "of two the one that grew more",
            RULE,
            &[&[50, 50], &[60, 90], &[60, 90]],
            &[Fine, Fine, kill(150, 2)],
        );
        check(
            "of equals the youngest",
            RULE,
            &[&[60, 60], &[60, 60]],
            &[Fine, kill(120, 2)],
        );
        check(
            "one at a time, and the next only after two more looks",
            RULE,
            &[&[90, 90, 90], &[90, 90, 90], &[90, 90], &[90, 90], &[90]],
            &[Fine, kill(270, 3), Fine, kill(180, 2), Fine],
        );
        check(
            "no limit",
            Rule { limit: 0, ..RULE },
            &[&[500], &[500]],
            &[Fine; 2],
        );
    }

    #[test]
    fn without_the_killer_it_is_told_once_each_time() {
        use Verdict::{Fine, Tell};
        let rule = Rule {
            kill: false,
            ..RULE
        };
        check(
            "told",
            rule,
            &[&[120], &[120], &[120], &[90], &[120], &[121]],
            &[
                Fine,
                Tell { held: 120 },
                Fine,
                Fine,
                Fine,
                Tell { held: 121 },
            ],
        );
    }

    #[test]
    fn a_later_process_with_the_same_id_is_another() {
        let mut watched = Watched::default();
        let (old, young) = (life(1), Life { pid: 1, start: 9 });
        assert_eq!(watched.after(&[(old, 120)], RULE), Verdict::Fine);
        let found = watched.after(&[(young, 120)], RULE);
        assert_eq!(
            found,
            Verdict::Kill {
                held: 120,
                life: young
            }
        );
    }
}

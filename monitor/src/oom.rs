//! Who is ended when a container holds more than its limit.
//!
//! Fed by: the driver's bytes of each process of exactly that container. Must not: know a process
//! from a counters file; decide by one look; end another while one that was ended still goes.

use std::collections::BTreeMap;

use crate::processes::Life;

/// Looks in a row above the limit before somebody is ended.
const LOOKS: u32 = 2;
/// Looks until one that was ended, and still is there, is ended again: to give back tens of
/// gigabytes takes the driver seconds.
const AGAIN: u64 = 10;

/// What holds for a device of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Bytes that it may hold.
    pub limit: u64,
    /// Bytes beyond that for each process, but no more than it holds: what the driver takes beside
    /// what the library was told.
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

/// One process of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Itself.
    pub life: Life,
    /// Bytes that it holds.
    pub bytes: u64,
    /// It is on its way out, and what it holds with it.
    pub going: bool,
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
    /// Who was ended, and in which look.
    ended: Option<(Life, u64)>,
}

impl Watched {
    /// What follows from one more look at the processes and their bytes.
    pub fn after(&mut self, holders: &[Holder], rule: Rule) -> Verdict {
        self.look += 1;
        self.note(holders);
        let living = || self.processes.values().map(|one| one.bytes);
        let held = living().fold(0_u64, u64::saturating_add);
        let beyond = living().map(|bytes| bytes.min(rule.tolerance));
        let allowed = beyond.fold(rule.limit, u64::saturating_add);
        if rule.limit == 0 || held <= allowed {
            self.above = 0;
            self.told = false;
            return Verdict::Fine;
        }
        let ended = self.ended.map(|(life, _)| life);
        if self.ended.is_some_and(|(_, then)| self.look < then + AGAIN) {
            return Verdict::Fine;
        }
        self.above += 1;
        if self.above < LOOKS {
            return Verdict::Fine;
        }
        match ended.or_else(|| self.newest_grower()) {
            Some(life) if rule.kill => {
                // Its end takes a moment, in which nobody else is to go for it.
                self.above = 0;
                self.ended = Some((life, self.look));
                Verdict::Kill { held, life }
            }
            _ if self.told => Verdict::Fine,
            _ => {
                self.told = true;
                Verdict::Tell { held }
            }
        }
    }

    fn note(&mut self, holders: &[Holder]) {
        let look = self.look;
        let living = holders.iter().filter(|one| !one.going);
        let lives = |life: &Life| living.clone().any(|one| one.life == *life);
        self.processes.retain(|life, _| lives(life));
        self.ended = self.ended.filter(|(life, _)| lives(life));
        for one in living.clone() {
            let known = self.processes.entry(one.life).or_insert(Growth {
                bytes: 0,
                grew: (look, 0),
            });
            if let Some(more) = one.bytes.checked_sub(known.bytes).filter(|more| *more > 0) {
                known.grew = (look, more);
            }
            known.bytes = one.bytes;
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

    fn holder(life: Life, bytes: u64) -> Holder {
        Holder {
            life,
            bytes,
            going: false,
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
                let holders: Vec<_> = all.map(|(pid, bytes)| holder(life(pid), *bytes)).collect();
                watched.after(&holders, rule)
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
    fn whoever_had_many_small_processes_was_never_above_its_limit() {
        let mut look = vec![112];
        look.extend([1; 5]);
        let expected = [Verdict::Fine, kill(117, 1)];
        // 100 and 5 for the large one, 1 for each small one: 110 are allowed.
        check("small ones", RULE, &[&look, &look], &expected);
        look[0] = 105;
        check("within", RULE, &[&look, &look], &[Verdict::Fine; 2]);
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
        assert_eq!(watched.after(&[holder(old, 120)], RULE), Verdict::Fine);
        let found = watched.after(&[holder(young, 120)], RULE);
        assert_eq!(
            found,
            Verdict::Kill {
                held: 120,
                life: young
            }
        );
    }

    #[test]
    fn an_innocent_one_was_ended_while_the_first_still_gave_its_memory_back() {
        let mut watched = Watched::default();
        // The second grows a little while the first, which was ended, is still there.
        let ends = (1..=30).filter_map(|look| {
            let small = if look > 2 { 8 + look } else { 10 };
            let both = [holder(life(1), 120), holder(life(2), small)];
            match watched.after(&both, RULE) {
                Verdict::Kill { life, .. } => Some((look, life.pid)),
                _ => None,
            }
        });
        let ends: Vec<(u64, u32)> = ends.collect();
        assert_eq!(ends, [(2, 1), (13, 1), (24, 1)], "only the first, again");
    }

    #[test]
    fn one_that_goes_by_itself_costs_nobody_its_life() {
        let mut watched = Watched::default();
        let old = Holder {
            going: true,
            ..holder(life(1), 90)
        };
        for _ in 0..10 {
            let verdict = watched.after(&[old, holder(life(2), 90)], RULE);
            assert_eq!(verdict, Verdict::Fine);
        }
    }
}

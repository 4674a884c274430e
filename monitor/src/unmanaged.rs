//! Processes on cards that no share accounts for: who is told, who is ended, whose pod goes.
//!
//! Fed by: owners of processes, look by look. Must not: act on one look, for a process that begins
//! has its card a moment before its slot, or end what is not in a pod.

use std::collections::BTreeMap;

use crate::attribute::Reason;
use crate::processes::Life;
use crate::settings::OnUnmanaged;

/// Looks in a row before it is believed.
const LOOKS: u32 = 2;
/// Looks between two tries to end the same process.
const AGAIN: u32 = 10;

/// A process on a card and why it is nobody's.
pub type Stray = (String, Life);

/// What to do about one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Tell it; only once.
    Tell,
    /// End it.
    Kill,
    /// Evict its pod.
    Evict,
}

/// All of them, from look to look.
#[derive(Clone, Debug, Default)]
pub struct Strays(BTreeMap<Stray, (Reason, u32)>);

impl Strays {
    /// What follows from one more look. `spared` says whose are only reported.
    pub fn after(
        &mut self,
        seen: &[(Stray, Reason)],
        policy: OnUnmanaged,
        spared: impl Fn(&Stray) -> bool,
    ) -> Vec<(Stray, Reason, Deed)> {
        let mut next = BTreeMap::new();
        let mut deeds = Vec::new();
        for (stray, reason) in seen {
            let before = self.0.get(stray).filter(|(then, _)| then == reason);
            let looks = before.map_or(0, |(_, looks)| *looks) + 1;
            next.insert(stray.clone(), (*reason, looks));
            let Some(since) = looks.checked_sub(LOOKS) else {
                continue;
            };
            if since == 0 {
                deeds.push((stray.clone(), *reason, Deed::Tell));
            }
            let deed = match policy {
                OnUnmanaged::Report => continue,
                OnUnmanaged::Kill => Deed::Kill,
                OnUnmanaged::Evict => Deed::Evict,
            };
            if reason.is_ended() && since % AGAIN == 0 && !spared(stray) {
                deeds.push((stray.clone(), *reason, deed));
            }
        }
        self.0 = next;
        deeds
    }

    /// Those that are believed.
    pub fn believed(&self) -> impl Iterator<Item = (&Stray, Reason)> {
        let all = self.0.iter().filter(|(_, (_, looks))| *looks >= LOOKS);
        all.map(|(stray, (reason, _))| (stray, *reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stray(pid: u32) -> Stray {
        ("GPU-a".to_owned(), Life { pid, start: 1 })
    }

    /// Deeds after each look, each of which sees these processes.
    fn check(policy: OnUnmanaged, looks: &[&[(u32, Reason)]], expected: &[&[(u32, Deed)]]) {
        let mut strays = Strays::default();
        for (seen, expected) in looks.iter().zip(expected) {
            let seen: Vec<_> = seen.iter().map(|(pid, why)| (stray(*pid), *why)).collect();
            let deeds = strays.after(&seen, policy, |(_, life)| life.pid == 9);
            let found: Vec<_> = deeds
                .iter()
                .map(|((_, life), _, deed)| (life.pid, *deed))
                .collect();
            assert_eq!(found, *expected, "{policy:?}");
        }
    }

    #[test]
    fn a_process_is_told_at_the_second_look_and_ended_where_that_is_wanted() {
        use Deed::{Evict, Kill, Tell};
        use OnUnmanaged as Policy;
        let one: &[(u32, Reason)] = &[(7, Reason::NoLibrary)];
        check(Policy::Report, &[one, one, one], &[&[], &[(7, Tell)], &[]]);
        check(
            Policy::Kill,
            &[one, one, one],
            &[&[], &[(7, Tell), (7, Kill)], &[]],
        );
        check(Policy::Evict, &[one, one], &[&[], &[(7, Tell), (7, Evict)]]);
        check(Policy::Kill, &[one, &[], one], &[&[], &[], &[]]);
    }

    #[test]
    fn what_is_not_in_a_pod_of_ours_to_end_is_only_told() {
        use Deed::Tell;
        let spared: [&[(u32, Reason)]; 5] = [
            &[(7, Reason::Host)],
            &[(7, Reason::Foreign)],
            &[(7, Reason::LostShare)],
            &[(7, Reason::NoContainer)],
            &[(9, Reason::NoShare)],
        ];
        for one in spared {
            let told: &[(u32, Deed)] = &[(one[0].0, Tell)];
            check(OnUnmanaged::Kill, &[one, one, one], &[&[], told, &[]]);
        }
    }

    #[test]
    fn one_that_outlives_its_end_is_ended_again_after_a_while() {
        let mut strays = Strays::default();
        let seen = [(stray(7), Reason::NoShare)];
        let kills = (0..24).filter(|_| {
            let deeds = strays.after(&seen, OnUnmanaged::Kill, |_| false);
            deeds.iter().any(|(.., deed)| *deed == Deed::Kill)
        });
        assert_eq!(kills.count(), 3);
        assert_eq!(strays.believed().count(), 1);
    }
}

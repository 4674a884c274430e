//! Unmanaged processes: which to report, to kill, or to evict the pod of. Never after a single
//! sample: a process that starts has its GPU open a moment before it has its process slot.

use std::collections::BTreeMap;

use aliquot_node_state::processes::ProcessIdentity;

use crate::attribution::UnmanagedReason;
use crate::settings::OnUnmanaged;

/// Consecutive samples before an action.
const MIN_SAMPLES: u32 = 2;
/// Samples between two attempts to kill the same process.
const RETRY: u32 = 10;

/// A GPU and a process on it.
pub type ProcessKey = (String, ProcessIdentity);

/// What to do about an unmanaged process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmanagedAction {
    /// Report it, once.
    Report,
    /// Kill it.
    Kill,
    /// Evict its pod.
    Evict,
}

/// The unmanaged processes, with the reason and the number of consecutive samples.
#[derive(Clone, Debug, Default)]
pub struct UnmanagedTracker(BTreeMap<ProcessKey, (UnmanagedReason, u32)>);

impl UnmanagedTracker {
    /// Adds one sample and returns the actions to take. Processes that `exempt` selects are only
    /// reported.
    pub fn update(
        &mut self,
        seen: &[(ProcessKey, UnmanagedReason)],
        policy: OnUnmanaged,
        exempt: impl Fn(&ProcessKey) -> bool,
    ) -> Vec<(ProcessKey, UnmanagedReason, UnmanagedAction)> {
        let mut next = BTreeMap::new();
        let mut actions = Vec::new();
        for (process, reason) in seen {
            let before = self.0.get(process).filter(|(then, _)| then == reason);
            let samples = before.map_or(0, |(_, samples)| *samples) + 1;
            next.insert(process.clone(), (*reason, samples));
            let Some(since) = samples.checked_sub(MIN_SAMPLES) else {
                continue;
            };
            if since == 0 {
                actions.push((process.clone(), *reason, UnmanagedAction::Report));
            }
            let action = match policy {
                OnUnmanaged::Report => continue,
                OnUnmanaged::Kill => UnmanagedAction::Kill,
                OnUnmanaged::Evict => UnmanagedAction::Evict,
            };
            if reason.may_be_killed() && since % RETRY == 0 && !exempt(process) {
                actions.push((process.clone(), *reason, action));
            }
        }
        self.0 = next;
        actions
    }

    /// The processes seen in enough consecutive samples.
    pub fn confirmed(&self) -> impl Iterator<Item = (&ProcessKey, UnmanagedReason)> {
        let all = self
            .0
            .iter()
            .filter(|(_, (_, samples))| *samples >= MIN_SAMPLES);
        all.map(|(process, (reason, _))| (process, *reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ProcessKey {
        ("GPU-a".to_owned(), ProcessIdentity { pid, start: 1 })
    }

    /// Checks the actions after each sample, each of which contains these processes.
    fn check(
        policy: OnUnmanaged,
        samples: &[&[(u32, UnmanagedReason)]],
        expected: &[&[(u32, UnmanagedAction)]],
    ) {
        let mut tracker = UnmanagedTracker::default();
        for (seen, expected) in samples.iter().zip(expected) {
            let seen: Vec<_> = seen
                .iter()
                .map(|(pid, why)| (process(*pid), *why))
                .collect();
            let actions = tracker.update(&seen, policy, |(_, identity)| identity.pid == 9);
            let found: Vec<_> = actions
                .iter()
                .map(|((_, identity), _, action)| (identity.pid, *action))
                .collect();
            assert_eq!(found, *expected, "{policy:?}");
        }
    }

    #[test]
    fn reports_in_second_sample_and_acts_by_policy() {
        use OnUnmanaged as Policy;
        use UnmanagedAction::{Evict, Kill, Report};
        let one: &[(u32, UnmanagedReason)] = &[(7, UnmanagedReason::NoLimiter)];
        let then = |actions: &[UnmanagedAction], policy| {
            let actions: Vec<_> = actions.iter().map(|action| (7, *action)).collect();
            check(policy, &[one, one, one], &[&[], &actions, &[]]);
        };
        then(&[Report], Policy::Report);
        then(&[Report, Kill], Policy::Kill);
        then(&[Report, Evict], Policy::Evict);
        check(Policy::Kill, &[one, &[], one], &[&[], &[], &[]]);
    }

    #[test]
    fn only_reports_exempt_processes() {
        use UnmanagedAction::Report;
        let exempt: [&[(u32, UnmanagedReason)]; 5] = [
            &[(7, UnmanagedReason::Host)],
            &[(7, UnmanagedReason::Foreign)],
            &[(7, UnmanagedReason::LostShare)],
            &[(7, UnmanagedReason::NoContainer)],
            &[(9, UnmanagedReason::NoShare)],
        ];
        for one in exempt {
            let reported: &[(u32, UnmanagedAction)] = &[(one[0].0, Report)];
            check(OnUnmanaged::Kill, &[one, one, one], &[&[], reported, &[]]);
        }
    }

    #[test]
    fn retries_kill_of_surviving_process() {
        let mut tracker = UnmanagedTracker::default();
        let seen = [(process(7), UnmanagedReason::NoShare)];
        let kills = (0..24).filter(|_| {
            let actions = tracker.update(&seen, OnUnmanaged::Kill, |_| false);
            actions
                .iter()
                .any(|(.., action)| *action == UnmanagedAction::Kill)
        });
        assert_eq!(kills.count(), 3);
        assert_eq!(tracker.confirmed().count(), 1);
    }
}

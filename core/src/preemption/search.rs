//! The fewest pods of one node whose eviction lets a pod fit.
//!
//!
//! Sets of devices are tried one after the other, sets of as few pods as possible first,
//! and within a size the first in the order of eviction. That is exact within a number of
//! steps; when they run out, victims are restored one by one (as kube-scheduler does). Only
//! [`crate::fit`] decides what fits.

use super::trial::{EvictionAttempt, MAX_DEVICES, Trial, bit, places};
use crate::node::NodeState;
use crate::preemption::{Occupant, PreemptionQuery};

/// Evaluations for one node, and for all nodes of a plan: about a second.
const STEPS: u64 = 40_000;
pub(super) const STEPS_IN_ALL: u64 = 1_000_000;
/// Sets of devices tried; with more, all devices form one set.
const MAX_DEVICE_SETS: usize = 512;

/// The search on one node.
pub(super) struct VictimSearch<'a> {
    trial: Trial<'a>,
    /// The least and the most devices that the preemptor needs.
    devices: (usize, usize),
    /// Only one container has a share: then every device of a set is needed.
    single: bool,
    left: &'a mut u64,
    best: Option<Vec<usize>>,
}

impl<'a> VictimSearch<'a> {
    /// A search among `low`, on a node that is `base` without them.
    pub(super) fn new(
        query: &'a PreemptionQuery<'a>,
        base: NodeState,
        low: &[&Occupant],
        left: &'a mut u64,
    ) -> Self {
        let containers = query.demand.containers.iter();
        let same_device = query.demand.rules.same_device;
        let counts: Vec<usize> = containers
            .flat_map(|container| &container.requests)
            .map(|request| if same_device { 1 } else { request.count })
            .map(|devices| usize::try_from(devices).unwrap_or(usize::MAX))
            .collect();
        // Several instances may be on one GPU.
        let instances = query.demand.requests_mig_instances();
        let sum = counts
            .iter()
            .fold(0, |sum: usize, count| sum.saturating_add(*count));
        let most = counts.iter().copied().max().unwrap_or(0);
        let most = if instances { 1 } else { most };
        Self {
            devices: (most.max(1), sum.min(base.devices.len())),
            single: counts.len() == 1 && !instances,
            trial: Trial::new(query, base, low, STEPS.min(*left)),
            left,
            best: None,
        }
    }

    /// The cheapest victims, at most this many: their indices, ascending.
    pub(super) fn least(mut self, most: usize) -> Option<Vec<usize>> {
        let before = self.trial.steps;
        let sets: Vec<(u64, usize)> = self
            .device_sets()
            .into_iter()
            .filter_map(|devices| Some((devices, self.needed(devices)?)))
            .collect();
        let largest = most.min(self.trial.pods.len());
        'sizes: for size in 1..=largest {
            for &(devices, needed) in &sets {
                if needed <= size {
                    let mut attempt = self.trial.empty_attempt(devices);
                    self.descend(&mut attempt, size);
                }
                if self.trial.steps == 0 {
                    break 'sizes;
                }
            }
            if self.best.is_some() {
                break;
            }
        }
        let exhausted = self.trial.steps == 0;
        *self.left -= before.min(*self.left) - self.trial.steps.min(*self.left);
        if exhausted {
            for (devices, _) in sets {
                self.restore(devices);
            }
        }
        self.best.take().filter(|set| set.len() <= most)
    }

    /// Sets of devices that could serve, small ones first.
    fn device_sets(&self) -> Vec<u64> {
        let all = self.trial.devices();
        if all > MAX_DEVICES {
            return vec![u64::MAX];
        }
        let mut sets = Vec::new();
        for size in self.devices.0..=self.devices.1 {
            combinations(all, size, &mut sets);
            if sets.len() > MAX_DEVICE_SETS {
                return vec![u64::MAX];
            }
        }
        sets
    }

    /// A lower bound for the number of victims on these devices; `None` if not even all
    /// suffice.
    fn needed(&mut self, devices: u64) -> Option<usize> {
        let attempt = self.trial.empty_attempt(devices);
        let touching: Vec<usize> = (0..self.trial.pods.len())
            .filter(|&pod| self.trial.touches(pod, devices))
            .collect();
        let everybody = EvictionAttempt {
            gone: touching,
            ..self.trial.empty_attempt(devices)
        };
        if !self.trial.fits(&everybody) {
            return None;
        }
        if !self.exact(devices) {
            return Some(1);
        }
        let each = places(devices, self.trial.devices());
        let needs = each.map(|device| self.trial.needed_on(device, &attempt));
        Some(needs.max().unwrap_or(1).max(1))
    }

    /// Whether the preemptor needs every one of these devices.
    fn exact(&self, devices: u64) -> bool {
        self.single && devices != u64::MAX
    }

    /// Tries victims up to `size`, in the order of eviction.
    fn descend(&mut self, attempt: &mut EvictionAttempt, size: usize) {
        if self.trial.steps == 0 || self.cannot_improve(attempt) {
            return;
        }
        let exact = self.exact(attempt.devices);
        let each = places(attempt.devices, self.trial.devices());
        let full = each
            .filter(|_| exact)
            .find(|&device| !self.trial.serves(device, attempt));
        let left = size - attempt.gone.len();
        if full.is_none() && (exact || left == 0) && self.trial.fits(attempt) {
            return self.record_best(attempt);
        }
        if left == 0 || full.is_some_and(|device| self.trial.needed_on(device, attempt) > left) {
            return;
        }
        let on = full.map_or(attempt.devices, bit);
        let mut passed = Vec::new();
        for pod in 0..self.trial.pods.len() {
            let twin_stays = self.trial.pods[pod]
                .twin
                .is_some_and(|twin| !attempt.gone.contains(&twin));
            if attempt.staying[pod]
                || attempt.gone.contains(&pod)
                || twin_stays
                || !self.trial.touches(pod, on)
            {
                continue;
            }
            if self.evict(attempt, pod) {
                self.descend(attempt, size);
                self.undo(attempt);
            }
            attempt.staying[pod] = true;
            passed.push(pod);
        }
        for pod in passed {
            attempt.staying[pod] = false;
        }
    }

    /// Evicts a pod, if its budgets allow it.
    fn evict(&self, attempt: &mut EvictionAttempt, pod: usize) -> bool {
        let budgets = &self.trial.pods[pod].budgets;
        if budgets.iter().any(|&budget| attempt.budgets[budget] == 0) {
            return false;
        }
        for &budget in budgets {
            attempt.budgets[budget] -= 1;
        }
        attempt.gone.push(pod);
        true
    }

    fn undo(&self, attempt: &mut EvictionAttempt) {
        if let Some(pod) = attempt.gone.pop() {
            for &budget in &self.trial.pods[pod].budgets {
                attempt.budgets[budget] += 1;
            }
        }
    }

    /// Whether no further victims can make it better than the best.
    fn cannot_improve(&self, attempt: &EvictionAttempt) -> bool {
        let Some(best) = &self.best else { return false };
        if best.len() < attempt.gone.len() {
            return true;
        }
        let (ours, its) = (self.priorities(&attempt.gone), self.priorities(best));
        ours.as_slice() > &its[..ours.len()]
    }

    fn priorities(&self, set: &[usize]) -> Vec<i32> {
        let mut all: Vec<_> = set
            .iter()
            .map(|&pod| self.trial.pods[pod].priority)
            .collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }

    fn ages(&self, set: &[usize]) -> Vec<i64> {
        let mut all: Vec<_> = set.iter().map(|&pod| self.trial.pods[pod].age).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    }

    fn record_best(&mut self, attempt: &EvictionAttempt) {
        let mut set = attempt.gone.clone();
        set.sort_unstable();
        let cost = |set: &[usize]| {
            (
                set.len(),
                self.priorities(set),
                self.ages(set),
                set.to_vec(),
            )
        };
        if self
            .best
            .as_ref()
            .is_none_or(|best| cost(&set) < cost(best))
        {
            self.best = Some(set);
        }
    }

    /// Without an exact answer: evicts all pods on these devices, and restores as many as
    /// possible, the most important first.
    fn restore(&mut self, devices: u64) {
        let mut gone: Vec<usize> = (0..self.trial.pods.len())
            .filter(|&pod| self.trial.touches(pod, devices))
            .collect();
        for pod in gone.clone().into_iter().rev() {
            let without: Vec<_> = gone.iter().copied().filter(|&other| other != pod).collect();
            let attempt = EvictionAttempt {
                gone: without,
                ..self.trial.empty_attempt(devices)
            };
            if self.trial.fits(&attempt) {
                gone = attempt.gone;
            }
        }
        let mut attempt = self.trial.empty_attempt(devices);
        let allowed = gone.into_iter().all(|pod| self.evict(&mut attempt, pod));
        if allowed && self.trial.fits(&attempt) {
            self.record_best(&attempt);
        }
    }
}

/// Adds every set of `size` out of `all` indices.
fn combinations(all: usize, size: usize, sets: &mut Vec<u64>) {
    fn more(from: usize, all: usize, size: usize, set: u64, sets: &mut Vec<u64>) {
        if size == 0 {
            sets.push(set);
            return;
        }
        for place in from..all {
            if sets.len() > MAX_DEVICE_SETS {
                return;
            }
            more(place + 1, all, size - 1, set | bit(place), sets);
        }
    }
    more(0, all, size, 0, sets);
}

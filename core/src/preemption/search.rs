//! The fewest pods of one node whose end lets a pod fit.
//!
//! One set of cards after the other is tried, sets of as few pods as possible
//! first, and within a size those first that may end first. That is exact within
//! a number of steps; where they run out, what pods can be given back one by one
//! (as kube-scheduler does it) decides.
//! Fed by: [`super::harm`]. Must not: judge by anything but [`crate::fit`].

use super::trial::{CARDS, Trial, Try, bit, places};
use crate::node::NodeState;
use crate::preemption::{Occupant, Question};

/// Judgements of one node, and of all nodes of a plan: about a second.
const STEPS: u64 = 40_000;
pub(super) const STEPS_IN_ALL: u64 = 1_000_000;
/// Sets of cards tried; where there are more, all cards are one set.
const CARD_SETS: usize = 512;

/// The search on one node.
pub(super) struct Search<'a> {
    trial: Trial<'a>,
    /// How many cards the preemptor needs at least and at most.
    cards: (usize, usize),
    /// It has one container with a share: then every card of a set is needed.
    single: bool,
    left: &'a mut u64,
    best: Option<Vec<usize>>,
}

impl<'a> Search<'a> {
    /// Among `low`, on a node that is `base` without them.
    pub(super) fn new(
        question: &'a Question<'a>,
        base: NodeState,
        low: &[&Occupant],
        left: &'a mut u64,
    ) -> Self {
        let containers = question.demand.containers.iter();
        let same = question.demand.rules.same_unit;
        let counts: Vec<usize> = containers
            .flat_map(|container| &container.asks)
            .map(|ask| if same { 1 } else { ask.count })
            .map(|units| usize::try_from(units).unwrap_or(usize::MAX))
            .collect();
        // Several instances may lie on one card.
        let instances = question.demand.wants_instances();
        let sum = counts
            .iter()
            .fold(0, |sum: usize, count| sum.saturating_add(*count));
        let most = counts.iter().copied().max().unwrap_or(0);
        let most = if instances { 1 } else { most };
        Self {
            cards: (most.max(1), sum.min(base.cards.len())),
            single: counts.len() == 1 && !instances,
            trial: Trial::new(question, base, low, STEPS.min(*left)),
            left,
            best: None,
        }
    }

    /// The least harm with at most this many pods: their places, ascending.
    pub(super) fn least(mut self, most: usize) -> Option<Vec<usize>> {
        let before = self.trial.steps;
        let sets: Vec<(u64, usize)> = self
            .card_sets()
            .into_iter()
            .filter_map(|cards| Some((cards, self.needed(cards)?)))
            .collect();
        let largest = most.min(self.trial.pods.len());
        'sizes: for size in 1..=largest {
            for &(cards, needed) in &sets {
                if needed <= size {
                    let mut attempt = self.trial.nobody(cards);
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
        let cut = self.trial.steps == 0;
        *self.left -= before.min(*self.left) - self.trial.steps.min(*self.left);
        if cut {
            for (cards, _) in sets {
                self.give_back(cards);
            }
        }
        self.best.take().filter(|set| set.len() <= most)
    }

    /// Sets of cards that could serve, small ones first.
    fn card_sets(&self) -> Vec<u64> {
        let all = self.trial.cards();
        if all > CARDS {
            return vec![u64::MAX];
        }
        let mut sets = Vec::new();
        for size in self.cards.0..=self.cards.1 {
            combinations(all, size, &mut sets);
            if sets.len() > CARD_SETS {
                return vec![u64::MAX];
            }
        }
        sets
    }

    /// Fewest pods that have to end on these cards, or fewer; `None` if all of
    /// them are not enough.
    fn needed(&mut self, cards: u64) -> Option<usize> {
        let attempt = self.trial.nobody(cards);
        let touching: Vec<usize> = (0..self.trial.pods.len())
            .filter(|&pod| self.trial.touches(pod, cards))
            .collect();
        let everybody = Try {
            gone: touching,
            ..self.trial.nobody(cards)
        };
        if !self.trial.fits(&everybody) {
            return None;
        }
        if !self.exact(cards) {
            return Some(1);
        }
        let each = places(cards, self.trial.cards());
        let needs = each.map(|card| self.trial.needed_on(card, &attempt));
        Some(needs.max().unwrap_or(1).max(1))
    }

    /// Whether the preemptor needs every one of these cards.
    fn exact(&self, cards: u64) -> bool {
        self.single && cards != u64::MAX
    }

    /// Lets up to `size` pods end, those that may end first, first.
    fn descend(&mut self, attempt: &mut Try, size: usize) {
        if self.trial.steps == 0 || self.worse(attempt) {
            return;
        }
        let exact = self.exact(attempt.cards);
        let each = places(attempt.cards, self.trial.cards());
        let full = each
            .filter(|_| exact)
            .find(|&card| !self.trial.serves(card, attempt));
        let left = size - attempt.gone.len();
        if full.is_none() && (exact || left == 0) && self.trial.fits(attempt) {
            return self.keep(attempt);
        }
        if left == 0 || full.is_some_and(|card| self.trial.needed_on(card, attempt) > left) {
            return;
        }
        let on = full.map_or(attempt.cards, bit);
        let mut passed = Vec::new();
        for pod in 0..self.trial.pods.len() {
            let twin_stays = self.trial.pods[pod]
                .twin
                .is_some_and(|twin| !attempt.gone.contains(&twin));
            if attempt.kept[pod]
                || attempt.gone.contains(&pod)
                || twin_stays
                || !self.trial.touches(pod, on)
            {
                continue;
            }
            if self.end(attempt, pod) {
                self.descend(attempt, size);
                self.undo(attempt);
            }
            attempt.kept[pod] = true;
            passed.push(pod);
        }
        for pod in passed {
            attempt.kept[pod] = false;
        }
    }

    /// Lets a pod end, if its budgets allow it.
    fn end(&self, attempt: &mut Try, pod: usize) -> bool {
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

    fn undo(&self, attempt: &mut Try) {
        if let Some(pod) = attempt.gone.pop() {
            for &budget in &self.trial.pods[pod].budgets {
                attempt.budgets[budget] += 1;
            }
        }
    }

    /// Whatever is added, it will not be better than the best.
    fn worse(&self, attempt: &Try) -> bool {
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

    fn keep(&mut self, attempt: &Try) {
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

    /// Without an exact answer: all on these cards end, and as many as possible
    /// are given back, the most important first.
    fn give_back(&mut self, cards: u64) {
        let mut gone: Vec<usize> = (0..self.trial.pods.len())
            .filter(|&pod| self.trial.touches(pod, cards))
            .collect();
        for pod in gone.clone().into_iter().rev() {
            let without: Vec<_> = gone.iter().copied().filter(|&other| other != pod).collect();
            let attempt = Try {
                gone: without,
                ..self.trial.nobody(cards)
            };
            if self.trial.fits(&attempt) {
                gone = attempt.gone;
            }
        }
        let mut attempt = self.trial.nobody(cards);
        let allowed = gone.into_iter().all(|pod| self.end(&mut attempt, pod));
        if allowed && self.trial.fits(&attempt) {
            self.keep(&attempt);
        }
    }
}

/// Adds every set of `size` of `all` places.
fn combinations(all: usize, size: usize, sets: &mut Vec<u64>) {
    fn more(from: usize, all: usize, size: usize, set: u64, sets: &mut Vec<u64>) {
        if size == 0 {
            sets.push(set);
            return;
        }
        for place in from..all {
            if sets.len() > CARD_SETS {
                return;
            }
            more(place + 1, all, size - 1, set | bit(place), sets);
        }
    }
    more(0, all, size, 0, sets);
}

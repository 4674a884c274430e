//! What a tenant was allowed of a card over the last seconds, to be asked of any part of them.
//!
//! Fed by: [`super::level`]. Must not: keep more than a measure of the driver may be late.

use std::collections::VecDeque;

use super::{Ppm, WHOLE};

/// For so long, in nanoseconds, what was allowed is kept.
const KEPT: u64 = 5_000_000_000;

/// An allowance and since when it holds, one after the other. Before the first: all of the card.
#[derive(Debug, Default)]
pub struct Allowed {
    marks: VecDeque<(u64, Ppm)>,
}

impl Allowed {
    /// From `now` on it is this.
    pub fn note(&mut self, allowed: Ppm, now: u64) {
        if self.marks.back().is_some_and(|(_, last)| *last == allowed) {
            return;
        }
        self.marks.push_back((now, allowed));
        // The first one that is kept began earlier, or is the first of all.
        while self.marks.get(1).is_some_and(|(at, _)| *at + KEPT < now) {
            self.marks.pop_front();
        }
    }

    /// Nanoseconds of the card that were allowed from one moment to another.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        let (mut sum, mut end) = (0, to);
        for (since, allowed) in self.marks.iter().rev() {
            let begin = from.max(*since);
            if begin < end {
                sum += allowed * (end - begin) / WHOLE;
                end = begin;
            }
        }
        sum + end.saturating_sub(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbiter::PERCENT;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_was_allowed_is_told_of_any_part_of_the_time() {
        let mut allowed = Allowed::default();
        let check = |allowed: &Allowed, from: u64, to: u64, expected: u64| {
            let found = allowed.between(from * SECOND / 10, to * SECOND / 10);
            assert_eq!(found, expected * SECOND / 100, "{from} to {to}");
        };
        check(&allowed, 0, 20, 200);
        allowed.note(30 * PERCENT, SECOND);
        allowed.note(30 * PERCENT, 2 * SECOND);
        allowed.note(50 * PERCENT, 3 * SECOND);
        check(&allowed, 0, 10, 100);
        check(&allowed, 5, 15, 65);
        check(&allowed, 10, 30, 60);
        check(&allowed, 5, 40, 50 + 60 + 50);
        check(&allowed, 35, 40, 25);
        check(&allowed, 40, 40, 0);
        check(&allowed, 40, 30, 0);
    }

    #[test]
    fn what_is_too_long_ago_is_forgotten() {
        let mut allowed = Allowed::default();
        for step in 0..1_000 {
            allowed.note((20 + step % 2) * PERCENT, step * SECOND / 50);
        }
        assert!(allowed.marks.len() < 260, "{}", allowed.marks.len());
        let sum = allowed.between(16 * SECOND, 18 * SECOND);
        assert_eq!(sum, 41 * SECOND / 100);
    }
}

//! How a launch waits: for earlier ones to be measured, for the bucket, for the gate.
//!
//! Fed by: [`super`]. Must not: wait for what another process must launch first, longer than
//! [`BLIND`].

use std::sync::atomic::Ordering::Relaxed;

use aliquot_pacer::bucket::Until;
use aliquot_pacer::cost::{Kernel, Sample};
use aliquot_pacer::rule::{Rate, Rule};

use super::Turn;
use crate::clock;

/// Nanoseconds after which a wait looks at the limits page again, woken or not.
const LOOK: u64 = 20_000_000;
/// Nanoseconds between looks at marks that are waited for.
const GLANCE: u64 = 200_000;
/// The longest that a launch waits to learn what earlier ones cost. It may have to go for those to
/// end: kernels of several processes wait for each other.
const BLIND: u64 = 2_000_000_000;

impl Turn {
    /// Waits while earlier launches must be measured first.
    pub(super) fn wait_while(self, kernel: &Kernel, blind: impl Fn() -> bool) {
        let start = clock::now();
        let mut now = start;
        while blind() {
            if !self.lane.stuck.load(Relaxed) && now - start < BLIND {
                self.rest(now + GLANCE);
                self.poll();
                now = clock::now();
                continue;
            }
            // In vain, now or just before: their places are for others, and what is not known is
            // taken for as long as that.
            self.lane.stuck.store(true, Relaxed);
            let costs = self.lane.costs();
            let markers = &self.lane.markers;
            markers.give_up(|launch| costs.kernel(launch.key).end());
            if !kernel.is_known() {
                kernel.learn(Sample {
                    took: BLIND,
                    sharing: 1,
                    overlapped: false,
                    disturbed: false,
                    held: 0,
                });
            }
            break;
        }
        if now > start {
            self.compute().waited.fetch_add(now - start, Relaxed);
        }
    }

    /// Waits until the bucket gives a chunk; the rate at which it did, or `None` if nothing is
    /// limited any more.
    pub(super) fn wait_for(self, chunk: u64) -> Option<Rate> {
        let start = clock::now();
        let mut now = start;
        let rate = loop {
            let until = match self.words().rule() {
                Rule::Free => break None,
                Rule::Closed => now + LOOK,
                Rule::Limited(rate) => match self.bucket().take(now, rate, chunk) {
                    Ok(()) => break Some(rate),
                    Err(Until(until)) => until.min(now + LOOK),
                },
            };
            self.rest(until);
            self.poll();
            now = clock::now();
        };
        if now > start {
            self.compute().waited.fetch_add(now - start, Relaxed);
        }
        rate
    }

    /// Until a moment, or until the host changes the gate or wakes us.
    fn rest(self, until: u64) {
        let gate = self.process.limits.gate(self.card);
        let seen = gate.load(Relaxed);
        clock::wait(gate, seen, until);
    }
}

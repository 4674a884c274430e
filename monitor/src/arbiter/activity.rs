//! Whether a tenant is at work on a card, how much of it it uses, and whether it wants more: from
//! what its counters said at this look and the one before.
//!
//! Fed by: the words of its launches. Must not: take a moment far ahead for one that is meant.

use super::{Gate, PERCENT, Ppm, Sample, WHOLE};
use aliquot_region::host::Launches;

const MILLISECOND: u64 = 1_000_000;
/// A tenant that launched is at work for so long, at least.
pub const HOLD: u64 = 100 * MILLISECOND;
/// And at most, without a sign: long kernels keep a program from launching.
pub const LONGEST: u64 = 2_000 * MILLISECOND;
/// A debt or an end of work further ahead than this was written by hand.
pub const AHEAD: u64 = 10_000 * MILLISECOND;
/// Who had to wait wants more for so long.
const HUNGER: u64 = 100 * MILLISECOND;
/// Over which use is averaged.
const AVERAGE: u64 = 250 * MILLISECOND;
/// Use by the driver's measure that counts as work, whatever the counters say, or without them.
const SEEN: Ppm = 2 * PERCENT;

/// What is known of one tenant on one card.
#[derive(Debug, Default)]
pub struct Activity {
    said: Option<Launches>,
    looked: u64,
    /// The last sign of work; 0: none.
    signed: u64,
    /// Between signs of late.
    gap: u64,
    hungry_until: u64,
    used: Ppm,
    at_work: bool,
    wants_more: bool,
}

impl Activity {
    /// A launch is under way, or was a moment ago, or waits.
    pub fn is_at_work(&self) -> bool {
        self.at_work
    }

    /// It would use more than it does.
    pub fn wants_more(&self) -> bool {
        self.wants_more
    }

    /// What it uses of the card, by its own words, where it is limited.
    pub fn used(&self) -> Ppm {
        self.used
    }

    /// Takes a sample of a tenant whose gate was this until now. Who waits at a closed one stays
    /// as it was, or begins to be at work; who had no limit told nothing of its use.
    pub fn look(&mut self, sample: &Sample, gate: Gate, now: u64) {
        let closed = gate == Gate::Wait;
        let Some(said) = sample.said else {
            self.said = None;
            self.wants_more = true;
            self.at_work = sample.measured.is_some_and(|found| found.used >= SEEN);
            return;
        };
        let owed = [said.debt, said.until].map(|moment| plausible(moment, now));
        let last = self.said.replace(said);
        let passed = now.saturating_sub(self.looked).max(1);
        self.looked = now;
        match last {
            None => {
                let ago = now.saturating_sub(said.last);
                let begun = said.last > 0 && said.last <= now && ago < HOLD;
                self.signed = if begun { now } else { 0 };
            }
            Some(last) => {
                if (last.launches, last.last) != (said.launches, said.last) {
                    self.sign(now);
                }
                if last.waited != said.waited {
                    self.hungry_until = now + HUNGER;
                }
                let grown = said.busy.wrapping_sub(last.busy);
                // What was charged too much is given back: that is no use.
                let grown = if grown > AHEAD { 0 } else { grown };
                self.average(grown.saturating_mul(WHOLE) / passed, passed);
            }
        }
        if owed[0] > now || gate == Gate::Unlimited {
            self.hungry_until = self.hungry_until.max(now + HUNGER);
        }
        self.wants_more = closed || now < self.hungry_until;
        let hold = (2 * self.gap).clamp(HOLD, LONGEST);
        let signed = self.signed > 0 && now < self.signed + hold;
        // Nothing said for longer than the driver is late: a lie, or a very long kernel.
        let unsaid = sample.measured.is_some_and(|found| {
            let quiet = found.at > self.signed + LONGEST && now < found.at + LONGEST;
            found.used >= SEEN && quiet
        });
        let works = signed || unsaid || owed.iter().any(|moment| *moment > now);
        self.at_work = works || (closed && self.at_work);
        if closed && self.at_work {
            // When the gate opens it has a moment to launch.
            self.signed = now;
        }
    }

    fn sign(&mut self, now: u64) {
        let gap = now.saturating_sub(self.signed);
        if self.signed > 0 && gap < LONGEST {
            self.gap = gap.max(self.gap - self.gap / 8);
        }
        self.signed = now;
    }

    fn average(&mut self, found: Ppm, passed: u64) {
        let parts = AVERAGE.div_ceil(passed).max(1);
        self.used = (self.used * (parts - 1) + found) / parts;
    }
}

/// The moment, or 0 where no launch can have made it.
fn plausible(moment: u64, now: u64) -> u64 {
    if moment > now.saturating_add(AHEAD) {
        0
    } else {
        moment
    }
}

//! Who may use which card now: for each tenant of each card the gate word, the trim of its rate
//! and how many tenants are at work there, decided anew every 20 ms from what the tenants'
//! counters say and, now and then, from what the driver measured.
//!
//! In this order, for each card:
//! 1. a tenant of low priority waits while one of high priority is at work;
//! 2. under policy `default` a tenant has no limit that is alone at work, or of high priority on a
//!    card with nobody of low priority;
//! 3. of those that are limited, who wants more is lent what others leave ([`lend`]);
//! 4. rates are corrected until the driver's measure is the allowance, and who takes more than it
//!    was allowed all in all, whatever its rate, is stopped at the gate ([`level`]).
//!
//! Counters are a tenant's own words. They say who is at work and who wants more; a lie in them
//! opens nothing that the truth would not, and nobody's rate falls below its share by them.
//!
//! Fed by: [`shell`]. Must not: read a clock or a file, or ask the driver.

pub mod activity;
pub mod allowed;
pub mod lend;
pub mod level;
pub mod levels;
pub mod shell;

use std::collections::BTreeMap;

use aliquot_region::host::Launches;
use serde::Serialize;

use activity::Activity;
use level::Level;

/// Millionths of a card's compute.
pub type Ppm = u64;
/// All of a card.
pub const WHOLE: Ppm = 1_000_000;
/// One percent of it.
pub const PERCENT: Ppm = 10_000;

/// When a share's compute limit holds (`GPU_CORE_UTILIZATION_POLICY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Unless there is no need.
    #[default]
    Default,
    /// Always.
    Force,
    /// Never.
    Disable,
}

/// What the library in the container does with launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Gate {
    /// Keeps its rate.
    #[default]
    Open,
    /// Lets them wait.
    Wait,
    /// Nothing.
    Unlimited,
}

impl Gate {
    /// As the limits page has it.
    pub fn word(self) -> u32 {
        match self {
            Self::Open => 0,
            Self::Wait => 1,
            Self::Unlimited => 2,
        }
    }
}

/// One tenant of one card, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The seat's name.
    pub seat: &'a str,
    /// The card, or the instance of one.
    pub card: &'a str,
    /// Of priority 0.
    pub high: bool,
    /// When its limit holds.
    pub policy: Policy,
    /// Percent of the card; 0 and 100: no limit.
    pub cores: u32,
    /// What its counters say; `None`: nothing that can be read.
    pub said: Option<Launches>,
    /// What the driver measured, and when, in nanoseconds of the clock of `now`.
    pub measured: Option<Measured>,
}

impl Sample<'_> {
    /// What it may use: nothing is limited where nothing was asked for.
    fn share(&self) -> Option<Ppm> {
        let asked = (1..100).contains(&self.cores) && self.policy != Policy::Disable;
        asked.then(|| Ppm::from(self.cores) * PERCENT)
    }
}

/// GPU time of a tenant on a card, by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Part of the card's time.
    pub used: Ppm,
    /// When it was asked.
    pub at: u64,
}

/// What is said to a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The gate.
    pub gate: Gate,
    /// Its rate by its share, in millionths; 0: none.
    pub trim: u32,
    /// Tenants at work on the card, itself included.
    pub tenants: u32,
}

/// What is remembered between two decisions, in the order of the samples, which are mostly the
/// same from one to the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// Seat and card of each.
    order: Vec<(String, String)>,
    tenants: Vec<Tenant>,
    /// The places of each card's.
    cards: Vec<Vec<usize>>,
}

/// Of one tenant on one card.
#[derive(Debug, Default)]
struct Tenant {
    activity: Activity,
    level: Level,
    gate: Gate,
}

impl Memory {
    /// Takes up who is new, and forgets who has no sample any more.
    fn arrange(&mut self, samples: &[Sample]) {
        let known = self.order.iter();
        let known = known.map(|(seat, card)| (seat.as_str(), card.as_str()));
        if known.eq(samples.iter().map(|one| (one.seat, one.card))) {
            return;
        }
        let order = std::mem::take(&mut self.order).into_iter();
        let mut known: BTreeMap<_, _> = order.zip(std::mem::take(&mut self.tenants)).collect();
        let mut cards: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, sample) in samples.iter().enumerate() {
            let key = (sample.seat.to_owned(), sample.card.to_owned());
            self.tenants.push(known.remove(&key).unwrap_or_default());
            self.order.push(key);
            cards.entry(sample.card).or_default().push(i);
        }
        self.cards = cards.into_values().collect();
    }
}

/// Decides for every sample, in their order, at `now` nanoseconds of the monotonic clock. Who has
/// no sample any more is forgotten.
pub fn decide(samples: &[Sample], memory: &mut Memory, now: u64) -> Vec<Verdict> {
    memory.arrange(samples);
    let mut verdicts = vec![Verdict::default(); samples.len()];
    for members in &memory.cards {
        of_card(samples, members, &mut memory.tenants, &mut verdicts, now);
    }
    verdicts
}

/// Decides for the tenants of one card: those at the places `members`.
fn of_card(
    samples: &[Sample],
    members: &[usize],
    tenants: &mut [Tenant],
    verdicts: &mut [Verdict],
    now: u64,
) {
    for i in members {
        let tenant = &mut tenants[*i];
        tenant.activity.look(&samples[*i], tenant.gate, now);
    }
    let high = |i: &&usize| samples[**i].high;
    let at_work = |i: &&usize| tenants[**i].activity.is_at_work();
    let high_at_work = members.iter().filter(high).any(|i| at_work(&i));
    let low_present = !members.iter().all(|i| high(&i));
    let yields = |sample: &Sample| high_at_work && !sample.high;
    let claims: Vec<lend::Claim> = members
        .iter()
        .map(|i| {
            let (sample, activity) = (&samples[*i], &tenants[*i].activity);
            let is_watched = tenants[*i].level.is_watched(now);
            lend::Claim {
                share: sample.share(),
                at_work: activity.is_at_work() && !yields(sample),
                used: activity.used(),
                wants_more: activity.wants_more(),
                may_borrow: sample.policy == Policy::Default && !is_watched,
            }
        })
        .collect();
    let working = claims.iter().filter(|one| one.at_work).count();
    let allowed = lend::allowances(&claims);
    for ((i, claim), allowed) in members.iter().zip(&claims).zip(allowed) {
        let sample = &samples[*i];
        let others = working - usize::from(claim.at_work);
        let free = others == 0 || (sample.high && !low_present);
        let gate = match sample.policy {
            _ if yields(sample) => Gate::Wait,
            Policy::Default if free => Gate::Unlimited,
            _ => Gate::Open,
        };
        verdicts[*i] = tenants[*i].verdict(sample, gate, allowed, others, now);
    }
}

impl Tenant {
    fn verdict(
        &mut self,
        sample: &Sample,
        gate: Gate,
        allowed: Ppm,
        others: usize,
        now: u64,
    ) -> Verdict {
        let tenants = u32::try_from(others + 1).unwrap_or(u32::MAX);
        let held = sample.share().filter(|_| gate == Gate::Open);
        let Some(share) = held else {
            self.gate = gate;
            let is_free = gate == Gate::Unlimited || sample.share().is_none();
            let allowed = if is_free { WHOLE } else { allowed };
            self.level.rest(sample.measured, allowed, now);
            return Verdict {
                gate,
                trim: 0,
                tenants,
            };
        };
        let claim = level::Claim {
            used: self.activity.used(),
            wants_more: self.activity.wants_more(),
        };
        self.level.look(sample.measured, allowed, claim, now);
        if others > 0 && self.level.is_above() {
            self.gate = Gate::Wait;
        } else {
            self.gate = gate;
        }
        Verdict {
            gate: self.gate,
            trim: self.level.trim(allowed, share),
            tenants,
        }
    }
}

#[cfg(test)]
#[path = "arbiter/lies.rs"]
mod lies;
#[cfg(test)]
#[path = "arbiter/tests.rs"]
mod tests;

//! What holds for launches on a card, as a function of the limits page's words.
//!
//! Fed by: the reader of the limits page. Must not: limit less than asked because the host is
//! silent.

/// Policy: unless the host says that there is no need.
pub const DEFAULT: u32 = 0;
/// Policy: always.
pub const FORCE: u32 = 1;
/// Policy: never.
pub const DISABLE: u32 = 2;

/// Gate: as the policy says.
pub const OPEN: u32 = 0;
/// Gate: others have the card now.
pub const WAIT: u32 = 1;
/// Gate: alone on the card, or with others of high priority only.
pub const UNLIMITED: u32 = 2;

/// How old a heartbeat of the host may be, in nanoseconds: what it measured is forgotten then.
pub const SILENCE: u64 = 5_000_000_000;

/// A trim that changes nothing, in millionths.
const NO_TRIM: u32 = 1_000_000;
/// The fastest rate, in millionths of the card: a trim may have to make up for time that other
/// tenants took and that was charged to this one.
const FASTEST: u64 = 2_000_000;

/// What the limits page says of one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Percent of the card; 0 and 100: no limit.
    pub cores: u32,
    /// [`DEFAULT`], [`FORCE`], [`DISABLE`]; any other is [`DEFAULT`].
    pub policy: u32,
    /// [`OPEN`], [`WAIT`], [`UNLIMITED`]; any other is [`OPEN`].
    pub gate: u32,
    /// Millionths by which the host corrects the rate.
    pub trim: u32,
    /// Tenants that are active on the card; 0: unknown.
    pub tenants: u32,
    /// The host is alive: its gate, trim and tenants count.
    pub fresh: bool,
}

/// What a launch has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Free,
    /// Wait for the gate.
    Closed,
    /// Keep this rate.
    Limited(Rate),
}

impl Words {
    /// What holds now. The host's words count only while it is heard; without it the container
    /// gets what was asked for it, no more and no less.
    #[inline]
    pub fn rule(self) -> Rule {
        if self.fresh && self.gate == WAIT {
            return Rule::Closed;
        }
        let asked = (1..100).contains(&self.cores);
        let freed = self.policy != FORCE && self.fresh && self.gate == UNLIMITED;
        if !asked || self.policy == DISABLE || freed {
            return Rule::Free;
        }
        let trim = if self.fresh { self.trim } else { NO_TRIM };
        Rule::Limited(Rate::new(self.cores, trim))
    }

    /// Tenants that share the card's time with this one, itself included; 1 where nobody says.
    pub fn sharing(self) -> u32 {
        if self.fresh { self.tenants.max(1) } else { 1 }
    }
}

/// GPU time per time, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// The rate of a share in percent, corrected by a trim in millionths.
    #[inline]
    pub fn new(percent: u32, trim: u32) -> Self {
        let rate = u64::from(percent) * u64::from(trim) / 100;
        Self(rate.clamp(1, FASTEST))
    }

    #[cfg(test)]
    pub(crate) const fn exactly(millionths: u64) -> Self {
        Self(millionths)
    }

    /// Nanoseconds in which `cost` nanoseconds of GPU time become free.
    pub fn wall(self, cost: u64) -> u64 {
        let time = u128::from(cost) * 1_000_000 / u128::from(self.0);
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Words = Words {
        cores: 30,
        policy: DEFAULT,
        gate: OPEN,
        trim: 1_000_000,
        tenants: 0,
        fresh: true,
    };
    const LIMITED: Rule = Rule::Limited(Rate(300_000));

    #[track_caller]
    fn check(words: Words, expected: Rule) {
        assert_eq!(words.rule(), expected, "{words:?}");
    }

    #[test]
    fn policy_and_gate_decide_who_is_limited() {
        for (policy, gate, expected) in [
            (DEFAULT, OPEN, LIMITED),
            (DEFAULT, UNLIMITED, Rule::Free),
            (DEFAULT, WAIT, Rule::Closed),
            (FORCE, OPEN, LIMITED),
            (FORCE, UNLIMITED, LIMITED),
            (FORCE, WAIT, Rule::Closed),
            (DISABLE, OPEN, Rule::Free),
            (DISABLE, UNLIMITED, Rule::Free),
            (DISABLE, WAIT, Rule::Closed),
            (9, UNLIMITED, Rule::Free),
            (9, OPEN, LIMITED),
            (DEFAULT, 9, LIMITED),
        ] {
            check(
                Words {
                    policy,
                    gate,
                    ..ASKED
                },
                expected,
            );
        }
    }

    #[test]
    fn nothing_and_the_whole_card_are_no_limit() {
        for cores in [0, 100, 200] {
            check(Words { cores, ..ASKED }, Rule::Free);
        }
    }

    #[test]
    fn what_a_silent_host_said_is_forgotten() {
        let silent = |gate, trim| Words {
            gate,
            trim,
            tenants: 7,
            fresh: false,
            ..ASKED
        };
        check(silent(WAIT, 2_000_000), LIMITED);
        check(silent(UNLIMITED, 500_000), LIMITED);
        assert_eq!(silent(OPEN, 1).sharing(), 1);
        let heard = Words {
            tenants: 7,
            ..ASKED
        };
        assert_eq!(heard.sharing(), 7);
    }

    #[test]
    fn a_rate_is_the_share_of_time_and_is_corrected_by_the_trim() {
        assert_eq!(Rate::new(25, 1_000_000).wall(1_000), 4_000);
        assert_eq!(Rate::new(25, 2_000_000).wall(1_000), 2_000);
        assert_eq!(Rate::new(1, 0).wall(1), 1_000_000, "never infinite");
        assert_eq!(Rate::new(1, 0).wall(u64::MAX), u64::MAX, "never wraps");
    }
}

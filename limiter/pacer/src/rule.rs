//! The limit for launches on a device, as a function of the limits page. A silent host never leads
//! to a lower limit than requested.

/// Policy: limit unless the host says that there is no need.
pub const DEFAULT: u32 = 0;
/// Policy: always limit.
pub const FORCE: u32 = 1;
/// Policy: never limit.
pub const DISABLE: u32 = 2;

/// Throttle flag: launches run as the policy says.
pub const RUN: u32 = 0;
/// Throttle flag: launches wait, because tenants of high priority run.
pub const WAIT: u32 = 1;
/// Throttle flag: no compute limit, because the container is alone on the device, or with tenants
/// of high priority only.
pub const UNLIMITED: u32 = 2;

/// Age of the host's heartbeat in nanoseconds beyond which its measurements are ignored.
pub const HEARTBEAT_TIMEOUT: u64 = 5_000_000_000;

/// A rate correction that changes nothing, in millionths.
const NO_CORRECTION: u32 = 1_000_000;
/// The highest rate, in millionths of the device: a rate correction may have to make up for launches
/// that are charged four times what they take.
const MAX_RATE: u64 = 4_000_000;

/// What the limits page says about one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitWords {
    pub cores: u32,
    /// [`DEFAULT`], [`FORCE`], [`DISABLE`]; any other is [`DEFAULT`].
    pub policy: u32,
    /// [`RUN`], [`WAIT`], [`UNLIMITED`]; any other is [`RUN`].
    pub throttle_flag: u32,
    /// In millionths.
    pub rate_correction: u32,
    /// Tenants that are active on the device; 0: unknown.
    pub tenants: u32,
    /// The host is alive: its throttle flag, rate correction and tenants are valid.
    pub host_alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchRule {
    Unlimited,
    Wait,
    Limited(Rate),
}

impl LimitWords {
    /// The current rule. The host's words are valid only while it is alive; otherwise the container
    /// gets what was requested for it, no more and no less.
    #[inline]
    pub fn rule(self) -> LaunchRule {
        if self.host_alive && self.throttle_flag == WAIT {
            return LaunchRule::Wait;
        }
        let has_limit = (1..100).contains(&self.cores);
        let exempt = self.policy != FORCE && self.host_alive && self.throttle_flag == UNLIMITED;
        if !has_limit || self.policy == DISABLE {
            return LaunchRule::Unlimited;
        }
        if exempt {
            // Measured all the same: what its launches cost is known when others come.
            return LaunchRule::Limited(Rate::UNBOUNDED);
        }
        let rate_correction = if self.host_alive {
            self.rate_correction
        } else {
            NO_CORRECTION
        };
        LaunchRule::Limited(Rate::new(self.cores, rate_correction))
    }

    /// Tenants that share the device's time with this one, including it; 1 if unknown.
    pub fn sharing(self) -> u32 {
        if self.host_alive {
            self.tenants.max(1)
        } else {
            1
        }
    }
}

/// GPU time per elapsed time, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// No limit: all GPU time is free at once.
    pub const UNBOUNDED: Self = Self(u64::MAX);

    /// The rate of a share in percent, with a rate correction in millionths.
    #[inline]
    pub fn new(percent: u32, rate_correction: u32) -> Self {
        let rate = u64::from(percent) * u64::from(rate_correction) / 100;
        Self(rate.clamp(1, MAX_RATE))
    }

    /// Nanoseconds in which `cost` nanoseconds of GPU time become free.
    pub fn wall_time(self, cost: u64) -> u64 {
        let time = u128::from(cost) * 1_000_000 / u128::from(self.0);
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIRTY_PERCENT: LimitWords = LimitWords {
        cores: 30,
        policy: DEFAULT,
        throttle_flag: RUN,
        rate_correction: 1_000_000,
        tenants: 0,
        host_alive: true,
    };
    const LIMITED: LaunchRule = LaunchRule::Limited(Rate(300_000));
    const EXEMPT: LaunchRule = LaunchRule::Limited(Rate::UNBOUNDED);

    #[track_caller]
    fn check(words: LimitWords, expected: LaunchRule) {
        assert_eq!(words.rule(), expected, "{words:?}");
    }

    #[test]
    fn decides_limit_by_policy_and_throttle_flag() {
        const NONE: LaunchRule = LaunchRule::Unlimited;
        const WAITS: LaunchRule = LaunchRule::Wait;
        let flags = [RUN, UNLIMITED, WAIT, 9];
        for (policy, expected) in [
            (DEFAULT, [LIMITED, EXEMPT, WAITS, LIMITED]),
            (FORCE, [LIMITED, LIMITED, WAITS, LIMITED]),
            (DISABLE, [NONE, NONE, WAITS, NONE]),
            (9, [LIMITED, EXEMPT, WAITS, LIMITED]),
        ] {
            for (throttle_flag, expected) in flags.into_iter().zip(expected) {
                let words = LimitWords {
                    policy,
                    throttle_flag,
                    ..THIRTY_PERCENT
                };
                check(words, expected);
            }
        }
    }

    #[test]
    fn treats_zero_and_full_share_as_unlimited() {
        for cores in [0, 100, 200] {
            let words = LimitWords {
                cores,
                ..THIRTY_PERCENT
            };
            check(words, LaunchRule::Unlimited);
        }
    }

    #[test]
    fn ignores_words_of_silent_host() {
        let silent = |throttle_flag, rate_correction| LimitWords {
            throttle_flag,
            rate_correction,
            tenants: 7,
            host_alive: false,
            ..THIRTY_PERCENT
        };
        check(silent(WAIT, 2_000_000), LIMITED);
        check(silent(UNLIMITED, 500_000), LIMITED);
        assert_eq!(silent(RUN, 1).sharing(), 1);
        let alive = LimitWords {
            tenants: 7,
            ..THIRTY_PERCENT
        };
        assert_eq!(alive.sharing(), 7);
    }

    #[test]
    fn applies_rate_correction_to_share() {
        assert_eq!(Rate::new(25, 1_000_000).wall_time(1_000), 4_000);
        assert_eq!(Rate::new(25, 2_000_000).wall_time(1_000), 2_000);
        assert_eq!(Rate::new(90, 4_000_000).wall_time(3_600), 1_000);
        assert_eq!(Rate::new(1, 0).wall_time(1), 1_000_000, "never infinite");
        assert_eq!(Rate::new(1, 0).wall_time(u64::MAX), u64::MAX, "never wraps");
        assert_eq!(Rate::UNBOUNDED.wall_time(1 << 40), 0);
    }
}

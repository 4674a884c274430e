//! A saturated device cannot give every tenant its allowance: what it loses by switching between
//! tenants is missing. All allowances are multiplied by one factor, so that each tenant loses the
//! same part. Without it the loss would be taken from the tenants with the largest shares, which
//! have to wait for the others.
//!
//! The device is saturated if a tenant has credit whenever it launches, because its work in progress
//! does not end in time. The factor is regulated until such credit is small and constant: then that
//! tenant gets just as much as its factor says, and so do those that only their buckets limit.

use super::{FULL_DEVICE, Ppm};

const MILLISECOND: u64 = 1_000_000;
/// Credit that a tenant of a saturated device should have on average, in millionths of what its
/// bucket holds: more than it has where launches are late now and then, and less than it can have.
const TARGET: i64 = 400_000;
/// Credit beyond the target lowers the factor by this part of it at once, and by the other in each
/// second.
const PROPORTIONAL: i64 = 10;
const INTEGRAL: i64 = 20;
/// The lowest factor: a tenant that pretends to be unable to launch takes no more from others.
const LOWEST: i64 = 850_000;

/// The factor of one device's allowances.
#[derive(Debug)]
pub struct Saturation {
    /// The slow part of the factor, in billionths.
    level: i64,
    updated_at: u64,
}

impl Default for Saturation {
    fn default() -> Self {
        Self {
            level: 1_000_000_000,
            updated_at: 0,
        }
    }
}

impl Saturation {
    /// The factor in millionths, from the highest of the credits of those that demand more:
    /// `Some(None)` if nobody does, `None` if it is not known now.
    pub fn update(&mut self, credit: Option<Option<Ppm>>, now: u64) -> Ppm {
        let passed = now.saturating_sub(self.updated_at).min(100 * MILLISECOND);
        self.updated_at = now;
        let Some(credit) = credit else {
            return self.factor(0);
        };
        let credit = i64::try_from(credit.unwrap_or(0).min(FULL_DEVICE)).unwrap_or(0);
        let excess = credit - TARGET;
        let milliseconds = i64::try_from(passed / MILLISECOND).unwrap_or(0);
        // A thousandth of a second, in billionths instead of millionths.
        let change = excess * milliseconds / INTEGRAL;
        self.level = (self.level - change).clamp(LOWEST * 1_000, 1_000_000_000);
        self.factor(excess)
    }

    fn factor(&self, excess: i64) -> Ppm {
        let factor = self.level / 1_000 - excess / PROPORTIONAL;
        Ppm::try_from(factor.clamp(LOWEST, 1_000_000)).unwrap_or(FULL_DEVICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_settles_where_saturated_tenant_keeps_up() {
        for capacity in [900_000, 950_000, 1_100_000_i64] {
            let mut saturation = Saturation::default();
            let (mut credit, mut now, mut factor) = (0_i64, 1_u64 << 40, 0);
            for _ in 0..3_000 {
                now += 20 * MILLISECOND;
                let shown = u64::try_from(credit).ok();
                factor = i64::try_from(saturation.update(Some(shown), now)).expect("a part");
                // A bucket that holds 50 ms.
                let gained = (factor - capacity) * 20 / 50;
                credit = (credit + gained).clamp(0, 1_000_000);
            }
            let expected = capacity.min(1_000_000);
            assert!(
                (factor - expected).abs() < 10_000,
                "{capacity}: {factor} {credit}"
            );
        }
    }

    #[test]
    fn factor_returns_after_saturation() {
        let mut saturation = Saturation::default();
        let mut now = 1_u64 << 40;
        let mut update = |credit| {
            now += 20 * MILLISECOND;
            saturation.update(Some(credit), now)
        };
        for _ in 0..1_000 {
            assert!(update(Some(u64::MAX)) >= 850_000, "the lowest");
        }
        let mut later = (0..1_000).map(|_| update(None));
        assert!(later.any(|factor| factor == FULL_DEVICE));
    }
}

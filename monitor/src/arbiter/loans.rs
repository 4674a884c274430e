//! How much of a device each tenant may use: its share, and a loan of what others leave, in proportion
//! to the shares of those that demand more. Never less than the share; and nothing is lent that an
//! unlimited tenant may take at any moment.

use super::{FULL_DEVICE, PERCENT, Ppm};

/// Reserved for a tenant beyond what it uses, so that it can increase its use before that is noticed.
const MARGIN: Ppm = 2 * PERCENT;

#[derive(Clone, Copy, Debug)]
pub struct LoanClaim {
    /// Its share; `None`: unlimited.
    pub share: Option<Ppm>,
    /// It is active, and need not wait for others.
    pub active: bool,
    pub used: Ppm,
    pub demands_more: bool,
    pub may_borrow: bool,
    /// The most that it may use with it.
    pub most: Ppm,
}

impl LoanClaim {
    fn borrows(&self) -> bool {
        self.active && self.demands_more && self.may_borrow
    }

    fn reserved(&self) -> Ppm {
        match self.share {
            _ if !self.active => 0,
            None => FULL_DEVICE,
            // A tenant that uses much of its share may be slowed down by one that takes too much.
            Some(share) if self.demands_more || 2 * self.used > share => share,
            Some(share) => share.min(self.used + MARGIN),
        }
    }
}

pub fn allowances(claims: &[LoanClaim]) -> Vec<Ppm> {
    let reserved: Ppm = claims.iter().map(LoanClaim::reserved).sum();
    let left = FULL_DEVICE.saturating_sub(reserved);
    let borrowers = claims.iter().filter(|one| one.borrows());
    let shares: Ppm = borrowers.filter_map(|one| one.share).sum();
    claims
        .iter()
        .map(|one| match one.share {
            None => FULL_DEVICE,
            Some(share) if one.borrows() => {
                (share + left * share / shares.max(1)).min(one.most.max(share))
            }
            Some(share) => share,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(percent: Ppm, used: Ppm, demands_more: bool) -> LoanClaim {
        LoanClaim {
            share: (percent > 0).then_some(percent * PERCENT),
            active: true,
            used: used * PERCENT,
            demands_more,
            may_borrow: true,
            most: FULL_DEVICE,
        }
    }

    #[test]
    fn lends_nothing_of_share_of_which_more_than_half_is_used() {
        for (used, expected) in [(55, [30, 70]), (30, [68, 70])] {
            let claims = [claim(30, 45, true), claim(70, used, false)];
            let allowed = allowances(&claims).into_iter().map(|ppm| ppm / PERCENT);
            assert_eq!(allowed.collect::<Vec<_>>(), expected, "{used}");
        }
    }

    proptest! {
        #[test]
        fn never_allows_less_than_share_or_lends_twice(
            tenants in prop::collection::vec((0_u64..=99, 0_u64..200, any::<[bool; 3]>()), 1..12),
        ) {
            let claims: Vec<LoanClaim> = tenants
                .iter()
                .map(|(percent, used, [active, demands_more, may_borrow])| LoanClaim {
                    active: *active,
                    may_borrow: *may_borrow,
                    ..claim(*percent, *used, *demands_more)
                })
                .collect();
            let allowed = allowances(&claims);
            let mut lent = 0;
            for (claim, allowed) in claims.iter().zip(&allowed) {
                let share = claim.share.unwrap_or(FULL_DEVICE);
                prop_assert!(*allowed >= share);
                lent += allowed - share;
            }
            let reserved: Ppm = claims.iter().map(LoanClaim::reserved).sum();
            prop_assert!(lent + reserved <= reserved.max(FULL_DEVICE), "{lent} {reserved}");
        }
    }
}

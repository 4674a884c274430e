//! How much of a card each of its tenants may use: its share, and of what others leave a part in
//! proportion to the shares of those that want more.
//!
//! Fed by: shares and use. Must not: allow less than the share, or lend what somebody without a
//! limit may take at any moment.

use super::{PERCENT, Ppm, WHOLE};

/// What is kept for a tenant beyond what it uses, so that it can begin to use more before that is
/// noticed.
const MARGIN: Ppm = 2 * PERCENT;

/// One tenant of the card.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Its share; `None`: nothing limits it.
    pub share: Option<Ppm>,
    /// It is at work, and need not wait for others.
    pub at_work: bool,
    /// What it uses.
    pub used: Ppm,
    /// It would use more.
    pub wants_more: bool,
    /// Others' time may be lent to it.
    pub may_borrow: bool,
}

impl Claim {
    fn borrows(&self) -> bool {
        self.at_work && self.wants_more && self.may_borrow
    }

    /// What is kept for it.
    fn kept(&self) -> Ppm {
        match self.share {
            _ if !self.at_work => 0,
            None => WHOLE,
            // Who uses much of it may be kept from the rest by somebody who takes too much.
            Some(share) if self.wants_more || 2 * self.used > share => share,
            Some(share) => share.min(self.used + MARGIN),
        }
    }
}

/// What each may use, in their order.
pub fn allowances(claims: &[Claim]) -> Vec<Ppm> {
    let kept: Ppm = claims.iter().map(Claim::kept).sum();
    let left = WHOLE.saturating_sub(kept);
    let borrowers = claims.iter().filter(|one| one.borrows());
    let shares: Ppm = borrowers.filter_map(|one| one.share).sum();
    claims
        .iter()
        .map(|one| match one.share {
            None => WHOLE,
            Some(share) if one.borrows() => share + left * share / shares.max(1),
            Some(share) => share,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(percent: Ppm, used: Ppm, wants_more: bool) -> Claim {
        Claim {
            share: (percent > 0).then_some(percent * PERCENT),
            at_work: true,
            used: used * PERCENT,
            wants_more,
            may_borrow: true,
        }
    }

    #[track_caller]
    fn check(claims: &[Claim], expected: &[Ppm]) {
        let found: Vec<Ppm> = allowances(claims).iter().map(|ppm| ppm / PERCENT).collect();
        assert_eq!(found, expected, "{claims:?}");
    }

    #[test]
    fn what_is_left_is_lent_in_proportion_to_the_shares() {
        check(&[claim(30, 30, true), claim(10, 10, true)], &[75, 25]);
        check(&[claim(50, 50, true), claim(50, 50, true)], &[50, 50]);
        check(&[claim(20, 20, true), claim(50, 8, false)], &[90, 50]);
        check(&[claim(20, 20, true), claim(50, 90, false)], &[50, 50]);
    }

    #[test]
    fn who_uses_more_than_half_of_its_share_keeps_it_all() {
        check(&[claim(30, 45, true), claim(70, 55, false)], &[30, 70]);
        check(&[claim(30, 45, true), claim(70, 30, false)], &[68, 70]);
    }

    #[test]
    fn who_must_keep_its_share_borrows_nothing_and_lends() {
        let forced = Claim {
            may_borrow: false,
            ..claim(30, 30, true)
        };
        check(&[forced, claim(20, 20, true)], &[30, 70]);
        let idle = Claim {
            at_work: false,
            ..claim(60, 0, true)
        };
        check(&[idle, forced, claim(10, 10, true)], &[60, 30, 70]);
    }

    #[test]
    fn beside_one_without_a_limit_nothing_is_lent() {
        check(&[claim(0, 0, true), claim(20, 20, true)], &[100, 20]);
    }

    proptest! {
        #[test]
        fn nobody_gets_less_than_its_share_and_no_time_is_lent_twice(
            tenants in prop::collection::vec((0_u64..=99, 0_u64..200, any::<[bool; 3]>()), 1..12),
        ) {
            let claims: Vec<Claim> = tenants
                .iter()
                .map(|(percent, used, [at_work, wants_more, may_borrow])| Claim {
                    at_work: *at_work,
                    may_borrow: *may_borrow,
                    ..claim(*percent, *used, *wants_more)
                })
                .collect();
            let allowed = allowances(&claims);
            let mut lent = 0;
            for (claim, allowed) in claims.iter().zip(&allowed) {
                let share = claim.share.unwrap_or(WHOLE);
                prop_assert!(*allowed >= share);
                lent += allowed - share;
            }
            let kept: Ppm = claims.iter().map(Claim::kept).sum();
            prop_assert!(lent + kept <= kept.max(WHOLE), "{lent} {kept}");
        }
    }
}

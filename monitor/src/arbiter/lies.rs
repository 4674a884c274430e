//! Tenants that lie in their counters: what they may gain by it, which is nothing.

use aliquot_region::host::Launches;

use super::tests::{Card, MILLISECOND, START, high, low};
use super::{Gate, PERCENT, Verdict, WHOLE, activity};

#[test]
fn whatever_a_tenant_writes_nobody_falls_below_its_share_and_the_liar_gains_nothing() {
    let honest = |card: &mut Card| {
        card.check(&[50, 50]);
    };
    honest(Card::new(&[low(30), low(30)]).pass(400));
    // It says that it does nothing, that all is done, nonsense, or that it hungers for more.
    let lies: [fn(&mut Launches, u64); 5] = [
        |said, _| *said = Launches::default(),
        |said, _| (said.busy, said.debt, said.waited) = (0, 0, 0),
        |said, now| said.busy = now.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        |said, _| {
            *said = Launches {
                debt: u64::MAX,
                until: u64::MAX,
                busy: u64::MAX,
                last: u64::MAX,
                launches: u64::MAX,
                waited: u64::MAX,
            };
        },
        |said, now| {
            said.debt = now + activity::AHEAD;
            said.until = now + activity::AHEAD;
            said.waited = now;
        },
    ];
    for lie in lies {
        let mut card = Card::new(&[low(30), low(30)]);
        for _ in 0..50 {
            let now = card.now;
            card.pass_with(20, |i, said| {
                if i == 0 {
                    lie(said, now);
                }
            });
            let [liar, other] = [0, 1].map(|i| card.verdicts[i]);
            let rate = |verdict: Verdict| verdict.trim / 100 * 30 / 10_000;
            assert!(other.gate != Gate::Wait, "{other:?}");
            assert!(
                other.gate == Gate::Unlimited || rate(other) >= 30,
                "{other:?}"
            );
            if card.now > START + 100 * MILLISECOND {
                assert!(liar.gate == Gate::Open && rate(liar) <= 50, "{liar:?}");
            }
        }
    }
}

#[test]
fn a_low_liar_is_stopped_while_a_high_one_runs_whatever_it_says() {
    let mut card = Card::new(&[low(30), high(30)]);
    card.pass_with(1_000, |i, said| {
        if i == 0 {
            *said = Launches::default();
        }
    });
    card.check(&[0, 100]);
}

#[test]
fn who_hides_its_work_is_found_by_the_drivers_measure() {
    let mut liar = low(30);
    liar.measured = Some(60 * PERCENT);
    let mut card = Card::new(&[liar, low(70)]);
    card.pass_with(8_000, |i, said| {
        if i == 0 {
            *said = Launches::default();
        }
    });
    assert_eq!(card.verdicts[1].gate, Gate::Open, "it is not alone");
    assert_eq!(card.verdicts[0].gate, Gate::Wait, "it took too much");
}

#[test]
fn two_that_were_stopped_kept_each_other_from_a_card_that_was_idle() {
    let mut taking = low(30);
    taking.measured = Some(WHOLE);
    let mut card = Card::new(&[taking, taking]);
    let all_wait = |card: &Card| card.verdicts.iter().all(|one| one.gate == Gate::Wait);
    while !all_wait(&card) {
        card.pass(20);
        assert!(
            card.now < START + 30_000 * MILLISECOND,
            "they take too much"
        );
    }
    // Of an idle card the driver lists nobody.
    for (who, _) in &mut card.tenants {
        who.measured = None;
    }
    card.pass(10_000);
    let gates: Vec<Gate> = card.verdicts.iter().map(|one| one.gate).collect();
    assert_eq!(gates, [Gate::Open; 2]);
}

#[test]
fn who_bumps_its_counters_and_computes_nothing_keeps_nobody_stopped() {
    let mut long = low(30);
    long.measured = Some(WHOLE);
    let mut card = Card::new(&[long, low(30)]);
    let bump = |card: &mut Card, milliseconds| {
        let now = card.now;
        card.pass_with(milliseconds, |i, said| {
            if i == 1 {
                (said.waited, said.launches) = (now, now);
            }
        });
    };
    while card.verdicts[0].gate != Gate::Wait {
        bump(&mut card, 20);
        assert!(card.now < START + 30_000 * MILLISECOND, "it takes too much");
    }
    card.tenants[0].0.measured = None;
    for _ in 0..500 {
        bump(&mut card, 20);
    }
    assert_eq!(card.verdicts[0].gate, Gate::Open);
}

#[test]
fn who_took_too_much_beside_one_that_comes_and_goes_was_never_found() {
    let mut card = Card::new(&[low(30), low(70)]);
    let (mut used, mut count) = (0, 0);
    for step in 0..3_000 {
        let busy = step / 50 % 2 == 0;
        card.tenants[1].0.wants = if busy { WHOLE } else { 0 };
        // What it takes whatever its rate: all that is left of the card.
        let takes = match card.verdicts[0].gate {
            Gate::Wait => 0,
            _ if busy => 50 * PERCENT,
            _ => WHOLE,
        };
        card.tenants[0].0.measured = Some(takes);
        card.pass_with(20, |i, said| {
            if i == 0 {
                *said = Launches::default();
            }
        });
        assert_ne!(card.verdicts[1].gate, Gate::Wait);
        if busy && step > 1_000 {
            used += takes / PERCENT;
            count += 1;
        }
    }
    assert!(used <= 33 * count, "{used} of {count}");
}

#[test]
fn who_was_stopped_is_lent_nothing_for_a_while() {
    let mut card = Card::new(&[low(30), low(70)]);
    card.tenants[1].0.wants = 10 * PERCENT;
    card.pass(1_000);
    let rate = |card: &Card| card.verdicts[0].trim / 100 * 30 / 10_000;
    assert!(rate(&card) > 60, "{:?}", card.verdicts);
    card.tenants[0].0.measured = Some(WHOLE);
    while card.verdicts[0].gate != Gate::Wait {
        card.pass(20);
        assert!(card.now < START + 60_000 * MILLISECOND, "it takes too much");
    }
    card.tenants[0].0.measured = Some(30 * PERCENT);
    card.pass(20);
    for _ in 0..20 {
        card.pass(1_000);
        assert!(rate(&card) <= 30, "{:?}", card.verdicts);
    }
}

//! Tenants of whom the driver measures this and that, and what becomes of their level.

use super::*;

const SHARE: Ppm = 30 * PERCENT;

fn claim(used: Ppm, wants_more: bool) -> Claim {
    Claim { used, wants_more }
}

/// Lets a tenant use `of` its rate for some seconds, measured `hertz` times in each; what it
/// used of the card on average over the later half, in percent.
fn run(hertz: u64, takes: impl Fn(&Level) -> Ppm) -> (Ppm, Level) {
    let mut level = Level::default();
    let (mut sum, mut count) = (0, 0);
    for step in 1..60 * hertz {
        let now = 100 * SECOND + step * SECOND / hertz;
        let used = if level.is_above() { 0 } else { takes(&level) };
        let measured = Measured { used, at: now };
        level.look(Some(measured), SHARE, claim(used, true), now);
        if step > 30 * hertz {
            sum += used;
            count += 1;
        }
    }
    (sum / count / PERCENT, level)
}

#[test]
fn a_rate_is_corrected_until_the_measure_is_the_allowance() {
    for (hertz, factor) in [(1, 80), (4, 80), (4, 140), (1, 120)] {
        let rate = |level: &Level| Ppm::from(level.trim(SHARE, SHARE)) * 30 / 100 * factor / 100;
        let (got, level) = run(hertz, rate);
        assert!(
            (29..=31).contains(&got),
            "{hertz} {factor}: {got} {level:?}"
        );
        assert!(!level.is_above());
    }
}

#[test]
fn who_takes_all_whatever_its_rate_is_gets_its_share() {
    for hertz in [1, 4] {
        let (got, level) = run(hertz, |_| WHOLE);
        assert!((27..=31).contains(&got), "{hertz}: {got} {level:?}");
    }
}

#[test]
fn who_says_that_it_does_nothing_is_stopped_sooner() {
    let seconds = |said: Ppm| {
        let mut level = Level::default();
        (1..100).find(|second| {
            let now = (100 + second) * SECOND;
            let measured = Measured {
                used: SHARE + 8 * PERCENT,
                at: now,
            };
            level.look(Some(measured), SHARE, claim(said, true), now);
            level.is_above()
        })
    };
    assert_eq!((seconds(0), seconds(SHARE)), (Some(10), Some(13)));
    let mut level = Level::default();
    for second in 1..100 {
        let now = (100 + second) * SECOND;
        let measured = Measured {
            used: SHARE + 2 * PERCENT,
            at: now,
        };
        level.look(Some(measured), SHARE, claim(SHARE, true), now);
    }
    assert!(!level.is_above(), "two points may be the measure's fault");
}

/// What became of a tenant.
#[derive(Debug)]
struct Played {
    /// Percent of the card: what it was allowed and what it used, over the later half.
    allowed: u64,
    used: u64,
    /// Looks at which it was above.
    stopped: u32,
}

/// Lets a tenant whose allowance changes, by the millisecond, take what it takes of it, while the
/// driver tells of it late, twice a second and of the last 160 ms only. Where it is allowed
/// [`WHOLE`] it is alone, and nothing stops it.
fn play(late: u64, allows: impl Fn(u64) -> Ppm, takes: impl Fn(Ppm) -> Ppm) -> Played {
    const TICK: u64 = 20;
    const TICKS: u64 = 240_000 / TICK;
    let mut level = Level::default();
    let mut past: Vec<Ppm> = Vec::new();
    let (mut allowed_sum, mut used_sum, mut stopped) = (0, 0, 0);
    let mut measured = None;
    let skipped = usize::try_from(late / TICK).expect("few");
    for step in 0..TICKS {
        let now = 100 * SECOND + step * TICK * MILLISECOND;
        let allowed = allows(step * TICK);
        if step % 25 == 0 {
            let told = past.iter().rev().skip(skipped).take(8);
            let used = told.sum::<Ppm>() / 8;
            measured = Some(Measured { used, at: now });
        }
        if allowed == WHOLE {
            level.rest(measured, allowed, now);
        } else {
            level.look(measured, allowed, claim(allowed, true), now);
        }
        let waits = level.is_above() && allowed < WHOLE;
        stopped += u32::from(waits);
        let used = if waits { 0 } else { takes(allowed) };
        past.push(used);
        if step >= TICKS / 2 {
            allowed_sum += allowed;
            used_sum += used;
        }
    }
    let percent = |sum: Ppm| sum / (TICKS / 2) / PERCENT;
    Played {
        allowed: percent(allowed_sum),
        used: percent(used_sum),
        stopped,
    }
}

/// Allowances that change: others come and go, or leave a part.
const CHANGES: [fn(u64) -> Ppm; 6] = [
    |_| SHARE,
    |ms| if ms % 2_000 < 1_000 { SHARE } else { WHOLE },
    |ms| if ms % 10_000 < 7_000 { SHARE } else { WHOLE },
    |ms| if ms % 3_100 < 3_000 { SHARE } else { WHOLE },
    |ms| if ms % 5_000 < 2_600 { SHARE } else { 2 * SHARE },
    |ms| SHARE + PERCENT * (ms / 20 % 40),
];

#[test]
fn who_takes_more_than_it_may_is_held_however_its_allowance_changes() {
    for (i, allows) in CHANGES.into_iter().enumerate() {
        for late in [0, 160, 700, 1_500, 1_980] {
            // All of the card, or its turns among two.
            for contested in [WHOLE, 50 * PERCENT] {
                let takes = |allowed: Ppm| if allowed == WHOLE { WHOLE } else { contested };
                let played = play(late, allows, takes);
                assert!(
                    played.used <= played.allowed + 3,
                    "{i} {late} {contested}: {played:?}"
                );
            }
        }
    }
}

#[test]
fn whose_allowance_fell_is_not_charged_for_the_past() {
    for (i, allows) in CHANGES.into_iter().enumerate() {
        for late in (0..2_000).step_by(100) {
            let played = play(late, allows, |allowed| allowed);
            assert_eq!(played.stopped, 0, "{i} {late}: {played:?}");
        }
    }
    let played = play(
        1_900,
        |ms| if ms < 60_000 { WHOLE } else { SHARE },
        |all| all,
    );
    assert_eq!(played.stopped, 0, "it was alone for a minute: {played:?}");
}

#[test]
fn who_heeded_no_gate_for_long_was_stopped_for_hours() {
    let mut level = Level::default();
    let mut now = 100 * SECOND;
    let mut look = |level: &mut Level, used| {
        now += SECOND / 2;
        let measured = Measured { used, at: now };
        level.look(Some(measured), SHARE, claim(0, true), now);
    };
    for _ in 0..10_000 {
        look(&mut level, WHOLE);
    }
    assert!(level.is_above());
    // It ended, and another process of that container begins.
    let looks = (1..100).find(|_| {
        look(&mut level, 0);
        !level.is_above()
    });
    assert!(looks.is_some_and(|looks| looks < 25), "{looks:?}");
}

#[test]
fn who_was_stopped_was_held_for_ever_on_a_card_that_went_idle() {
    let mut level = Level::default();
    let mut now = 100 * SECOND;
    while !level.is_above() {
        now += SECOND;
        let measured = Measured {
            used: WHOLE,
            at: now,
        };
        level.look(Some(measured), SHARE, claim(SHARE, true), now);
    }
    let last = Measured {
        used: WHOLE,
        at: now,
    };
    let stopped = now;
    while level.is_above() && now < stopped + 60 * SECOND {
        now += 20 * MILLISECOND;
        level.look(Some(last), SHARE, claim(0, true), now);
    }
    let seconds = (now - stopped) / SECOND;
    assert!((2..=8).contains(&seconds), "{seconds}: {level:?}");
}

#[test]
fn what_is_measured_of_another_allowance_corrects_nothing() {
    // It was alone until now, and the driver tells late.
    let mut level = Level::default();
    level.rest(None, WHOLE, 99 * SECOND);
    for step in 1..=3 {
        let now = 100 * SECOND + step * SECOND / 2;
        let measured = Measured {
            used: WHOLE,
            at: now,
        };
        level.look(Some(measured), SHARE, claim(SHARE, true), now);
    }
    assert_eq!(level.trim(SHARE, SHARE), 1_000_000);
    assert!(!level.is_above());
}

#[test]
fn who_has_just_begun_is_not_pushed_up_by_a_measure_that_is_late() {
    let mut level = Level::default();
    let mut look = |second: u64, used, wants_more| {
        let at = (100 + second) * SECOND;
        level.look(
            Some(Measured { used, at }),
            SHARE,
            claim(used, wants_more),
            at,
        );
        level.trim(SHARE, SHARE)
    };
    for second in 1..10 {
        assert_eq!(look(second, 0, false), 1_000_000);
    }
    assert_eq!(look(10, 0, true), 1_000_000);
    assert_eq!(look(11, 0, true), 1_000_000);
    assert!(look(12, 0, true) > 1_000_000);
}

#[test]
fn who_does_not_want_more_is_not_pushed_up() {
    let mut level = Level::default();
    for second in 1..60 {
        let measured = Measured {
            used: PERCENT,
            at: second * SECOND,
        };
        level.look(
            Some(measured),
            SHARE,
            claim(PERCENT, false),
            second * SECOND,
        );
    }
    assert_eq!(level.trim(SHARE, SHARE), 1_000_000);
    assert_eq!(level.trim(3 * SHARE, SHARE), 3_000_000, "what is lent");
}

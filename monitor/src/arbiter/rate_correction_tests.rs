//! Rate corrections of tenants with given measurements.

use super::*;

const SHARE: Ppm = 30 * PERCENT;

fn reported(used: Ppm, demands_more: bool) -> ReportedUse {
    ReportedUse {
        used,
        average: used,
        demands_more,
    }
}

/// The factor of a tenant with [`SHARE`] that demands more, measured at this time to use `used` of
/// the device, of which `charged` was charged.
fn update(rate: &mut RateCorrection, at: u64, used: Ppm, charged: Ppm) -> u32 {
    let measured = Some(Measurement { used, at });
    rate.update(measured, [SHARE; 2], reported(charged, true), at);
    rate.factor(SHARE, SHARE)
}

/// Lets a tenant use what `takes` returns for a minute, measured `hertz` times a second; returns its
/// average use of the device over the second half, in percent.
fn run(hertz: u64, takes: impl Fn(&RateCorrection) -> Ppm) -> (Ppm, RateCorrection) {
    let mut rate = RateCorrection::default();
    let (mut sum, mut count) = (0, 0);
    for step in 1..60 * hertz {
        let now = 100 * SECOND + step * SECOND / hertz;
        let used = if rate.is_stopped() { 0 } else { takes(&rate) };
        let charged = Ppm::from(rate.factor(SHARE, SHARE)) * 30 / 100;
        update(&mut rate, now, used, charged);
        if step > 30 * hertz {
            sum += used;
            count += 1;
        }
    }
    (sum / count / PERCENT, rate)
}

#[test]
fn corrects_rate_until_measurement_matches_allowance() {
    for (hertz, factor) in [(1, 80), (4, 80), (4, 140), (1, 120)] {
        let rate =
            |rate: &RateCorrection| Ppm::from(rate.factor(SHARE, SHARE)) * 30 / 100 * factor / 100;
        let (got, rate) = run(hertz, rate);
        assert!((29..=31).contains(&got), "{hertz} {factor}: {got} {rate:?}");
        assert!(!rate.is_stopped());
    }
}

#[test]
fn stops_tenant_with_false_counters_sooner() {
    let seconds = |used: Ppm, claimed: Ppm| {
        let mut rate = RateCorrection::default();
        (1..100).find(|second| {
            update(&mut rate, (100 + second) * SECOND, SHARE + used, claimed);
            rate.is_stopped()
        })
    };
    let excess = 8 * PERCENT;
    let found = (seconds(excess, 0), seconds(excess, SHARE));
    assert_eq!(found, (Some(10), Some(13)));
    // Two points may be an error of measurement.
    assert_eq!(seconds(2 * PERCENT, SHARE), None);
}

/// The outcome for a tenant.
#[derive(Debug)]
struct RateOutcome {
    /// Percent of the device: what it was allowed and what it used, over the second half.
    allowed: u64,
    used: u64,
    /// Samples in which it was stopped.
    stopped: u32,
}

/// Lets a tenant whose allowance changes, by the millisecond, use what `takes` returns, while the
/// driver reports it with a delay, twice a second and for the last 160 ms only. While it is allowed
/// [`FULL_DEVICE`] it is alone, and nothing stops it.
fn play(delay: u64, allows: impl Fn(u64) -> Ppm, takes: impl Fn(Ppm) -> Ppm) -> RateOutcome {
    const TICK: u64 = 20;
    const TICKS: u64 = 240_000 / TICK;
    let mut rate = RateCorrection::default();
    let mut past: Vec<Ppm> = Vec::new();
    let (mut allowed_sum, mut used_sum, mut stopped) = (0, 0, 0);
    let mut measured = None;
    let skipped = usize::try_from(delay / TICK).expect("few");
    for step in 0..TICKS {
        let now = 100 * SECOND + step * TICK * MILLISECOND;
        let allowed = allows(step * TICK);
        if step % 25 == 0 {
            let reported_uses = past.iter().rev().skip(skipped).take(8);
            let used = reported_uses.sum::<Ppm>() / 8;
            measured = Some(Measurement { used, at: now });
        }
        if allowed == FULL_DEVICE {
            rate.unlimited_sample(measured, allowed, now);
        } else {
            rate.update(measured, [allowed; 2], reported(allowed, true), now);
        }
        let waits = rate.is_stopped() && allowed < FULL_DEVICE;
        stopped += u32::from(waits);
        let used = if waits { 0 } else { takes(allowed) };
        past.push(used);
        if step >= TICKS / 2 {
            allowed_sum += allowed;
            used_sum += used;
        }
    }
    let percent = |sum: Ppm| sum / (TICKS / 2) / PERCENT;
    RateOutcome {
        allowed: percent(allowed_sum),
        used: percent(used_sum),
        stopped,
    }
}

/// The share for the first part of each period, then all of the device.
const fn in_turn(ms: u64, period: u64, shared: u64) -> Ppm {
    let is_shared = ms % period < shared;
    if is_shared { SHARE } else { FULL_DEVICE }
}

/// Allowances that change: other tenants come and go, or leave a part.
const CHANGES: [fn(u64) -> Ppm; 6] = [
    |_| SHARE,
    |ms| in_turn(ms, 2_000, 1_000),
    |ms| in_turn(ms, 10_000, 7_000),
    |ms| in_turn(ms, 3_100, 3_000),
    |ms| if ms % 5_000 < 2_600 { SHARE } else { 2 * SHARE },
    |ms| SHARE + PERCENT * (ms / 20 % 40),
];

#[test]
fn limits_excess_use_under_changing_allowance() {
    for (i, allows) in CHANGES.into_iter().enumerate() {
        for delay in [0, 160, 700, 1_500, 1_980] {
            // All of the device, or half of it.
            for contested in [FULL_DEVICE, 50 * PERCENT] {
                let is_alone = |allowed| allowed == FULL_DEVICE;
                let takes = |allowed| {
                    if is_alone(allowed) {
                        allowed
                    } else {
                        contested
                    }
                };
                let outcome = play(delay, allows, takes);
                let is_limited = outcome.used <= outcome.allowed + 3;
                assert!(is_limited, "{i} {delay} {contested}: {outcome:?}");
            }
        }
    }
}

#[test]
fn does_not_stop_tenant_after_its_allowance_falls() {
    for (i, allows) in CHANGES.into_iter().enumerate() {
        for delay in (0..2_000).step_by(100) {
            let outcome = play(delay, allows, |allowed| allowed);
            assert_eq!(outcome.stopped, 0, "{i} {delay}: {outcome:?}");
        }
    }
    let for_a_minute = |ms| if ms < 60_000 { FULL_DEVICE } else { SHARE };
    let outcome = play(1_900, for_a_minute, |all| all);
    assert_eq!(outcome.stopped, 0, "it was alone for a minute: {outcome:?}");
}

#[test]
fn releases_tenant_soon_after_long_excess() {
    let mut rate = RateCorrection::default();
    let mut now = 100 * SECOND;
    let mut sample = |rate: &mut RateCorrection, used| {
        now += SECOND / 2;
        update(rate, now, used, 0);
    };
    for _ in 0..10_000 {
        sample(&mut rate, FULL_DEVICE);
    }
    assert!(rate.is_stopped());
    // It ended, and another process of that container starts.
    let samples = (1..100).find(|_| {
        sample(&mut rate, 0);
        !rate.is_stopped()
    });
    assert!(samples.is_some_and(|samples| samples < 25), "{samples:?}");
}

#[test]
fn releases_stopped_tenant_on_idle_gpu() {
    let mut rate = RateCorrection::default();
    let mut now = 100 * SECOND;
    while !rate.is_stopped() {
        now += SECOND;
        update(&mut rate, now, FULL_DEVICE, SHARE);
    }
    let last = Measurement {
        used: FULL_DEVICE,
        at: now,
    };
    let stopped = now;
    while rate.is_stopped() && now < stopped + 60 * SECOND {
        now += 20 * MILLISECOND;
        rate.update(Some(last), [SHARE; 2], reported(0, true), now);
    }
    let seconds = (now - stopped) / SECOND;
    assert!((2..=8).contains(&seconds), "{seconds}: {rate:?}");
}

#[test]
fn ignores_measurement_of_earlier_allowance() {
    // It was alone until now, and the driver reports with a delay.
    let mut rate = RateCorrection::default();
    rate.unlimited_sample(None, FULL_DEVICE, 99 * SECOND);
    for step in 1..=3 {
        let now = 100 * SECOND + step * SECOND / 2;
        assert_eq!(update(&mut rate, now, FULL_DEVICE, SHARE), 1_000_000);
    }
    assert!(!rate.is_stopped());
}

#[test]
fn does_not_raise_rate_by_late_measurement() {
    let mut rate = RateCorrection::default();
    let mut update = |second: u64, used, demands_more| {
        let at = (100 + second) * SECOND;
        let charged = if demands_more { SHARE } else { used };
        let measured = Some(Measurement { used, at });
        rate.update(measured, [SHARE; 2], reported(charged, demands_more), at);
        rate.factor(SHARE, SHARE)
    };
    for second in 1..10 {
        assert_eq!(update(second, 0, false), 1_000_000);
    }
    assert_eq!(update(10, 0, true), 1_000_000);
    assert_eq!(update(11, 0, true), 1_000_000);
    assert!(update(12, 0, true) > 1_000_000);
}

#[test]
fn does_not_raise_rate_of_tenant_charged_for_what_it_uses() {
    let mut rate = RateCorrection::default();
    let mut update = |second: u64, used, charged, limit| {
        let at = (100 + second) * SECOND;
        let measured = Measurement { used, at };
        rate.update(Some(measured), [SHARE, limit], reported(charged, true), at);
        rate.factor(SHARE, SHARE)
    };
    // The device is saturated.
    let less = 26 * PERCENT;
    for second in 1..60 {
        let rate = update(second, less, less, 27 * PERCENT);
        assert!((980_000..=1_000_000).contains(&rate), "{second}: {rate}");
    }
    // It was charged twice, and then no more.
    let highest = (60..90).map(|second| update(second, 15 * PERCENT, SHARE, SHARE));
    assert!(highest.max() > Some(1_500_000));
    for second in 90..150 {
        update(second, less, less, 27 * PERCENT);
    }
    assert!(update(150, less, less, 27 * PERCENT) < 1_050_000);
}

#[test]
fn does_not_raise_rate_without_demand() {
    let mut rate = RateCorrection::default();
    for at in (1..60).map(|second| second * SECOND) {
        let used = PERCENT;
        let measured = Some(Measurement { used, at });
        rate.update(measured, [SHARE; 2], reported(used, false), at);
    }
    assert_eq!(rate.factor(SHARE, SHARE), 1_000_000);
    assert_eq!(rate.factor(3 * SHARE, SHARE), 3_000_000, "what is lent");
}

#[test]
fn sums_allowance_over_any_interval() {
    let mut allowed = AllowanceHistory::default();
    let check = |allowed: &AllowanceHistory, from: u64, to: u64, expected: u64| {
        let found = allowed.between(from * SECOND / 10, to * SECOND / 10);
        assert_eq!(found, expected * SECOND / 100, "{from} to {to}");
    };
    check(&allowed, 0, 20, 200);
    allowed.note(30 * PERCENT, SECOND);
    allowed.note(30 * PERCENT, 2 * SECOND);
    allowed.note(50 * PERCENT, 3 * SECOND);
    check(&allowed, 0, 10, 100);
    check(&allowed, 5, 15, 65);
    check(&allowed, 10, 30, 60);
    check(&allowed, 5, 40, 50 + 60 + 50);
    check(&allowed, 35, 40, 25);
    check(&allowed, 40, 40, 0);
    check(&allowed, 40, 30, 0);
}

#[test]
fn discards_old_allowances() {
    let mut allowed = AllowanceHistory::default();
    for step in 0..1_000 {
        allowed.note((20 + step % 2) * PERCENT, step * SECOND / 50);
    }
    assert!(allowed.marks.len() < 260, "{}", allowed.marks.len());
    let sum = allowed.between(16 * SECOND, 18 * SECOND);
    assert_eq!(sum, 41 * SECOND / 100);
}

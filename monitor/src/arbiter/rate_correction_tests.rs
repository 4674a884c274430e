//! Rate corrections of tenants with given measurements.

use super::*;

const SHARE: Ppm = 30 * PERCENT;

#[expect(clippy::unnecessary_wraps, reason = "as a sample has it")]
fn measured(used: Ppm, at: u64) -> Option<Measurement> {
    Some(Measurement {
        used,
        at,
        is_late: false,
        processes: 1,
    })
}

/// A tenant with [`SHARE`] that is measured.
#[derive(Debug, Default)]
struct Measured {
    rate: RateCorrection,
    at: u64,
    charged: u64,
}

impl Measured {
    /// Its factor when it is measured at this time to use `used` of the device, of which `charged` was
    /// charged.
    fn update(&mut self, at: u64, used: Ppm, charged: Ppm) -> u32 {
        let passed = (at - self.at).min(SECOND);
        self.at = at;
        self.charged += charged * passed / FULL_DEVICE;
        let measured = measured(used, at);
        self.rate.update(measured, SHARE, self.charged, at);
        self.rate.factor(SHARE, SHARE)
    }
}

/// Lets a tenant use what `takes` returns for a minute, measured `hertz` times a second; returns its
/// average use of the device over the second half, in percent.
fn run(hertz: u64, takes: impl Fn(&RateCorrection) -> Ppm) -> (Ppm, RateCorrection) {
    let mut tenant = Measured::default();
    let (mut sum, mut count) = (0, 0);
    for step in 1..60 * hertz {
        let now = 100 * SECOND + step * SECOND / hertz;
        let rate = &tenant.rate;
        let used = if rate.is_stopped() { 0 } else { takes(rate) };
        let charged = Ppm::from(rate.factor(SHARE, SHARE)) * 30 / 100;
        tenant.update(now, used, charged);
        if step > 30 * hertz {
            sum += used;
            count += 1;
        }
    }
    (sum / count / PERCENT, tenant.rate)
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
fn forgets_correction_slowly_when_measurement_matches_charge() {
    let mut tenant = Measured::default();
    let mut factor_at = |second: u64, used| tenant.update((100 + second) * SECOND, used, SHARE);
    let found = (1..60)
        .map(|second| factor_at(second, SHARE * 9 / 10))
        .last();
    // The error of a percent or two may be due to rounding.
    let later = (60..64)
        .map(|second| factor_at(second, SHARE * 49 / 50))
        .last();
    assert_eq!(found.zip(later), Some((1_090_817, 1_052_890)));
}

#[test]
fn adds_what_whole_percents_of_each_process_lack() {
    let corrects = |processes| {
        let mut rate = RateCorrection::default();
        for step in 1..60 {
            let at = 100 * SECOND + step * SECOND / 2;
            let found = measured(82 * PERCENT, at).map(|found| Measurement { processes, ..found });
            let charged = step * SECOND / 2 * 80 / 100;
            rate.update(found, 80 * PERCENT, charged, at);
        }
        rate.correction.is_some_and(|found| found < FULL_DEVICE)
    };
    assert_eq!([1, 4].map(corrects), [false, true]);
}

#[test]
fn stops_tenant_with_false_counters_sooner() {
    let seconds = |used: Ppm, claimed: Ppm| {
        let mut tenant = Measured::default();
        (1..100).find(|second| {
            tenant.update((100 + second) * SECOND, SHARE + used, claimed);
            tenant.rate.is_stopped()
        })
    };
    let excess = 8 * PERCENT;
    let found = (seconds(excess, 0), seconds(excess, SHARE));
    assert_eq!(found, (Some(10), Some(13)));
    // Two points may be an error of measurement.
    assert_eq!(seconds(2 * PERCENT, SHARE), None);
}

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
    let (mut last, mut charged) = (None, 0);
    let skipped = usize::try_from(delay / TICK).expect("few");
    for step in 0..TICKS {
        let now = 100 * SECOND + step * TICK * MILLISECOND;
        let allowed = allows(step * TICK);
        if step % 25 == 0 {
            let reported_uses = past.iter().rev().skip(skipped).take(8);
            let used = reported_uses.sum::<Ppm>() / 8;
            last = measured(used, now);
        }
        if allowed == FULL_DEVICE {
            rate.unlimited_sample(last, allowed, now);
        } else {
            charged += allowed * TICK * MILLISECOND / FULL_DEVICE;
            rate.update(last, allowed, charged, now);
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
    let mut tenant = Measured::default();
    let mut now = 100 * SECOND;
    let mut sample = |tenant: &mut Measured, used| {
        now += SECOND / 2;
        tenant.update(now, used, 0);
    };
    for _ in 0..10_000 {
        sample(&mut tenant, FULL_DEVICE);
    }
    assert!(tenant.rate.is_stopped());
    // It ended, and another process of that container starts.
    let samples = (1..100).find(|_| {
        sample(&mut tenant, 0);
        !tenant.rate.is_stopped()
    });
    assert!(samples.is_some_and(|samples| samples < 25), "{samples:?}");
}

#[test]
fn releases_stopped_tenant_on_idle_gpu() {
    let mut tenant = Measured::default();
    let mut now = 100 * SECOND;
    while !tenant.rate.is_stopped() {
        now += SECOND;
        tenant.update(now, FULL_DEVICE, SHARE);
    }
    let last = measured(FULL_DEVICE, now);
    let stopped = now;
    let Measured { rate, charged, .. } = &mut tenant;
    while rate.is_stopped() && now < stopped + 60 * SECOND {
        now += 20 * MILLISECOND;
        rate.update(last, SHARE, *charged, now);
    }
    let seconds = (now - stopped) / SECOND;
    assert!((2..=8).contains(&seconds), "{seconds}: {rate:?}");
}

#[test]
fn slow_samples_do_not_raise_rate() {
    let mut rate = RateCorrection::default();
    let (mut charged, mut last) = (0, None);
    for tick in 1..3_000 {
        let now = 100 * SECOND + tick * 20 * MILLISECOND;
        charged += SHARE * 20 * MILLISECOND / FULL_DEVICE;
        // The driver takes three seconds to answer.
        if tick % 150 == 0 {
            last = measured(SHARE, now);
        }
        rate.update(last, SHARE, charged, now);
        assert_eq!(rate.factor(SHARE, SHARE), 1_000_000, "{tick}: {rate:?}");
    }
}

#[test]
fn forged_charges_stay_within_bounds() {
    let mut rate = RateCorrection::default();
    for second in 1..60 {
        let at = (100 + second) * SECOND;
        rate.update(measured(SHARE, at), SHARE, u64::MAX / 60 * second, at);
        assert!(rate.factor(SHARE, SHARE) <= 4_000_000, "{rate:?}");
    }
}

#[test]
fn late_measurement_counts_neither_use_nor_charge() {
    let mut rate = RateCorrection::default();
    let mut charged = 0;
    for quarter in 1..240 {
        let at = 100 * SECOND + quarter * SECOND / 4;
        // It works every other half second.
        let is_late = quarter % 4 >= 2;
        if !is_late {
            charged += 2 * SHARE * (SECOND / 4) / FULL_DEVICE;
        }
        let found = measured(2 * SHARE, at).map(|found| Measurement { is_late, ..found });
        rate.update(found, SHARE, charged, at);
        assert_eq!(rate.factor(SHARE, SHARE), 1_000_000, "{rate:?}");
    }
}

//! Tenants that forge their counters gain nothing.

use aliquot_region::host::LaunchCounters;

use super::tests::{MILLISECOND, START, SimulatedGpu, high, low};
use super::{FULL_DEVICE, PERCENT, TenantDecision, ThrottleFlag, activity};

#[test]
fn forged_counters_gain_nothing_and_harm_nobody() {
    let mut honest = SimulatedGpu::new(&[low(30), low(30)]);
    honest.pass(400).check(&[50, 50]);
    // No work, all work done, nonsense, or more demand.
    let false_counters: [fn(&mut LaunchCounters, u64); 5] = [
        |counters, _| *counters = LaunchCounters::default(),
        |counters, _| (counters.busy, counters.debt, counters.waited) = (0, 0, 0),
        |counters, now| counters.busy = now.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        |counters, _| {
            *counters = LaunchCounters {
                debt: u64::MAX,
                until: u64::MAX,
                busy: u64::MAX,
                last: u64::MAX,
                launches: u64::MAX,
                waited: u64::MAX,
                contended: u64::MAX,
                running: u64::MAX,
            };
        },
        |counters, now| {
            counters.debt = now + activity::AHEAD;
            counters.until = now + activity::AHEAD;
            counters.waited = now;
        },
    ];
    for falsify in false_counters {
        let mut gpu = SimulatedGpu::new(&[low(30), low(30)]);
        for _ in 0..50 {
            let now = gpu.now;
            gpu.pass_with(20, |i, counters| {
                if i == 0 {
                    falsify(counters, now);
                }
            });
            let [forger, other] = [0, 1].map(|i| gpu.decisions[i]);
            let rate = |decision: TenantDecision| decision.rate_correction / 100 * 30 / 10_000;
            assert_ne!(other.throttle, ThrottleFlag::Wait, "{other:?}");
            assert!(
                other.throttle == ThrottleFlag::Unlimited || rate(other) >= 30,
                "{other:?}"
            );
            if gpu.now > START + 100 * MILLISECOND {
                assert!(
                    forger.throttle == ThrottleFlag::Open && rate(forger) <= 50,
                    "{forger:?}"
                );
            }
        }
    }
}

/// The first tenant claims to do nothing.
fn hides(tenant: usize, counters: &mut LaunchCounters) {
    if tenant == 0 {
        *counters = LaunchCounters::default();
    }
}

#[test]
fn forged_low_priority_waits_while_high_priority_runs() {
    let mut gpu = SimulatedGpu::new(&[low(30), high(30)]);
    gpu.pass_with(1_000, hides).check(&[0, 100]);
}

#[test]
fn lends_nothing_to_recently_stopped_tenant() {
    let mut gpu = SimulatedGpu::new(&[low(30), low(70)]);
    gpu.tenants[1].0.wants = 10 * PERCENT;
    gpu.pass(1_000);
    let rate = |gpu: &SimulatedGpu| gpu.decisions[0].rate_correction / 100 * 30 / 10_000;
    assert!(rate(&gpu) > 60, "{:?}", gpu.decisions);
    gpu.tenants[0].0.measured = Some(FULL_DEVICE);
    while gpu.decisions[0].throttle != ThrottleFlag::Wait {
        gpu.pass(20);
        assert!(gpu.now < START + 60_000 * MILLISECOND, "it takes too much");
    }
    gpu.tenants[0].0.measured = Some(30 * PERCENT);
    gpu.pass(20);
    for _ in 0..20 {
        gpu.pass(1_000);
        assert!(rate(&gpu) <= 30, "{:?}", gpu.decisions);
    }
}

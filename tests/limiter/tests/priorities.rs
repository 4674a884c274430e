//! Priorities, policies and loans on a simulated GPU, with the host's arbiter and real processes
//! behind `libvgpu.so`. Simulated: no figure is of a real GPU.

use std::time::Duration;

use aliquot_limiter_tests::host::HostRole;
use aliquot_limiter_tests::share::{ShareScenario, TenantResult, holds_once_of_three, run};
use aliquot_limiter_tests::throttle;
use aliquot_limiter_tests::workers::{ShareTenant, tenant};
use parking_lot::Mutex;

const FORCE: u32 = 1;
const DISABLE: u32 = 2;
const HIGH: u32 = 0;
const LOW: u32 = 1;

/// One scene at a time, because they measure time.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

fn play(tenants: Vec<ShareTenant>, warm_up: u64, windows: usize) -> Vec<TenantResult> {
    play_with(HostRole::Arbiter, tenants, warm_up, windows)
}

fn play_with(
    host: HostRole,
    tenants: Vec<ShareTenant>,
    warm_up: u64,
    windows: usize,
) -> Vec<TenantResult> {
    let _exclusive = EXCLUSIVE.lock();
    let mut scene = ShareScenario::seconds(windows, tenants);
    scene.warm_up = Duration::from_secs(warm_up);
    scene.host = host;
    run(&scene).expect("every call of every process succeeds")
}

fn low(cores: u32) -> ShareTenant {
    tenant(cores, "plain k_ms_1").priority(LOW)
}

fn high(cores: u32) -> ShareTenant {
    tenant(cores, "plain k_ms_1").priority(HIGH)
}

/// Each tenant gets this percentage of the GPU while all are busy.
#[track_caller]
fn check(tenants: &[ShareTenant], expected: &[f64], within: f64) {
    let what = format!("{expected:?} of {tenants:?}");
    holds_once_of_three(
        &what,
        || play(tenants.to_vec(), 3, 3),
        |got| {
            let mut all = got.iter().zip(expected);
            all.all(|(got, expected)| {
                // A machine that runs all tests at once feeds the GPU less; a set throttle flag
                // stays set.
                let most = if *expected < 1.0 { 3.0 } else { within };
                got.deviation(*expected).abs() <= most
            })
        },
    );
}

#[test]
fn limits_single_tenant_by_policy() {
    check(&[low(30)], &[100.0], 15.0);
    check(&[low(30).policy(FORCE)], &[30.0], 2.0);
    check(&[low(30).policy(DISABLE)], &[100.0], 15.0);
}

#[test]
fn does_not_limit_high_priority_tenants_by_themselves() {
    check(&[high(20), high(20)], &[50.0, 50.0], 6.0);
}

#[test]
fn yields_to_running_tenant_of_high_priority() {
    check(&[low(50), high(30)], &[0.0, 100.0], 15.0);
    check(&[low(50).policy(DISABLE), high(30)], &[0.0, 100.0], 15.0);
}

#[test]
fn resumes_low_priority_when_high_priority_idles() {
    holds_once_of_three(
        "alone at first, then it waits, and goes on",
        || play(vec![low(50), high(30).from_to(3, 5)], 1, 6),
        |got| {
            let windows = &got[0].windows;
            windows[0] > 90.0 && windows[3] < 10.0 && windows[5] > 90.0
        },
    );
}

#[test]
fn high_priority_takes_no_more_than_the_cap() {
    holds_once_of_three(
        "low priority waits for five seconds, then both get their shares",
        || play_with(HostRole::CappedArbiter(50), vec![low(50), high(50)], 1, 8),
        |got| {
            let windows = &got[0].windows;
            let waits = windows[..3].iter().all(|got| *got < 10.0);
            // The rate settles within two seconds.
            waits && windows[6..8].iter().all(|got| (got - 50.0).abs() < 15.0)
        },
    );
}

#[test]
fn lends_idle_compute_by_shares() {
    check(&[low(30), low(10)], &[75.0, 25.0], 12.0);
    check(&[low(30), low(20).policy(FORCE)], &[80.0, 20.0], 12.0);
}

#[test]
fn takes_back_lent_compute() {
    holds_once_of_three(
        "all of it, then its share, and all again",
        || play(vec![low(20), low(80).from_to(3, 7)], 1, 8),
        |got| {
            let windows = &got[0].windows;
            let shared = windows[3..5].iter().all(|got| (got - 20.0).abs() < 6.0);
            windows[0] > 90.0 && shared && windows[7] > 90.0
        },
    );
}

#[test]
fn keeps_average_share_of_tenant_that_forges_bucket() {
    // A machine that gives its neighbour no processor gives it more: then once more.
    holds_once_of_three(
        "who writes its own bucket, and its neighbour",
        || {
            let forger = tenant(30, "forge k_ms_1").priority(LOW);
            // Stopped for the first time within six seconds, and every few seconds then.
            play(vec![forger, low(70)], 8, 16)
        },
        // Time slicing alone would give each a half.
        |got| got[0].mean() < 36.0 && got[1].mean() > got[0].mean() + 12.0,
    );
}

#[test]
fn applies_throttle_flag_within_50_ms() {
    let _exclusive = EXCLUSIVE.lock();
    // Within 50 ms plus a kernel of one, 99 times out of 100.
    holds_once_of_three(
        "the throttle flag",
        || throttle::measure_latency(Duration::from_secs(12)).expect("a scene"),
        |latency| {
            let all: Vec<f64> = latency
                .throttled
                .iter()
                .chain(&latency.released)
                .copied()
                .collect();
            latency.throttled.len() > 5
                && latency.released.len() > 5
                && throttle::percentile(&all, 99) <= 51.0
                && throttle::percentile(&latency.yielded, 50) <= 101.0
        },
    );
}

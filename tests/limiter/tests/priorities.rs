//! Priorities, policies and loans on a simulated GPU, with the host's arbiter and real processes
//! behind `libvgpu.so`. Simulated: no figure is of a real GPU.

use std::time::Duration;

use aliquot_limiter_tests::host::HostRole;
use aliquot_limiter_tests::share::{
    ShareScenario, TenantResult, Verdict, run, shares_hold_unless_starved,
};
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
    shares_hold_unless_starved(
        &what,
        || play(tenants.to_vec(), 3, 3),
        |got| {
            Verdict::within(got.iter().enumerate().map(|(n, one)| {
                let others = got.iter().zip(expected.iter().copied()).enumerate();
                let others = others.filter(|(other, _)| *other != n);
                let others: Vec<_> = others.map(|(_, other)| other).collect();
                // A set throttle flag stays set.
                let most = if expected[n] < 1.0 { 3.0 } else { within };
                (one.deviation_beside(expected[n], &others), [-most, most])
            }))
        },
    );
}

/// Percent of the GPU in this window, without what the other one of two tenants may have left because
/// the machine gave it no processor.
fn undisturbed(got: &[TenantResult], tenant: usize, window: usize) -> f64 {
    let other = &got[1 - tenant];
    (got[tenant].windows[window] - other.starved[window]).max(0.0)
}

/// Nearly the whole GPU.
const NEARLY_ALL: [f64; 2] = [90.0, f64::INFINITY];

#[test]
fn hami_9_limits_single_tenant_by_policy() {
    check(&[low(30)], &[100.0], 15.0);
    check(&[low(30).policy(FORCE)], &[30.0], 2.0);
    check(&[low(30).policy(DISABLE)], &[100.0], 15.0);
}

#[test]
fn hami_6_does_not_limit_high_priority_tenants_by_themselves() {
    check(&[high(20), high(20)], &[50.0, 50.0], 6.0);
}

#[test]
fn yields_to_running_tenant_of_high_priority() {
    check(&[low(50), high(30)], &[0.0, 100.0], 15.0);
    check(&[low(50).policy(DISABLE), high(30)], &[0.0, 100.0], 15.0);
}

#[test]
fn resumes_low_priority_when_high_priority_idles() {
    shares_hold_unless_starved(
        "alone at first, then it waits, and goes on",
        || play(vec![low(50), high(30).from_to(3, 5)], 1, 6),
        |got| {
            let windows = &got[0].windows;
            Verdict::within([
                (windows[0], NEARLY_ALL),
                (undisturbed(got, 0, 3), [0.0, 10.0]),
                (windows[5], NEARLY_ALL),
            ])
        },
    );
}

#[test]
fn high_priority_takes_no_more_than_the_cap() {
    shares_hold_unless_starved(
        "low priority waits for five seconds, then both get their shares",
        || play_with(HostRole::CappedArbiter(50), vec![low(50), high(50)], 1, 8),
        |got| {
            let waits = (0..3).map(|window| (undisturbed(got, 0, window), [0.0, 10.0]));
            // The rate settles within two seconds.
            let shares = (6..8).flat_map(|window| {
                let least = (got[0].windows[window], [35.0, f64::INFINITY]);
                [least, (undisturbed(got, 0, window), [0.0, 65.0])]
            });
            Verdict::within(waits.chain(shares))
        },
    );
}

#[test]
fn takes_back_lent_compute() {
    shares_hold_unless_starved(
        "all of it, then its share, and all again",
        || play(vec![low(20), low(80).from_to(3, 7)], 1, 8),
        |got| {
            let windows = &got[0].windows;
            let shared = (3..5).flat_map(|window| {
                let least = (windows[window], [14.0, f64::INFINITY]);
                [least, (undisturbed(got, 0, window), [0.0, 26.0])]
            });
            let alone = [windows[0], windows[7]].map(|got| (got, NEARLY_ALL));
            Verdict::within(shared.chain(alone))
        },
    );
}

#[test]
fn keeps_average_share_of_tenant_that_forges_bucket() {
    shares_hold_unless_starved(
        "who writes its own bucket, and its neighbour",
        || {
            let forger = tenant(30, "forge k_ms_1").priority(LOW);
            // Stopped for the first time within six seconds, and every few seconds then.
            play(vec![forger, low(70)], 8, 16)
        },
        // Time slicing alone would give each a half.
        |got| {
            let windows = (0..got[0].windows.len()).map(|window| undisturbed(got, 0, window));
            let forger = windows.sum::<f64>() / 16.0;
            let neighbour = got[1].mean() - got[0].mean();
            Verdict::within([(forger, [0.0, 36.0]), (neighbour, [12.0, f64::INFINITY])])
        },
    );
}

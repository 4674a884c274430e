//! Priorities, policies and loans on a simulated card, with the host's arbiter and real processes
//! behind `libvgpu.so`. Simulated: no figure of a real card.

use std::time::Duration;

use aliquot_limiter_tests::gate;
use aliquot_limiter_tests::share::{Got, Role, Scene, Tenant, holds_once_of_three, run, tenant};
use parking_lot::Mutex;

const FORCE: u32 = 1;
const DISABLE: u32 = 2;
const HIGH: u32 = 0;
const LOW: u32 = 1;

/// One scene at a time: they measure time.
static TURN: Mutex<()> = Mutex::new(());

fn play(tenants: Vec<Tenant>, warm_up: u64, windows: usize) -> Vec<Got> {
    let _turn = TURN.lock();
    let mut scene = Scene::seconds(windows, tenants);
    scene.warm_up = Duration::from_secs(warm_up);
    scene.host = Role::Arbiter;
    run(&scene).expect("every call of every process succeeds")
}

fn low(cores: u32) -> Tenant {
    tenant(cores, "plain k_ms_1").priority(LOW)
}

fn high(cores: u32) -> Tenant {
    tenant(cores, "plain k_ms_1").priority(HIGH)
}

/// Of tenants that are all busy each gets this percentage of the card.
#[track_caller]
fn check(tenants: &[Tenant], expected: &[f64], within: f64) {
    let what = format!("{expected:?} of {tenants:?}");
    holds_once_of_three(
        &what,
        || play(tenants.to_vec(), 3, 3),
        |got| {
            let mut all = got.iter().zip(expected);
            all.all(|(got, expected)| {
                // A machine that runs all tests at once feeds the card less; a closed gate stays
                // closed.
                let most = if *expected < 1.0 { 3.0 } else { within };
                got.off(*expected).abs() <= most
            })
        },
    );
}

#[test]
fn alone_on_the_card_the_policy_decides() {
    check(&[low(30)], &[100.0], 15.0);
    check(&[low(30).policy(FORCE)], &[30.0], 2.0);
    check(&[low(30).policy(DISABLE)], &[100.0], 15.0);
}

#[test]
fn tenants_of_high_priority_alone_on_a_card_have_no_limit() {
    check(&[high(20), high(20)], &[50.0, 50.0], 6.0);
}

#[test]
fn one_of_low_priority_yields_while_one_of_high_priority_runs() {
    check(&[low(50), high(30)], &[0.0, 100.0], 15.0);
    check(&[low(50).policy(DISABLE), high(30)], &[0.0, 100.0], 15.0);
}

#[test]
fn one_of_low_priority_goes_on_when_the_other_rests() {
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
fn what_others_leave_is_lent_by_shares() {
    check(&[low(30), low(10)], &[75.0, 25.0], 12.0);
    check(&[low(30), low(20).policy(FORCE)], &[80.0, 20.0], 12.0);
}

#[test]
fn what_was_lent_is_taken_back() {
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
fn who_writes_its_own_bucket_gets_its_share_on_average() {
    // A machine that keeps its neighbour from its turns gives it more: then once more.
    holds_once_of_three(
        "who writes its own bucket, and its neighbour",
        || {
            let liar = tenant(30, "forge k_ms_1").priority(LOW);
            // Stopped for the first time within six seconds, and every few seconds then.
            play(vec![liar, low(70)], 8, 16)
        },
        // Turns of the card alone would give each a half.
        |got| got[0].mean() < 36.0 && got[1].mean() > got[0].mean() + 12.0,
    );
}

#[test]
fn a_gate_is_felt_at_once() {
    let _turn = TURN.lock();
    // Within 50 ms and a kernel of one, 99 times of 100.
    holds_once_of_three(
        "a gate",
        || gate::felt(Duration::from_secs(12)).expect("a scene"),
        |felt| {
            let all: Vec<f64> = felt.closed.iter().chain(&felt.opened).copied().collect();
            felt.closed.len() > 5
                && felt.opened.len() > 5
                && gate::percentile(&all, 99) <= 51.0
                && gate::percentile(&felt.yielded, 50) <= 101.0
        },
    );
}

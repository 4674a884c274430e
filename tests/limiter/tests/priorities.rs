//! Priorities, policies and loans on a simulated card, with the host's arbiter and real processes
//! behind `libvgpu.so`. Simulated: no figure of a real card.

use std::time::Duration;

use aliquot_limiter_tests::gate;
use aliquot_limiter_tests::share::{Got, Role, Scene, Tenant, run, tenant};
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
fn check(tenants: Vec<Tenant>, expected: &[f64], within: f64) {
    let what = format!("{tenants:?}");
    let got = play(tenants, 3, 3);
    for (got, expected) in got.iter().zip(expected) {
        let error = got.off(*expected);
        // A machine that runs all tests at once feeds the card less; a closed gate stays closed.
        let most = if *expected < 1.0 { 3.0 } else { within };
        assert!(error.abs() <= most, "{expected}: {got:?} of {what}");
    }
}

#[test]
fn alone_on_the_card_the_policy_decides() {
    check(vec![low(30)], &[100.0], 15.0);
    check(vec![low(30).policy(FORCE)], &[30.0], 2.0);
    check(vec![low(30).policy(DISABLE)], &[100.0], 15.0);
}

#[test]
fn tenants_of_high_priority_alone_on_a_card_have_no_limit() {
    check(vec![high(20), high(20)], &[50.0, 50.0], 6.0);
}

#[test]
fn one_of_low_priority_yields_while_one_of_high_priority_runs() {
    check(vec![low(50), high(30)], &[0.0, 100.0], 15.0);
    check(vec![low(50).policy(DISABLE), high(30)], &[0.0, 100.0], 15.0);
}

#[test]
fn one_of_low_priority_goes_on_when_the_other_rests() {
    let got = play(vec![low(50), high(30).from_to(3, 5)], 1, 6);
    let windows = &got[0].windows;
    assert!(windows[0] > 90.0, "alone at first: {got:?}");
    assert!(windows[3] < 10.0, "then it waits: {got:?}");
    assert!(windows[5] > 90.0, "and goes on: {got:?}");
}

#[test]
fn what_others_leave_is_lent_by_shares() {
    check(vec![low(30), low(10)], &[75.0, 25.0], 12.0);
    check(vec![low(30), low(20).policy(FORCE)], &[80.0, 20.0], 12.0);
}

#[test]
fn what_was_lent_is_taken_back() {
    let got = play(vec![low(20), low(80).from_to(3, 7)], 1, 8);
    let windows = &got[0].windows;
    assert!(windows[0] > 90.0, "all of it: {got:?}");
    for window in &windows[3..5] {
        assert!((window - 20.0).abs() < 6.0, "its share: {got:?}");
    }
    assert!(windows[7] > 90.0, "and all again: {got:?}");
}

#[test]
fn who_writes_its_own_bucket_gets_its_share_on_average() {
    // A machine that keeps its neighbour from its turns gives it more: then once more.
    let mut tries = Vec::new();
    for _ in 0..3 {
        let liar = tenant(30, "forge k_ms_1").priority(LOW);
        let got = play(vec![liar, low(70)], 14, 10);
        // Turns of the card alone would give each a half.
        if got[0].mean() < 42.0 && got[1].mean() > got[0].mean() + 12.0 {
            return;
        }
        tries.push(got);
    }
    panic!("{tries:?}");
}

#[test]
fn a_gate_is_felt_at_once() {
    let _turn = TURN.lock();
    // Within 50 ms and a kernel of one, 99 times of 100. A machine that runs all tests at once may
    // take a turn from all of its processes together, which none of them sees: then once more.
    let mut tries = Vec::new();
    for _ in 0..3 {
        let felt = gate::felt(Duration::from_secs(12)).expect("a scene");
        assert!(felt.closed.len() > 5 && felt.opened.len() > 5, "{felt:?}");
        let all: Vec<f64> = felt.closed.iter().chain(&felt.opened).copied().collect();
        let is_soon = gate::percentile(&all, 99) <= 51.0;
        if is_soon && gate::percentile(&felt.yielded, 50) <= 101.0 {
            return;
        }
        tries.push(felt);
    }
    panic!("{tries:?}");
}

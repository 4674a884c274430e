//! The compute share is what it says, by the simulator's exact clock. Simulated: no figure of a
//! real card.
//!
//! Short forms: a machine that runs all tests at once may keep a process from its turn for a
//! while, so the middle one of a few windows is judged, and its share of what the kernel says that it
//! waited for a processor is not missing. `make bench` has the full ones, which excuse nothing.

use std::time::Duration;

use aliquot_limiter_tests::launch::{Side, nanoseconds, of_library};
use aliquot_limiter_tests::scene::{FIRST, SECOND, device, machine};
use aliquot_limiter_tests::share::{Got, Role, Scene, holds_once_of_three, run, tenant};
use aliquot_limiter_tests::{Container, Way};
use aliquot_region::limits::{Container as Rules, Device};
use parking_lot::Mutex;

/// One scene at a time: they measure time.
static TURN: Mutex<()> = Mutex::new(());

fn in_turn(scene: &Scene) -> Vec<Got> {
    let _turn = TURN.lock();
    run(scene).expect("every call of every process succeeds")
}

/// A container alone that asks for `cores` percent gets them.
#[track_caller]
fn check(cores: u32, processes: usize, work: &str) {
    let mut tenant = tenant(cores, work);
    tenant.processes = processes;
    let mut scene = Scene::seconds(3, vec![tenant]);
    scene.window = Duration::from_millis(600);
    judge(&scene, cores, work);
}

/// The only tenant of the scene gets this percentage of the card.
#[track_caller]
fn judge(scene: &Scene, cores: u32, what: &str) {
    within(scene, &[cores], 2.0, what);
}

/// Each tenant of the scene gets this percentage of the card.
#[track_caller]
fn within(scene: &Scene, cores: &[u32], points: f64, what: &str) {
    let what = format!("{cores:?} % of {what}");
    holds_once_of_three(
        &what,
        || in_turn(scene),
        |got| {
            let mut all = got.iter().zip(cores);
            all.all(|(got, cores)| got.off(f64::from(*cores)).abs() <= points)
        },
    );
}

#[test]
fn without_a_limit_all_of_the_card_is_used() {
    // So that the other tests can fail.
    for cores in [0, 100] {
        let scene = Scene::seconds(1, vec![tenant(cores, "plain k_ms_1")]);
        let all = |got: &Vec<Got>| got[0].off(100.0) > -3.0;
        holds_once_of_three("without a limit", || in_turn(&scene), all);
    }
}

#[test]
fn a_share_is_what_it_says() {
    check(10, 1, "plain k_ms_1");
    check(50, 1, "sync k_ms_5");
    check(90, 1, "plain k_ms_2");
}

#[test]
fn eight_processes_have_one_share() {
    check(30, 8, "plain k_ms_1");
}

#[test]
fn every_kind_of_launch_keeps_the_share() {
    for work in [
        "graphs k_us_300",
        "cooperative k_ms_1",
        "streams k_ms_2",
        "extended k_ms_1",
        "thread k_ms_1",
        "threads k_ms_1",
    ] {
        check(25, 1, work);
    }
}

#[test]
fn kernels_of_all_sizes_and_times_that_vary_keep_the_share() {
    check(30, 1, "plain k_us_100 k_us_900 k_ms_7");
    check(25, 1, "plain k_us_800_sd_30");
    let mut scene = Scene::seconds(4, vec![tenant(50, "plain k_ms_1_sd_30")]);
    scene.card = &[("clockSwing", "10"), ("clockPpm", "200")];
    judge(&scene, 50, "drifting times");
}

#[test]
fn long_kernels_are_whole_and_the_share_holds_on_average() {
    let mut scene = Scene::seconds(1, vec![tenant(50, "plain k_ms_100")]);
    scene.window = Duration::from_secs(4);
    within(&scene, &[50], 3.0, "long kernels");
}

#[test]
fn tenants_that_are_all_busy_get_what_each_asked_for() {
    let shares = [20, 30, 50];
    let busy = shares.map(|cores| tenant(cores, "plain k_ms_1"));
    let mut scene = Scene::seconds(4, busy.into());
    // The host's arbiter finds the trims meanwhile.
    scene.host = Role::Arbiter;
    scene.warm_up = Duration::from_secs(6);
    within(&scene, &shares, 4.0, "all that are busy");
}

#[test]
fn threads_with_small_kernels_are_not_charged_for_each_other() {
    // Each was charged for those of the others that ran between its marks.
    check(50, 1, "threads k_us_200");
}

#[test]
fn a_capture_in_one_thread_and_pacing_in_another_do_not_meet() {
    // A failed call of either fails the scene.
    check(50, 1, "capture k_ms_1");
}

#[test]
fn kernels_in_the_legacy_stream_were_not_measured_beside_a_capture() {
    // Charged a millisecond each, for the capture of a stream that does not wait for that one.
    check(50, 1, "legacy k_ms_5");
}

#[test]
fn a_stream_that_never_moves_ended_all_measuring() {
    check(50, 1, "stuck k_ms_1 k_ms_5");
}

#[test]
fn kernels_of_a_thread_without_a_context_were_not_measured() {
    check(50, 1, "bare k_ms_5");
}

#[test]
fn a_launch_into_a_stream_of_another_card_was_charged_to_the_current_one() {
    let (_room, machine) = machine();
    let devices = [FIRST, SECOND].map(|uuid| Device {
        cores: 30,
        ..device(uuid, 3000)
    });
    let container = Container::new(&machine, Way::Replacement, Rules::default(), &devices);
    let container = container.expect("a container");
    let said = container
        .client(&["init", "elsewhere,20"])
        .expect("answers");
    assert_eq!(said[1], "elsewhere,20: 0");
    let slots = container.directory().join("counters/slots");
    let work = aliquot_region::host::read(&slots, 2)
        .expect("counters")
        .work;
    assert!(work[0].busy == 0 && work[1].busy > 10_000_000, "{work:?}");
}

#[test]
fn a_host_that_died_with_a_gate_word_set_leaves_each_tenant_its_share() {
    for left in [1, 2] {
        let mut scene = Scene::seconds(2, vec![tenant(30, "plain k_us_200")]);
        scene.host = Role::Left(left);
        judge(&scene, 30, "a card without a host");
    }
}

#[test]
fn a_host_that_died_with_a_gate_word_set_made_every_launch_a_measured_one() {
    let _turn = TURN.lock();
    for (cores, gate) in [(0, 1), (30, 2)] {
        let side = |gate| Side {
            way: Way::Replacement,
            cores,
            gate,
        };
        // With two marks around each it is several times as much.
        holds_once_of_three(
            &format!("{cores} {gate}"),
            || nanoseconds(&[side(0), side(gate)], 1, 1).expect("launches"),
            |found| found[1] < 2.0 * found[0] + 100.0,
        );
    }
}

#[test]
fn every_launch_of_a_librarys_kernel_took_three_locks_and_asked_the_driver() {
    let _turn = TURN.lock();
    let side = Side {
        way: Way::Replacement,
        cores: 0,
        gate: 0,
    };
    // Not optimised, the look in the table of kernels that are charged everywhere costs nearly what
    // a launch does.
    holds_once_of_three(
        "any launch, and one of a library's kernel",
        || {
            let any = nanoseconds(&[side], 1, 1).expect("launches")[0];
            (any, of_library(&[side], 1).expect("launches")[0])
        },
        |(any, of_library)| *of_library < 2.2 * any,
    );
}

#[test]
fn gate_and_policy_decide_who_is_limited() {
    const WAIT: u32 = 1;
    const UNLIMITED: u32 = 2;
    for (policy, gate, expected) in [
        (0, None, 30.0),
        (0, Some(UNLIMITED), 100.0),
        (1, Some(UNLIMITED), 30.0),
        (2, None, 100.0),
        (2, Some(WAIT), 0.0),
        (0, Some(WAIT), 0.0),
    ] {
        let mut one = tenant(30, "plain k_ms_1");
        one.rules = Rules {
            policy,
            ..Rules::default()
        };
        let mut scene = Scene::seconds(1, vec![one]);
        scene.host = gate.map_or(Role::Silent, Role::Says);
        if gate == Some(WAIT) {
            // A closed gate holds from the first launch on.
            scene.warm_up = Duration::ZERO;
        }
        let most = if gate == Some(WAIT) { 0.0 } else { 10.0 };
        holds_once_of_three(
            &format!("{policy} {gate:?}"),
            || in_turn(&scene),
            |got| got[0].off(expected).abs() <= most,
        );
    }
}

//! The compute share is kept, by the simulator's exact clock. Simulated: no figure is of a real
//! GPU.
//!
//! These are short forms. A machine that runs all tests at once may give a process no processor for
//! a while, so the median of a few windows counts, and time for which the kernel says that it
//! waited for a processor is not missing. `make bench` has the full forms, which excuse nothing.

use std::time::Duration;

use aliquot_limiter_tests::InjectionMethod;
use aliquot_limiter_tests::host::HostRole;
use aliquot_limiter_tests::launch::{LaunchSide, nanoseconds};
use aliquot_limiter_tests::scene::{FIRST, SECOND, container_of, machine, share_of};
use aliquot_limiter_tests::share::{
    ShareScenario, TenantResult, Verdict, holds_unless_starved, run, shares_hold_unless_starved,
};
use aliquot_limiter_tests::workers::{ShareTenant, tenant};
use aliquot_region::host::LaunchCounters;
use aliquot_region::limits::ContainerLimits;
use parking_lot::Mutex;

/// One scene at a time, because they measure time.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

fn run_exclusively(scene: &ShareScenario) -> Vec<TenantResult> {
    let _exclusive = EXCLUSIVE.lock();
    run(scene).expect("every call of every process succeeds")
}

/// A single container that requests `cores` percent gets them.
#[track_caller]
fn check(cores: u32, processes: usize, work: &str) {
    let mut tenant = tenant(cores, work);
    tenant.processes = processes;
    let mut scene = ShareScenario::seconds(3, vec![tenant]);
    scene.window = Duration::from_millis(600);
    check_scene(&scene, cores, work);
}

/// The only tenant of the scene gets this percentage of the GPU.
#[track_caller]
fn check_scene(scene: &ShareScenario, cores: u32, what: &str) {
    check_shares(scene, &[cores], 2.0, what);
}

/// Each tenant of the scene gets this percentage of the GPU.
#[track_caller]
fn check_shares(scene: &ShareScenario, cores: &[u32], points: f64, what: &str) {
    let what = format!("{cores:?} % of {what}");
    let percent: Vec<f64> = cores.iter().copied().map(f64::from).collect();
    let lends = scene.host == HostRole::Arbiter;
    shares_hold_unless_starved(
        &what,
        || run_exclusively(scene),
        |got| {
            Verdict::within(got.iter().enumerate().map(|(n, one)| {
                let may_borrow = lends && scene.tenants[n].limits.policy == 0;
                let others = got.iter().zip(percent.iter().copied()).enumerate();
                let others = others.filter(|(other, _)| may_borrow && *other != n);
                let others: Vec<_> = others.map(|(_, other)| other).collect();
                let deviation = one.deviation_beside(percent[n], &others);
                (deviation, [-points, points])
            }))
        },
    );
}

#[test]
fn gives_requested_share() {
    check(10, 1, "plain k_ms_1");
    check(50, 1, "sync k_ms_5");
    check(90, 1, "plain k_ms_2");
}

#[test]
fn shares_compute_among_eight_processes() {
    check(30, 8, "plain k_ms_1");
}

#[test]
fn keeps_share_for_every_kind_of_launch() {
    for work in [
        "graphs k_us_300",
        "cooperative k_ms_1",
        "streams k_ms_2",
        "extended k_ms_1",
        "thread k_ms_1",
        "threads k_ms_1",
        "ownthreads k_ms_1",
    ] {
        check(25, 1, work);
    }
}

#[test]
fn gives_busy_tenants_their_requested_shares() {
    let shares = [20, 30, 50];
    let busy = shares.map(|cores| tenant(cores, "plain k_ms_1"));
    let mut scene = ShareScenario::seconds(4, busy.into());
    // The host's arbiter finds the rate corrections meanwhile.
    scene.host = HostRole::Arbiter;
    scene.warm_up = Duration::from_secs(6);
    check_shares(&scene, &shares, 4.0, "all that are busy");
}

#[test]
fn keeps_shares_of_tenants_that_seldom_meet_from_the_start() {
    let shares = [30, 50];
    let forced = shares.map(|cores| tenant(cores, "plain k_ms_1").policy(1));
    let mut scene = ShareScenario::seconds(3, forced.into());
    scene.host = HostRole::Arbiter;
    check_shares(&scene, &shares, 2.0, "the first seconds");
}

#[test]
fn processes_that_launch_and_wait_get_their_shares() {
    let shares = [10, 80];
    for (profile, processes, work) in [
        ("kind", 1, "sync k_us_500"),
        ("kind", 4, "sync k_ms_5"),
        ("kind", 4, "sync k_ms_50"),
        ("harsh", 1, "sync k_ms_5"),
        ("harsh", 4, "sync k_ms_50"),
    ] {
        let tenants = shares.map(|cores| ShareTenant {
            processes,
            ..tenant(cores, work).policy(1)
        });
        let mut scene = ShareScenario::seconds(5, tenants.into());
        let fields = [("profile", profile)];
        scene.gpu_fields = if profile == "harsh" { &fields } else { &[] };
        scene.host = HostRole::Arbiter;
        scene.warm_up = Duration::from_secs(15);
        let what = format!("{processes} × {work}, {profile}");
        check_shares(&scene, &shares, 5.0, &what);
    }
}

#[test]
fn paces_beside_capture_in_another_thread() {
    // A failed call of either fails the scene.
    check(50, 1, "capture k_ms_1");
}

#[test]
fn measures_legacy_stream_beside_capture() {
    // Regression: they were charged a millisecond each because of the capture of a stream that does
    // not wait for the legacy one.
    check(50, 1, "legacy k_ms_5");
}

#[test]
fn measures_beside_stream_that_never_advances() {
    check(50, 1, "stuck k_ms_1 k_ms_5");
}

#[test]
fn paces_fills_and_copies_within_device() {
    for work in ["fills k_us_1", "copies k_us_1"] {
        let mut scene = ShareScenario::seconds(3, vec![tenant(30, work)]);
        // Each takes nearly a millisecond.
        scene.gpu_fields = &[("copyGibps", "128")];
        check_scene(&scene, 30, work);
    }
}

#[test]
fn charges_launches_without_events_by_host_measurements() {
    // At a millisecond each, they would take the whole GPU.
    let mut scene = ShareScenario::seconds(4, vec![tenant(30, "unmarked k_ms_20").policy(1)]);
    scene.host = HostRole::Arbiter;
    scene.warm_up = Duration::from_secs(12);
    check_shares(&scene, &[30], 8.0, "launches without events");
}

#[test]
fn launches_known_kernel_at_new_size_without_waiting() {
    let _exclusive = EXCLUSIVE.lock();
    let (_temp, machine) = machine();
    let devices = [share_of(FIRST, 3000, 50)];
    let container = container_of(&machine, InjectionMethod::Replacement, &devices);
    // None of these launches is ever measured: the third of a size would wait for two seconds.
    let work = "sizes,2,2,2,2,3,3,3,3";
    let answers = container.client(&["init", "ownstream", work]);
    assert_eq!(answers.expect("answers")[2], format!("{work}: 0 True"));
}

#[test]
fn measures_kernels_of_thread_without_context() {
    check(50, 1, "bare k_ms_5");
}

/// What a client with a third of each of two GPUs used of them, by its counters.
fn use_of_two_gpus(command: &str) -> [LaunchCounters; 2] {
    let (_temp, machine) = machine();
    let devices = [FIRST, SECOND].map(|uuid| share_of(uuid, 3000, 30));
    let container = container_of(&machine, InjectionMethod::Replacement, &devices);
    let answers = container.client(&["init", command]).expect("answers");
    assert_eq!(answers[1], format!("{command}: 0"));
    let slots = container.directory().join("counters/slots");
    let counters = aliquot_region::host::read(&slots, 2).expect("counters");
    [0, 1].map(|device| counters.device(device).compute)
}

#[test]
fn charges_launch_to_device_of_its_stream() {
    let busy = use_of_two_gpus("second,20").map(|compute| compute.busy);
    assert!(busy[0] == 0 && busy[1] > 10_000_000, "{busy:?}");
}

#[test]
fn copies_between_gpus_are_neither_charged_nor_delayed() {
    let last = use_of_two_gpus("across,20").map(|compute| compute.last);
    assert_eq!(last, [0, 0], "none was paced");
}

#[test]
fn does_not_measure_every_launch_after_host_dies() {
    let _exclusive = EXCLUSIVE.lock();
    for (cores, stale_flag) in [(0, 1), (30, 2)] {
        let side = |stale_flag| LaunchSide {
            method: InjectionMethod::Replacement,
            cores,
            stale_flag,
        };
        // With two events around each launch it would be several times as much.
        holds_unless_starved(
            &format!("launches with {cores} % and the flag {stale_flag}"),
            || nanoseconds(&[side(0), side(stale_flag)], 1, 1).expect("launches"),
            |found| Verdict::enough(found[1] < 2.0 * found[0] + 100.0),
        );
    }
}

#[test]
fn limits_by_throttle_flag_and_policy() {
    const WAIT: u32 = 1;
    const UNLIMITED: u32 = 2;
    for (policy, stale_flag, expected) in [
        (0, None, 30.0),
        (0, Some(UNLIMITED), 100.0),
        (1, Some(UNLIMITED), 30.0),
        (2, None, 100.0),
        (2, Some(WAIT), 0.0),
        (0, Some(WAIT), 0.0),
    ] {
        let mut one = tenant(30, "plain k_ms_1");
        one.limits = ContainerLimits {
            policy,
            ..ContainerLimits::default()
        };
        let mut scene = ShareScenario::seconds(1, vec![one]);
        scene.host = stale_flag.map_or(HostRole::Absent, HostRole::Flag);
        if stale_flag == Some(WAIT) {
            // A set throttle flag applies from the first launch on.
            scene.warm_up = Duration::ZERO;
        }
        let most = if stale_flag == Some(WAIT) { 0.0 } else { 10.0 };
        shares_hold_unless_starved(
            &format!("policy {policy} and the flag {stale_flag:?}"),
            || run_exclusively(&scene),
            |got| Verdict::within([(got[0].deviation(expected), [-most, most])]),
        );
    }
}

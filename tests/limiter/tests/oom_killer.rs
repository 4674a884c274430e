//! The monitor's OOM killer beside honest programs that fill their shares to the last byte, on a
//! driver as unkind as real ones. `limiter-bench memory` runs the long form, part of `make bench`.

use std::time::{Duration, Instant};

use aliquot_limiter_tests::InjectionMethod;
use aliquot_limiter_tests::honest::{HonestScene, SHARE};
use aliquot_limiter_tests::scene::{MIB, container, machine};

const PROGRAMS: usize = 20;
const TIME: Duration = Duration::from_secs(20);
/// Until a program is killed, even on a busy machine.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Runs honest programs, none of which may be killed; returns how many MiB each container had at
/// most.
fn check_honest(profile: &str) -> Vec<u64> {
    let scene = HonestScene::start(PROGRAMS, profile).expect("a scene");
    std::thread::park_timeout(TIME);
    let peaks = scene.peaks().expect("a GPU");
    let result = scene.end_after(Duration::ZERO).expect("an end");
    assert_eq!((result.killed, result.kills.len()), (0, 0), "{result:?}");
    let programs = u64::try_from(PROGRAMS).expect("small");
    assert!(result.filled >= 2 * programs, "{result:?}");
    assert!(result.samples > 10, "{result:?}");
    peaks
}

#[test]
fn kills_no_honest_program_on_unkind_driver() {
    let peaks = check_honest("harsh");
    println!("each container had at most {peaks:?} of {SHARE} MiB");
    let above = peaks.iter().all(|peak| *peak > SHARE + 512);
    assert!(above, "{peaks:?}: the driver was kind");
}

#[test]
fn kills_no_program_whose_memory_is_not_available() {
    check_honest("blind");
}

#[test]
fn kills_program_that_takes_two_gib_too_much() {
    let scene = HonestScene::start(4, "harsh").expect("a scene");
    let mut program = scene.bypass(SHARE + 2048).expect("a program");
    let begun = Instant::now();
    while program.child.try_wait().expect("a child").is_none() {
        assert!(begun.elapsed() < MAX_WAIT, "it was not killed");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    println!("killed after {:.1} s", begun.elapsed().as_secs_f64());
    let result = scene.end_after(Duration::ZERO).expect("an end");
    assert_eq!((result.killed, result.kills.len()), (0, 1), "{result:?}");
}

#[test]
fn counts_managed_memory_and_refusals_of_a_process() {
    let (_temp, machine) = machine();
    let container = container(&machine, InjectionMethod::Replacement, 2000);
    let details = |commands: &[&str]| {
        let running = container.start(commands).expect("a client");
        let snapshot = container.counters_snapshot().expect("a counters file");
        let process = snapshot.processes.first().expect("a process").clone();
        running.kill().expect("a kill");
        (process.device(0).managed, process.device(0).refused)
    };
    let managed = ["init", "managed,101", "alloc,50"];
    assert_eq!(details(&managed), (102 * MIB, 0));
    let freed = ["init", "managed,101", "free", "alloc,5000", "alloc,5000"];
    assert_eq!(details(&freed), (0, 2));
}

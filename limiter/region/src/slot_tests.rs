//! Slots of several processes in one file: real processes that are killed, and several slots in
//! this process, which the locks distinguish in the same way.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::fork::ForkFlag;
use crate::testing::{CountersFile, take};

/// Environment variable with the counters file for a process that this test starts.
const FILE: &str = "REGION_TEST_FILE";
const LIMIT: u64 = 1_000;
/// Starts this test binary as `role` and waits until it prints that it is ready.
fn start(file: &CountersFile, role: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("slot::tests::{role}"), "--nocapture"])
        .env(FILE, file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("READY")));
    child
}

/// The slot of a helper process; `None` in a normal test run.
fn helper_slot() -> Option<ProcessSlot> {
    let path = std::env::var_os(FILE)?;
    Some(take(Path::new(&path), None).unwrap())
}

fn kill(helper: &mut Child) {
    helper.kill().unwrap();
    helper.wait().unwrap();
}

fn wait_until_killed() {
    println!("READY");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn helper_reserves_300() {
    let Some(slot) = helper_slot() else { return };
    slot.reserve(0, 300, LIMIT).unwrap();
    slot.note_contexts(0, 100);
    wait_until_killed();
}

#[test]
fn suspended_process_counts_again_when_it_is_resumed() {
    let file = CountersFile::new();
    let slot = file.slot();
    slot.reserve(0, 600, LIMIT).unwrap();
    let mut other = start(&file, "helper_reserves_300");
    let resume = || slot.resume(other.id(), 1, |_| LIMIT);
    assert!(resume(), "it was not suspended");
    slot.suspend(other.id(), 1);
    assert_eq!(slot.used(0), 600);
    assert_eq!(slot.processes(0).count(), 1);
    let found = crate::host::read(&file.path(), 1).unwrap();
    assert_eq!(
        (found.used(0), found.processes[1].device(0).contexts),
        (600, 0)
    );
    assert_eq!(slot.reserve(0, 400, LIMIT), Some(1_000));
    assert!(!resume());
    assert_eq!(slot.used(0), 1_000);
    slot.release(0, 400);
    assert!(resume() && resume());
    assert_eq!(slot.used(0), 900);
    slot.reclaim_dead_slots(1).unwrap();
    assert_eq!(slot.used(0), 900);
    slot.suspend(other.id(), 1);
    kill(&mut other);
    settles_to(&slot, 0, 600);
}

#[test]
fn suspended_process_may_still_release_memory() {
    let file = CountersFile::new();
    let slot = file.slot();
    slot.reserve(0, 300, LIMIT).unwrap();
    slot.suspend(std::process::id(), 1);
    slot.release(0, 100);
    assert_eq!(slot.used(0), 0);
    assert!(slot.resume(std::process::id(), 1, |_| LIMIT));
    assert_eq!(slot.used(0), 200);
}

#[test]
fn helper_closes_all_descriptors() {
    let Some(slot) = helper_slot() else { return };
    slot.reserve(0, 300, LIMIT).unwrap();
    println!("READY");
    // SAFETY: nothing in this process uses a descriptor from 3 on any more.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    assert_eq!(closed, 0);
    let _ = std::io::stdin().read(&mut [0]);
}

/// From here on this process can open nothing.
fn leave_no_descriptor() {
    let limit = libc::rlimit {
        rlim_cur: 3,
        rlim_max: 3,
    };
    // SAFETY: a limit of this process's own; descriptors 0 to 2 are open.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(done, 0);
    assert!(File::open("/proc/self/stat").is_err());
}

#[test]
fn helper_reclaims_without_descriptors() {
    let Some(slot) = helper_slot() else { return };
    slot.reserve(0, 100, LIMIT).unwrap();
    wait_until_killed();
    leave_no_descriptor();
    settles_to(&slot, 0, 100);
    // Nobody reads what the test's own end would print.
    std::process::exit(0);
}

#[test]
fn reclaims_memory_of_killed_process_without_descriptors() {
    let file = CountersFile::new();
    let mut other = start(&file, "helper_reserves_300");
    let mut poor = start(&file, "helper_reclaims_without_descriptors");
    kill(&mut other);
    drop(poor.stdin.take());
    assert!(poor.wait().unwrap().success());
}

#[test]
fn helper_tags_without_descriptors() {
    let Some(node) = std::env::var_os(FILE) else {
        return;
    };
    let file = File::options().read(true).write(true).open(&node).unwrap();
    println!("READY");
    leave_no_descriptor();
    let (key, descriptor) = (tag::new(), file.as_raw_fd());
    assert!(tag::attach(descriptor, key, Path::new(&node)).is_some());
    assert_eq!(tag::read(descriptor), Some(key));
    // As in a process that has closed its standard streams.
    // SAFETY: nothing reads standard input.
    let copy = unsafe { libc::dup2(descriptor, 0) };
    assert_eq!((copy, tag::read(copy)), (0, Some(key)));
    std::process::exit(0);
}

#[test]
fn process_without_descriptors_tags_and_reads_tags() {
    let file = CountersFile::new();
    let mut poor = start(&file, "helper_tags_without_descriptors");
    assert!(poor.wait().unwrap().success());
}

#[test]
fn keeps_slot_after_closing_all_descriptors() {
    let file = CountersFile::new();
    let slot = file.slot();
    let mut other = start(&file, "helper_closes_all_descriptors");
    for _ in 0..20 {
        slot.reclaim_dead_slots(1).unwrap();
        assert_eq!(slot.used(0), 300);
    }
    kill(&mut other);
    settles_to(&slot, 0, 0);
}

#[test]
fn reclaims_memory_of_100_of_600_dead_processes() {
    let file = CountersFile::new();
    let mut slots: Vec<ProcessSlot> = (0..600).map(|_| file.slot()).collect();
    for slot in &slots {
        slot.reserve(1, 1, 10_000).unwrap();
    }
    let living = slots.split_off(100);
    assert_eq!(living[0].used(1), 600);
    drop(slots);
    settles_to(&living[0], 1, 500);
}

#[test]
fn refuses_process_beyond_last_slot() {
    let file = CountersFile::new();
    let slots: Vec<ProcessSlot> = (0..SLOTS).map(|_| file.slot()).collect();
    let indexes: Vec<usize> = slots.iter().map(ProcessSlot::index).collect();
    assert_eq!(indexes, (0..SLOTS).collect::<Vec<_>>());
    let error = take(&file.path(), None).unwrap_err();
    assert!(error.to_string().contains("1024 processes"), "{error}");
    drop(slots);
    assert!(file.slot().index() < SLOTS);
}

/// Dead processes' slots are cleared until so much of a device is in use, never less. A child that
/// another test forks has their files, and so their locks, until it executes its program.
#[track_caller]
fn settles_to(slot: &ProcessSlot, device: usize, used: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        slot.reclaim_dead_slots(device + 1).unwrap();
        let found = slot.used(device);
        if found == used {
            return;
        }
        assert!(
            found > used && Instant::now() < deadline,
            "{found} in use, expected: {used}"
        );
        std::thread::yield_now();
    }
}

#[test]
fn rejects_counters_file_of_other_layout() {
    let file = CountersFile::new();
    std::fs::write(file.path(), vec![0; 1 << 20]).unwrap();
    let error = take(&file.path(), None).unwrap_err();
    assert!(matches!(error, AttachError::Layout), "{error}");
    std::fs::write(file.path(), counters::header()).unwrap();
    let error = take(&file.path(), None).unwrap_err();
    assert!(error.to_string().contains("cannot be mapped"), "{error}");
}

#[test]
fn rejects_copy_of_counters_file() {
    let file = CountersFile::new();
    let copy = file.path().with_extension("copy");
    std::fs::copy(file.path(), &copy).unwrap();
    let identity = counters::identity(std::fs::File::open(file.path()).unwrap()).unwrap();
    assert!(take(&file.path(), Some(identity)).is_ok());
    let error = take(&copy, Some(identity)).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("is a copy") && words.ends_with("ROOT/.aliquot"),
        "{words}"
    );
}

#[test]
fn lowers_fork_flag_in_forked_child() {
    // The second, as on a kernel that does not wipe it.
    for flag in [ForkFlag::new(), ForkFlag::with_handler()] {
        let flag = flag.unwrap();
        assert!(!flag.is_raised());
        flag.raise();
        // SAFETY: the child only loads a word and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(i32::from(flag.is_raised())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child found the flag raised");
        assert!(flag.is_raised());
    }
}

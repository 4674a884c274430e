//! Seats of several processes in one file: real processes that are killed, and several seats in
//! this one, which the locks tell apart alike.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::counters;
use crate::fork::ForkFlag;

/// Names the counters file to a process that this test starts.
const FILE: &str = "REGION_TEST_FILE";
const LIMIT: u64 = 1_000;

struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        let room = Self(tempfile::tempdir().unwrap());
        let mut file = std::fs::File::create(room.path()).unwrap();
        file.set_len(counters::SIZE).unwrap();
        file.write_all(&counters::header()).unwrap();
        room
    }
    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("slots")
    }
    fn seat(&self) -> Seat {
        Seat::take(&c_path(&self.path())).unwrap()
    }
    /// Starts this test binary anew as `role`, and waits until it says that it is ready.
    fn start(&self, role: &str) -> Child {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--nocapture"])
            .env(FILE, self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line.contains("READY")));
        child
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// Where another process plays `role`; `None` when this is only a test run.
fn played() -> Option<Seat> {
    let path = std::env::var_os(FILE)?;
    Some(Seat::take(&c_path(Path::new(&path))).unwrap())
}

fn ready_until_killed() {
    println!("READY");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn plays_a_process_that_holds_300() {
    let Some(seat) = played() else { return };
    seat.reserve(0, 300, LIMIT).unwrap();
    seat.note_contexts(0, 100);
    ready_until_killed();
}

#[test]
fn plays_a_process_that_closes_everything() {
    let Some(seat) = played() else { return };
    seat.reserve(0, 300, LIMIT).unwrap();
    println!("READY");
    // SAFETY: nothing in this process uses a descriptor from 3 on any more.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    assert_eq!(closed, 0);
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn plays_a_process_that_never_rests() {
    let Some(seat) = played() else { return };
    println!("READY");
    for size in (1..40).cycle() {
        if seat.reserve(0, size, LIMIT).is_ok() {
            seat.release(0, size);
        }
    }
}

#[test]
fn a_killed_process_gives_back_all_it_had() {
    let room = Room::new();
    let seat = room.seat();
    seat.reserve(0, 600, LIMIT).unwrap();
    let mut other = room.start("seat::tests::plays_a_process_that_holds_300");
    assert_eq!(seat.used(0), 900);
    assert!(seat.settle(1).unwrap());
    assert_eq!(seat.used(0), 900, "a living process keeps what it has");
    let pids: Vec<_> = seat.processes(0).map(|process| process.pid).collect();
    assert_eq!(pids, [Some(std::process::id()), Some(other.id())]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(seat.reserve(0, 400, LIMIT), Err(Refused { used: 900 }));
    assert!(seat.settle(1).unwrap());
    assert_eq!(seat.reserve(0, 400, LIMIT), Ok(1_000));
    assert_eq!(seat.processes(0).count(), 1);
}

#[test]
fn plays_a_process_that_holds_300_and_forks() {
    let Some(seat) = played() else { return };
    seat.reserve(0, 300, LIMIT).unwrap();
    seat.count_children();
    // SAFETY: the child only reads until its input ends, and ends.
    if unsafe { libc::fork() } == 0 {
        let mut byte = 0_u8;
        // SAFETY: one byte, into a byte of ours; then this process ends at once.
        unsafe {
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    println!("READY");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn memory_of_a_killed_process_was_given_away_while_its_children_held_it() {
    let room = Room::new();
    let seat = room.seat();
    seat.reserve(0, 600, LIMIT).unwrap();
    let mut other = room.start("seat::tests::plays_a_process_that_holds_300_and_forks");
    let input = other.stdin.take();
    other.kill().unwrap();
    other.wait().unwrap();
    for _ in 0..3 {
        assert!(seat.settle(1).unwrap());
        assert_eq!(seat.used(0), 900, "its child lives");
    }
    assert_ne!(room.seat().slot(), 1, "the slot is not free");
    drop(input);
    let deadline = Instant::now() + Duration::from_mins(1);
    while seat.used(0) != 600 {
        assert!(Instant::now() < deadline, "never given back");
        assert!(seat.settle(1).unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_closes_all_descriptors_keeps_its_slot() {
    let room = Room::new();
    let seat = room.seat();
    let mut other = room.start("seat::tests::plays_a_process_that_closes_everything");
    for _ in 0..20 {
        assert!(seat.settle(1).unwrap());
        assert_eq!(seat.used(0), 300);
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(seat.settle(1).unwrap());
    assert_eq!(seat.used(0), 0);
}

#[test]
fn processes_killed_in_the_middle_of_their_work_leave_nothing_behind() {
    let room = Room::new();
    let seat = room.seat();
    seat.reserve(0, 900, LIMIT).unwrap();
    for _ in 0..30 {
        let others = [(); 2].map(|()| room.start("seat::tests::plays_a_process_that_never_rests"));
        for mut other in others {
            assert!(seat.used(0) <= LIMIT);
            other.kill().unwrap();
            other.wait().unwrap();
            seat.settle(1).unwrap();
        }
        assert!(seat.settle(1).unwrap());
        assert_eq!(seat.used(0), 900);
    }
}

#[test]
fn slots_beyond_the_last_are_shared_and_nobody_is_refused() {
    let room = Room::new();
    let seats: Vec<Seat> = (0..SLOTS + 3).map(|_| room.seat()).collect();
    let slots: Vec<usize> = seats.iter().map(Seat::slot).collect();
    assert_eq!(slots[..SLOTS], (0..SLOTS).collect::<Vec<_>>()[..]);
    assert_eq!(slots[SLOTS..], [SHARED; 3]);
    for seat in &seats {
        seat.reserve(1, 1, 10_000).unwrap();
    }
    let first = &seats[0];
    assert_eq!(first.used(1), 515);
    assert_eq!(
        first.processes(1).last(),
        Some(Process { pid: None, used: 3 })
    );
    let mut seats = seats.into_iter();
    let first = seats.next().unwrap();
    let last = seats.next_back().unwrap();
    drop(seats);
    assert!(first.settle(2).unwrap());
    assert_eq!(
        first.used(1),
        4,
        "what is shared goes with the last of them"
    );
    drop(last);
    assert!(first.settle(2).unwrap());
    assert_eq!(first.used(1), 1);
}

#[test]
fn a_slot_stays_where_it_is_and_is_given_anew_when_it_is_free() {
    let room = Room::new();
    let (first, second, third) = (room.seat(), room.seat(), room.seat());
    second.reserve(0, 5, LIMIT).unwrap();
    drop(second);
    assert_eq!((first.slot(), third.slot()), (0, 2));
    // The dead one's slot still looks taken; a fresh one is nearer.
    assert_eq!(room.seat().slot(), 3);
    assert!(first.settle(1).unwrap());
    assert_eq!(room.seat().slot(), 1);
}

#[test]
fn a_file_of_another_layout_is_refused() {
    let room = Room::new();
    std::fs::write(room.path(), vec![0; USED]).unwrap();
    let error = Seat::take(&c_path(&room.path())).unwrap_err();
    assert!(matches!(error, AttachError::Layout), "{error}");
    std::fs::write(room.path(), counters::header()).unwrap();
    let error = Seat::take(&c_path(&room.path())).unwrap_err();
    assert!(error.to_string().contains("cannot be mapped"), "{error}");
}

#[test]
fn a_forked_child_finds_the_flag_lowered_and_the_mapping_gone() {
    let room = Room::new();
    let flag = ForkFlag::new().unwrap();
    assert!(!flag.is_raised());
    flag.raise();
    let seat = room.seat();
    seat.reserve(0, 7, LIMIT).unwrap();
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

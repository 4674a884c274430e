//! The host's reader against what a tenant can make of the file.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;
use crate::seat::Seat;

const MIB: u64 = 1 << 20;

struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        let room = Self(tempfile::tempdir().unwrap());
        let mut file = File::create(room.path()).unwrap();
        file.write_all(&counters::header()).unwrap();
        file.set_len(SIZE).unwrap();
        room
    }
    fn path(&self) -> PathBuf {
        self.0.path().join("slots")
    }
    fn seat(&self) -> Seat {
        let path = CString::new(self.path().to_str().unwrap()).unwrap();
        Seat::take(&path).unwrap()
    }
    /// Gives the file away for what `make` puts in its place; the reader's words, which must come,
    /// not wait for somebody.
    fn check(make: impl FnOnce(&Path), expected: &str) {
        let room = Self::new();
        make(&room.path());
        let begun = Instant::now();
        let said = read(&room.path(), 1).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{said}");
    }
}

#[test]
fn what_processes_use_is_read_and_the_dead_are_left_out() {
    let room = Room::new();
    assert_eq!(read(&room.path(), 2).unwrap().holders, []);
    let (one, other) = (room.seat(), room.seat());
    one.reserve(0, 30 * MIB, 100 * MIB).unwrap();
    one.note_contexts(0, 10 * MIB);
    other.reserve(0, 40 * MIB, 100 * MIB).unwrap();
    other.reserve(1, 5 * MIB, 100 * MIB).unwrap();
    other.reserve(1, 500 * MIB, 100 * MIB).unwrap_err();
    other.reserve(1, 500 * MIB, 100 * MIB).unwrap_err();
    other.note_refusal(1);
    let found = read(&room.path(), 2).unwrap();
    let used: Vec<_> = found.holders.iter().map(|one| one.used.clone()).collect();
    assert_eq!(used, [[30 * MIB, 0], [40 * MIB, 5 * MIB]]);
    assert_eq!(found.holders[0].contexts, [10 * MIB, 0]);
    assert_eq!(found.holders[0].pid, Some(std::process::id()));
    assert_eq!(found.totals, [70 * MIB, 5 * MIB]);
    assert_eq!((found.used(0), found.refused), (70 * MIB, vec![0, 1]));
    drop(one);
    let found = read(&room.path(), 2).unwrap();
    assert_eq!((found.used(0), found.totals[0]), (40 * MIB, 70 * MIB));
}

#[test]
fn a_tenant_who_locks_every_byte_keeps_nobody_waiting() {
    let room = Room::new();
    let file: OwnedFd = File::options()
        .read(true)
        .write(true)
        .open(room.path())
        .unwrap()
        .into();
    for slot in 0..SHARED {
        for byte in [0, 7, 400] {
            assert!(lock::set(&file, start(slot) + byte, lock::Hold::Alone).unwrap());
        }
    }
    let begun = Instant::now();
    assert_eq!(read(&room.path(), 33).unwrap().holders.len(), SHARED);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn anything_but_the_file_is_refused_at_once() {
    Room::check(|path| fs::remove_file(path).unwrap(), "opened");
    Room::check(
        |path| {
            let aside = path.with_extension("aside");
            fs::rename(path, &aside).unwrap();
            symlink(aside, path).unwrap();
        },
        "opened",
    );
    Room::check(
        |path| {
            fs::remove_file(path).unwrap();
            let path = CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: a C string.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
        },
        "not a regular file",
    );
    Room::check(
        |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        },
        "not a regular file",
    );
    let sized = |size: u64| {
        move |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(size).unwrap();
        }
    };
    Room::check(sized(0), "has 0 bytes");
    Room::check(sized(SIZE - 1), "bytes instead of 1048576");
    Room::check(sized(1 << 40), "has 1099511627776 bytes");
    Room::check(
        |path| fs::write(path, vec![0xa5; usize::try_from(SIZE).unwrap()]).unwrap(),
        "does not begin as one",
    );
}

#[test]
fn garbage_behind_a_good_head_gives_figures_and_no_harm() {
    let room = Room::new();
    let file = File::options().write(true).open(room.path()).unwrap();
    let noise = vec![0xff; usize::try_from(SIZE).unwrap() - 12];
    let seat = room.seat();
    file.write_all_at(&noise, 12).unwrap();
    let found = read(&room.path(), usize::MAX).unwrap();
    assert_eq!(found.totals, [MOST; MAX_DEVICES]);
    assert_eq!((found.holders.len(), found.used(0)), (1, u64::MAX));
    drop(seat);
}

#[test]
fn what_the_driver_contradicts_is_doubted() {
    let room = Room::new();
    let seat = room.seat();
    seat.reserve(0, 600 * MIB, 3000 * MIB).unwrap();
    let known = |measured: u64, limit: u64| {
        [Known {
            limit: limit * MIB,
            measured: measured * MIB,
            slack: 100 * MIB,
        }]
    };
    let doubts = |known: &[Known]| read(&room.path(), 1).unwrap().doubts(known);
    assert_eq!(doubts(&known(700, 3000)), []);
    assert_eq!(doubts(&known(0, 600)), [], "the driver is asked later");
    let uncounted = |mib: u64| Doubt::Uncounted {
        device: 0,
        bytes: mib * MIB,
    };
    let above = |mib: u64| Doubt::AboveLimit {
        device: 0,
        bytes: mib * MIB,
    };
    assert_eq!(doubts(&known(701, 3000)), [uncounted(1)]);
    assert_eq!(doubts(&known(9000, 3000)), [uncounted(8300), above(5900)]);
    assert_eq!(doubts(&known(0, 300)), [above(200)]);
    // A tenant writes that nothing is used, and lies about its parts.
    let file = File::options().write(true).open(room.path()).unwrap();
    let total = u64::try_from(counters::of_device(0, 0)).unwrap();
    file.write_all_at(&[0; 8], total).unwrap();
    assert_eq!(
        doubts(&known(600, 3000)),
        [Doubt::TotalTooLow { device: 0 }]
    );
    let used = u64::try_from(counters::of_slot(seat.slot(), 0)).unwrap();
    file.write_all_at(&[0; 8], used).unwrap();
    assert_eq!(doubts(&known(600, 3000)), [uncounted(500)]);
}

#[test]
fn what_is_said_of_launches_is_looked_at_again_and_again() {
    let room = Room::new();
    let seat = room.seat();
    let mut watch = Watch::open(&room.path(), 2).unwrap();
    assert_eq!(watch.look().unwrap().len(), 2);
    let second = seat.compute(1);
    let order = std::sync::atomic::Ordering::Relaxed;
    let words = [second.bucket, second.until, second.busy, second.last];
    for (value, word) in (1..).zip(words.into_iter().chain([second.launches, second.waited])) {
        word.store(value, order);
    }
    let expected = Launches {
        debt: 1,
        until: 2,
        busy: 3,
        last: 4,
        launches: 5,
        waited: 6,
    };
    assert_eq!(watch.look().unwrap()[1], expected);
    let file = File::options().write(true).open(room.path()).unwrap();
    file.set_len(4096).unwrap();
    assert!(watch.look().is_err(), "it was cut");
    file.set_len(1 << 40).unwrap();
    assert_eq!(watch.look().unwrap()[0], Launches::default());
    fs::write(room.path(), vec![7; usize::try_from(SIZE).unwrap()]).unwrap();
    assert!(Watch::open(&room.path(), 1).is_err());
}

//! The host's reader against whatever a tenant can make of the file.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::*;
use crate::testing::CountersFile;

const MIB: u64 = 1 << 20;

fn writable(counters: &CountersFile) -> File {
    let mut options = File::options();
    let open = options.read(true).write(true).open(counters.path());
    open.unwrap()
}

/// Replaces the file by what `make` puts in its place, and checks the reader's error, which must
/// come without waiting.
fn check(make: impl FnOnce(&Path), expected: &str) {
    let counters_file = CountersFile::new();
    make(&counters_file.path());
    let begun = Instant::now();
    let message = read(&counters_file.path(), 1).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{message}");
}

#[test]
fn reads_usage_of_living_processes_only() {
    let counters_file = CountersFile::new();
    assert_eq!(read(&counters_file.path(), 2).unwrap().processes, []);
    let (one, other) = (counters_file.slot(), counters_file.slot());
    one.reserve(0, 30 * MIB, 100 * MIB).unwrap();
    one.note_contexts(0, 10 * MIB);
    other.reserve(0, 40 * MIB, 100 * MIB).unwrap();
    other.reserve(1, 5 * MIB, 100 * MIB).unwrap();
    assert_eq!(other.reserve(1, 500 * MIB, 100 * MIB), None);
    other.note_refusal(1);
    let found = read(&counters_file.path(), 2).unwrap();
    let used = |one: &ProcessUsage| [0, 1].map(|device| one.device(device).used);
    let used: Vec<_> = found.processes.iter().map(used).collect();
    assert_eq!(used, [[30 * MIB, 0], [40 * MIB, 5 * MIB]]);
    assert_eq!(found.processes[0].device(0).contexts, 10 * MIB);
    assert_eq!(found.processes[0].pid, Some(std::process::id()));
    let totals = [0, 1].map(|device| (found.device(device).total, found.device(device).refused));
    assert_eq!(totals, [(70 * MIB, 0), (5 * MIB, 1)]);
    assert_eq!(found.used(0), 70 * MIB);
    drop(one);
    let found = read(&counters_file.path(), 2).unwrap();
    assert_eq!((found.used(0), found.device(0).total), (40 * MIB, 70 * MIB));
}

#[test]
fn reads_file_in_bounded_time_with_every_byte_locked() {
    let counters_file = CountersFile::new();
    let file = writable(&counters_file);
    for slot in 0..SLOTS {
        for byte in [0, 7, 400] {
            assert!(lock::set(&file, start(slot) + byte, lock::LockMode::Exclusive).unwrap());
        }
    }
    let begun = Instant::now();
    let found = read(&counters_file.path(), 33).unwrap();
    assert_eq!(found.processes.len(), SLOTS);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn gives_up_file_whose_locks_take_too_long_to_check() {
    let counters_file = CountersFile::new();
    let slot = counters_file.slot();
    let file = File::open(counters_file.path()).unwrap();
    assert_eq!(locked_slots(&file, LONGEST_QUERIES).unwrap(), [0]);
    let error = locked_slots(&file, Duration::ZERO).unwrap_err();
    assert!(error.is_caused_by_tenant(), "{error}");
    drop(slot);
}

#[test]
fn rejects_anything_but_counters_file_at_once() {
    check(|path| fs::remove_file(path).unwrap(), "opened");
    let link = |path: &Path| {
        let moved = path.with_extension("aside");
        fs::rename(path, &moved).unwrap();
        symlink(moved, path).unwrap();
    };
    check(link, "opened");
    let fifo = |path: &Path| {
        fs::remove_file(path).unwrap();
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
    };
    check(fifo, "not a regular file");
    let folder = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    check(folder, "not a regular file");
    let sized = |size: u64| {
        move |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(size).unwrap();
        }
    };
    check(sized(0), "has 0 bytes");
    check(sized(SIZE - 1), "bytes; expected: 2097152");
    check(sized(1 << 40), "has 1099511627776 bytes");
    check(
        |path| fs::write(path, vec![0xa5; usize::try_from(SIZE).unwrap()]).unwrap(),
        "does not begin with",
    );
}

#[test]
fn reads_garbage_behind_valid_header_without_harm() {
    let counters_file = CountersFile::new();
    let file = writable(&counters_file);
    let noise = vec![0xff; usize::try_from(SIZE).unwrap() - 12];
    let slot = counters_file.slot();
    file.write_all_at(&noise, 12).unwrap();
    let found = read(&counters_file.path(), usize::MAX).unwrap();
    let totals: Vec<u64> = found.devices.iter().map(|device| device.total).collect();
    assert_eq!(totals, [MAX_BYTES; MAX_DEVICES]);
    assert_eq!((found.processes.len(), found.used(0)), (1, u64::MAX));
    drop(slot);
}

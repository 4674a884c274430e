//! What is on disk after each writer, in a temporary directory.

use std::os::unix::fs::MetadataExt as _;

use super::*;

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("exists").ino()
}

#[test]
fn replaces_by_rename_and_leaves_no_temporary_file() {
    let room = tempfile::tempdir().expect("tempdir");
    let path = room.path().join("a.json");
    assert!(replace(&path, b"1").expect("first"));
    let first = inode(&path);
    assert!(!replace(&path, b"1").expect("unchanged"));
    assert_eq!(inode(&path), first);
    assert!(replace(&path, b"2").expect("second"));
    assert_eq!(fs::read(&path).expect("read"), b"2");
    assert_eq!(names(room.path()).expect("list"), ["a.json"]);
}

#[test]
fn a_seat_keeps_its_files_and_its_counters_when_the_limits_change() {
    let room = tempfile::tempdir().expect("tempdir");
    let seat_path = room.path().join("n");
    let page = |fill| {
        let mut page = [0; limits::SIZE];
        page[64] = fill;
        page
    };
    seat(&seat_path, &page(1)).expect("made");
    let (limits, slots) = (seat_path.join("limits"), seat_path.join("counters/slots"));
    fs::write(&slots, b"used").expect("the tenant writes");
    let inodes = (inode(&limits), inode(&slots));
    seat(&seat_path, &page(1)).expect("unchanged");
    assert_eq!(fs::read(&limits).expect("read")[limits::SEQUENCE], [0; 8]);
    seat(&seat_path, &page(2)).expect("changed");
    let found = fs::read(&limits).expect("read");
    assert_eq!((found.len(), found[64]), (limits::SIZE, 2));
    assert_eq!(found[limits::SEQUENCE], 2_u64.to_le_bytes());
    assert_eq!((inode(&limits), inode(&slots)), inodes);
    assert_eq!(fs::read(&slots).expect("read"), b"used");
}

#[test]
fn a_page_whose_writer_died_in_the_middle_was_left_so() {
    let room = tempfile::tempdir().expect("tempdir");
    let page = [0; limits::SIZE];
    seat(room.path(), &page).expect("made");
    let limits = room.path().join("limits");
    let mut half = page;
    half[limits::SEQUENCE.start] = 5;
    fs::write(&limits, half).expect("its last write is missing");
    seat(room.path(), &page).expect("mended");
    let found = fs::read(&limits).expect("read");
    assert_eq!(found[limits::SEQUENCE], 6_u64.to_le_bytes());
}

#[test]
fn removing_what_is_not_there_is_fine() {
    let room = tempfile::tempdir().expect("tempdir");
    let missing = room.path().join("missing");
    remove(&missing).expect("fine");
    assert_eq!(names(&missing).expect("fine"), Vec::<String>::new());
    directory(&missing, 0o700).expect("made");
    remove(&missing).expect("removed");
    assert!(!missing.exists());
}

//! What is on disk after each writer, in a temporary directory.

use std::os::unix::fs::MetadataExt as _;

use super::*;

fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("exists").ino()
}

#[test]
fn replaces_by_rename_and_leaves_no_temporary_file() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("a.json");
    assert!(replace(&path, b"1").expect("first"));
    let first = inode(&path);
    assert!(!replace(&path, b"1").expect("unchanged"));
    assert_eq!(inode(&path), first);
    assert!(replace(&path, b"2").expect("second"));
    assert_eq!(fs::read(&path).expect("read"), b"2");
    assert_eq!(names(dir.path()).expect("list"), ["a.json"]);
}

#[test]
fn retains_files_and_counters_when_limits_change() {
    let dir = tempfile::tempdir().expect("tempdir");
    let container_dir = dir.path().join("n");
    let page = |fill| {
        let mut page = [0; limits::SIZE];
        page[64] = fill;
        page
    };
    container_directory(&container_dir, &page(1)).expect("made");
    let (limits, slots) = (
        container_dir.join("limits"),
        container_dir.join("counters/slots"),
    );
    fs::write(&slots, b"used").expect("the container writes");
    let inodes = (inode(&limits), inode(&slots));
    container_directory(&container_dir, &page(1)).expect("unchanged");
    assert_eq!(fs::read(&limits).expect("read")[limits::SEQUENCE], [0; 8]);
    container_directory(&container_dir, &page(2)).expect("changed");
    let found = fs::read(&limits).expect("read");
    assert_eq!((found.len(), found[64]), (limits::SIZE, 2));
    assert_eq!(found[limits::SEQUENCE], 2_u64.to_le_bytes());
    assert_eq!((inode(&limits), inode(&slots)), inodes);
    assert_eq!(fs::read(&slots).expect("read"), b"used");
}

#[test]
fn repairs_limits_page_after_interrupted_write() {
    let dir = tempfile::tempdir().expect("tempdir");
    let page = [0; limits::SIZE];
    container_directory(dir.path(), &page).expect("made");
    let limits = dir.path().join("limits");
    let mut half = page;
    half[limits::SEQUENCE.start] = 5;
    fs::write(&limits, half).expect("written");
    container_directory(dir.path(), &page).expect("repaired");
    let found = fs::read(&limits).expect("read");
    assert_eq!(found[limits::SEQUENCE], 6_u64.to_le_bytes());
}

#[test]
fn removing_missing_path_succeeds() {
    let dir = tempfile::tempdir().expect("tempdir");
    let missing = dir.path().join("missing");
    remove(&missing).expect("fine");
    assert_eq!(names(&missing).expect("fine"), Vec::<String>::new());
    directory(&missing, 0o700).expect("made");
    remove(&missing).expect("removed");
    assert!(!missing.exists());
}

//! What is on disk after each writer, in a temporary directory.

use std::os::unix::fs::MetadataExt as _;

use super::*;

#[test]
fn replaces_by_rename_and_leaves_no_temporary_file() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("a.json");
    let inode = || fs::metadata(&path).expect("exists").ino();
    assert!(replace(&path, b"1").expect("first"));
    let first = inode();
    assert!(!replace(&path, b"1").expect("unchanged"));
    assert_eq!(inode(), first);
    assert!(replace(&path, b"2").expect("second"));
    assert_eq!(fs::read(&path).expect("read"), b"2");
    assert_eq!(names(dir.path()).expect("list"), ["a.json"]);
    let missing = dir.path().join("missing");
    remove(&missing).expect("fine");
    assert_eq!(names(&missing).expect("fine"), Vec::<String>::new());
}

#[test]
fn program_can_be_run_as_soon_as_it_has_its_name() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("program");
    let mode = || fs::metadata(&path).expect("exists").mode() & 0o777;
    replace_program(&path, b"1").expect("written");
    assert_eq!(mode(), 0o755);
    replace(&path, b"2").expect("written");
    assert_eq!(mode(), 0o644);
}

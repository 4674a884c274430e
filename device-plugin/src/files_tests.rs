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
fn removing_missing_path_succeeds() {
    let dir = tempfile::tempdir().expect("tempdir");
    let missing = dir.path().join("missing");
    remove(&missing).expect("fine");
    assert_eq!(names(&missing).expect("fine"), Vec::<String>::new());
    directory(&missing, 0o700).expect("made");
    remove(&missing).expect("removed");
    assert!(!missing.exists());
}

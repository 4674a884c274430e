//! The program as a runtime runs it, with images that mean harm.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const OURS: &str = "/.aliquot/lib/libvgpu.so\n";

/// What the program does with a bundle whose root `make` fills; the seat's list after it.
fn check(make: impl FnOnce(&Path), expected: Result<&str, &str>) {
    let room = tempfile::tempdir().expect("a folder");
    let at = |path: &str| room.path().join(path);
    fs::create_dir_all(at("rootfs/etc")).expect("made");
    fs::write(at("config.json"), r#"{"root": {"path": "rootfs"}}"#).expect("written");
    fs::write(at("outside"), "/secret.so\n").expect("written");
    fs::write(at("list"), "of the container before").expect("written");
    make(&at("rootfs/etc/ld.so.preload"));
    let state = format!(r#"{{"bundle": "{}"}}"#, room.path().display());
    let output = run(&at("list"), &state);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let list = fs::read_to_string(at("list")).expect("read");
    match expected {
        Ok(rest) => {
            assert!(output.status.success(), "{said}");
            assert_eq!(list, format!("{OURS}{rest}"));
        }
        Err(words) => {
            assert_eq!(output.status.code(), Some(1));
            assert!(said.contains(words) && said.lines().count() == 1, "{said}");
        }
    }
}

fn run(list: &Path, state: &str) -> Output {
    let mut hook = Command::new(env!("CARGO_BIN_EXE_aliquot-hook"))
        .arg("preload")
        .arg(list)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = hook.stdin.take().expect("piped");
    input.write_all(state.as_bytes()).expect("written");
    drop(input);
    hook.wait_with_output().expect("it ends")
}

#[test]
fn what_an_image_preloads_follows_ours() {
    check(|_| (), Ok(""));
    check(
        |list| fs::write(list, "/a.so\n").expect("written"),
        Ok("/a.so\n"),
    );
    let linked = |list: &Path| {
        fs::write(list.with_file_name("real"), "/b.so").expect("written");
        symlink("/etc/real", list).expect("linked");
    };
    check(linked, Ok("/b.so"));
}

#[test]
fn no_link_of_an_image_leads_out_of_it() {
    for target in ["/outside", "../../outside", "../../../../../../etc/passwd"] {
        check(|list| symlink(target, list).expect("linked"), Ok(""));
    }
    check(|list| symlink(list, list).expect("linked"), Ok(""));
}

#[test]
fn what_is_no_file_keeps_nobody_waiting() {
    let fifo = |list: &Path| {
        let made = Command::new("mkfifo").arg(list).status();
        assert!(made.expect("mkfifo").success());
    };
    check(fifo, Ok(""));
    check(|list| fs::create_dir(list).expect("made"), Ok(""));
}

#[test]
fn what_cannot_be_merged_is_said_and_not_hidden() {
    let long = |list: &Path| fs::write(list, vec![b'#'; 65 << 10]).expect("written");
    check(long, Err("is longer than 65536 bytes"));
    let room = tempfile::tempdir().expect("a folder");
    for (state, words) in [
        ("", "cannot be read"),
        ("{}", "did not name the container's bundle"),
        (r#"{"bundle": "/nowhere"}"#, "/nowhere/config.json"),
    ] {
        let output = run(&room.path().join("list"), state);
        assert_eq!(output.status.code(), Some(1), "{state}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(words), "{said}");
    }
}

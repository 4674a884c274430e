//! The program as a runtime runs it, with hostile images.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const OURS: &str = "/.aliquot/lib/libvgpu.so\n";

/// Runs the program with a bundle whose root `make` fills, and checks the container's list
/// afterwards.
fn check(make: impl FnOnce(&Path), expected: Result<&str, &str>) {
    let temp = tempfile::tempdir().expect("a folder");
    let at = |path: &str| temp.path().join(path);
    fs::create_dir_all(at("rootfs/etc")).expect("made");
    fs::write(at("config.json"), r#"{"root": {"path": "rootfs"}}"#).expect("written");
    fs::write(at("outside"), "/secret.so\n").expect("written");
    fs::write(at("list"), "of the container before").expect("written");
    make(&at("rootfs/etc/ld.so.preload"));
    let state = format!(r#"{{"bundle": "{}"}}"#, temp.path().display());
    let output = run(&["preload", &at("list").display().to_string()], &state);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let list = fs::read_to_string(at("list")).expect("read");
    match expected {
        Ok(rest) => {
            assert!(output.status.success(), "{stderr}");
            assert_eq!(list, format!("{OURS}{rest}"));
        }
        Err(words) => {
            assert_eq!(output.status.code(), Some(1));
            assert!(
                stderr.contains(words) && stderr.lines().count() == 1,
                "{stderr}"
            );
        }
    }
}

fn run(arguments: &[&str], state: &str) -> Output {
    let mut hook = Command::new(env!("CARGO_BIN_EXE_aliquot-hook"))
        .args(arguments)
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
fn appends_image_preloads_after_limiter() {
    check(|_| (), Ok(""));
    check(
        |list| fs::write(list, "/a.so\n").expect("written"),
        Ok("/a.so\n"),
    );
    let twice = |list: &Path| fs::write(list, format!("{OURS}/a.so # why\n")).expect("written");
    check(twice, Ok("/a.so # why\n"));
    let linked = |list: &Path| {
        fs::write(list.with_file_name("real"), "/b.so").expect("written");
        symlink("/etc/real", list).expect("linked");
    };
    check(linked, Ok("/b.so"));
}

#[test]
fn resolves_image_links_inside_its_root() {
    for target in ["/outside", "../../outside", "../../../../../../etc/passwd"] {
        check(|list| symlink(target, list).expect("linked"), Ok(""));
    }
    check(|list| symlink(list, list).expect("linked"), Ok(""));
}

#[test]
fn ignores_preload_list_that_is_no_file() {
    let fifo = |list: &Path| {
        let made = Command::new("mkfifo").arg(list).status();
        assert!(made.expect("mkfifo").success());
    };
    check(fifo, Ok(""));
    check(|list| fs::create_dir(list).expect("made"), Ok(""));
}

#[test]
fn fails_with_message_when_list_cannot_be_merged() {
    let long = |list: &Path| fs::write(list, vec![b'#'; 65 << 10]).expect("written");
    check(long, Err("is longer than 65536 bytes"));
    let temp = tempfile::tempdir().expect("a folder");
    let list = temp.path().join("list").display().to_string();
    for (state, words) in [
        ("", "cannot read the container state"),
        ("{}", "the container state has no bundle"),
        (r#"{"bundle": "/nowhere"}"#, "/nowhere/config.json"),
    ] {
        let output = run(&["preload", &list], state);
        assert_eq!(output.status.code(), Some(1), "{state}");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn container_starts_where_driver_limit_cannot_be_set() {
    let output = run(&["limit", "/no/nvml", "/no/directory"], "{}");
    assert!(output.status.success(), "{output:?}");
    let expected = "aliquot-hook: the container starts without the driver's limits: the container state has no pid\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

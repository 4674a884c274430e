//! Seats from what the device plugin writes, and from what nobody should have written.

use super::*;

/// As the device plugin of this release writes it; its own test compares.
const WRITTEN: &str = include_str!("../../device-plugin/src/accepted.golden.json");

fn state(files: &[(&str, &str)], folders: &[&str]) -> tempfile::TempDir {
    let room = tempfile::tempdir().expect("tempdir");
    for folder in folders {
        fs::create_dir_all(room.path().join("seats").join(folder)).expect("made");
    }
    fs::create_dir_all(room.path().join("accepted")).expect("made");
    for (name, text) in files {
        fs::write(room.path().join("accepted").join(name), text).expect("written");
    }
    room
}

#[test]
fn each_container_with_a_folder_is_a_seat() {
    let room = state(&[("u1.json", WRITTEN)], &["GPU-a-0-1/lib", "GPU-a-1-2"]);
    let seats = read(room.path());
    assert_eq!(seats.faults, []);
    let found: Vec<_> = seats
        .all
        .iter()
        .map(|s| (&*s.name, &*s.container))
        .collect();
    assert_eq!(found, [("GPU-a-0-1", "i"), ("GPU-a-1-2", "main")]);
    let [init, main] = &seats.all[..] else {
        panic!("two seats")
    };
    assert!(init.limited && !main.limited, "one has the library");
    assert_eq!((main.pod.as_str(), &*main.pod_name), ("u1", "train"));
    assert_eq!((&*main.namespace, main.priority), ("default", 1));
    assert_eq!(main.effective.utilization, Utilization::Force);
    assert!(main.effective.oom_killer);
    let device = &main.devices[0];
    assert_eq!(
        (device.uuid.as_str(), device.memory, device.cores),
        ("GPU-a", Mib(20), Percent(2))
    );
    assert_eq!(device.mode, Mode::Mps);
    assert!(main.limits().ends_with("seats/GPU-a-1-2/limits"));
    assert!(main.counters().ends_with("seats/GPU-a-1-2/counters/slots"));
}

#[test]
fn a_share_that_cannot_be_read_is_named_and_hides_no_other() {
    let check = |text: &str, expected: &str| {
        let files = [("u1.json", WRITTEN), ("u2.json", text)];
        let seats = read(state(&files, &["GPU-a-1-2", "x"]).path());
        assert_eq!(seats.all.len(), 1, "{text}");
        let problems: Vec<_> = seats.faults.iter().map(|one| &*one.problem).collect();
        assert!(problems.concat().contains(expected), "{problems:?}");
        assert_eq!(problems.is_empty(), expected.is_empty(), "{problems:?}");
    };
    check("{", "EOF");
    check("\0\0", "");
    check(
        &WRITTEN.replace("\"v\":1,\"pod\"", "\"v\":2,\"pod\""),
        "version 2",
    );
    let of_earlier = r#"{"v":1,"pod":"u2","namespace":"d","name":"p","names":["x"],
        "allocation":{"v":1,"node":"n","containers":{},"init":{},"priority":1},"containers":[]}"#;
    check(of_earlier, "whose x is");
    check(&of_earlier.replace("[\"x\"]", "[]"), "");
}

#[test]
fn a_pod_whose_share_cannot_be_read_is_known_to_have_one() {
    let room = state(&[("u1.json", WRITTEN), ("u2.json", "{")], &["GPU-a-1-2"]);
    let mut reader = Reader::new(room.path().to_owned());
    let seats = reader.read();
    assert_eq!(seats.accepted, ["u1".into(), "u2".into()].into());
    assert!(!seats.unlisted);
    fs::remove_dir_all(room.path().join("accepted")).expect("removed");
    for _ in 0..2 {
        assert!(reader.read().unlisted, "the list is gone");
    }
    let fresh = Reader::new(room.path().to_owned()).read();
    assert!(!fresh.unlisted, "nobody was given a share yet");
    fs::write(room.path().join("accepted"), "").expect("written");
    assert!(read(room.path()).unlisted, "no folder");
}

#[test]
fn a_seat_that_was_long_in_the_making_was_without_the_library_for_ever() {
    let room = state(&[("u1.json", WRITTEN)], &["GPU-a-1-2"]);
    let long_ago = SystemTime::now() - SETTLED * 10;
    for folder in ["accepted", "seats"] {
        let folder = fs::File::open(room.path().join(folder)).expect("opened");
        folder.set_modified(long_ago).expect("set");
    }
    let mut reader = Reader::new(room.path().to_owned());
    let first = reader.read();
    assert!(Arc::ptr_eq(&first, &reader.read()), "nothing changed");
    assert!(!first.all[0].limited);
    fs::create_dir(room.path().join("seats/GPU-a-1-2/lib")).expect("made");
    assert!(reader.read().all[0].limited, "no time of change says so");
}

#[test]
fn a_share_that_could_not_be_read_once_stayed_a_fault() {
    let room = state(&[("u1.json", "{")], &["GPU-a-1-2"]);
    let settle = || {
        for folder in ["accepted", "seats"] {
            let folder = fs::File::open(room.path().join(folder)).expect("opened");
            folder.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        }
    };
    settle();
    let mut reader = Reader::new(room.path().to_owned());
    assert_eq!(reader.read().faults.len(), 1);
    fs::write(room.path().join("accepted/u1.json"), WRITTEN).expect("written");
    settle();
    assert_eq!(reader.read().all.len(), 1);
}

#[test]
fn a_list_is_read_again_only_when_something_changed() {
    let room = state(&[("u1.json", WRITTEN)], &["GPU-a-1-2"]);
    let mut reader = Reader::new(room.path().to_owned());
    let first = reader.read();
    assert!(Arc::ptr_eq(&first, &reader.read()), "the same list");
    fs::remove_file(room.path().join("accepted/u1.json")).expect("removed");
    assert_eq!(reader.read().all, []);
    assert_eq!(Reader::new("/nonexistent".into()).read().all, []);
}

#[test]
fn a_seat_made_ahead_under_a_clock_that_was_behind_was_taken_for_an_older_one() {
    let of_main = WRITTEN.replace("\"GPU-a-0-1\":\"i\"", "\"GPU-a-0-1\":\"main\"");
    let check = |order: &str, folders: [&str; 2], expected: &str| {
        let known = "\"order\":{\"GPU-a-0-1\":1,\"GPU-a-1-2\":2}";
        assert!(of_main.contains(known));
        let share = of_main.replace(known, order);
        let room = state(&[("u1.json", &share)], &folders[..1]);
        let first = made(&room.path().join("seats").join(folders[0]));
        // The time of making is as coarse as the kernel's clock.
        let second = room.path().join("seats").join(folders[1]);
        while made(&second) <= first {
            let _ = fs::remove_dir(&second);
            fs::create_dir(&second).expect("made");
        }
        let found: Vec<String> = read(room.path()).all.into_iter().map(|s| s.name).collect();
        assert_eq!(found, [expected], "{order}");
    };
    let (a, b) = ("GPU-a-0-1", "GPU-a-1-2");
    for folders in [[a, b], [b, a]] {
        check("\"order\":{\"GPU-a-0-1\":1,\"GPU-a-1-2\":2}", folders, b);
        check("\"order\":{\"GPU-a-0-1\":2,\"GPU-a-1-2\":1}", folders, a);
        // One of an earlier release, and one of this.
        check("\"order\":{\"GPU-a-0-1\":1}", folders, a);
        check("\"order\":{}", folders, folders[1]);
    }
}

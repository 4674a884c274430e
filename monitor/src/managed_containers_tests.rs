//! Reads what the device plugin writes, and invalid files.

use aliquot_node_state::limits::UtilizationPolicy;

use super::*;

/// As the device plugin of this release writes it; a test of node-state compares.
const WRITTEN: &str = include_str!("../../node-state/src/accepted.golden.json");

fn state(files: &[(&str, &str)], folders: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("tempdir");
    for folder in folders {
        fs::create_dir_all(dir.path().join("containers").join(folder)).expect("made");
    }
    fs::create_dir_all(dir.path().join("accepted")).expect("made");
    for (name, text) in files {
        fs::write(dir.path().join("accepted").join(name), text).expect("written");
    }
    dir
}

/// Both folders changed long ago.
fn make_old(dir: &tempfile::TempDir) {
    for folder in ["accepted", "containers"] {
        let folder = fs::File::open(dir.path().join(folder)).expect("opened");
        folder.set_modified(SystemTime::UNIX_EPOCH).expect("set");
    }
}

#[test]
fn lists_each_container_with_a_directory() {
    let dir = state(&[("u1.json", WRITTEN)], &["GPU-a-0-1/lib", "GPU-a-1-2"]);
    let containers = read(dir.path());
    assert!(containers.unreadable.is_empty());
    let found: Vec<_> = containers.all.iter().map(|s| (&*s.id, &*s.name)).collect();
    assert_eq!(found, [("GPU-a-0-1", "i"), ("GPU-a-1-2", "main")]);
    let [init, main] = &containers.all[..] else {
        panic!("two containers")
    };
    assert!(init.limited && !main.limited, "one has the library");
    assert_eq!((main.pod.as_str(), &*main.pod_name), ("u1", "train"));
    assert_eq!(main.namespace, "default");
    assert_eq!(main.effective.utilization, UtilizationPolicy::Force);
    assert!(main.effective.oom_killer);
    let device = &main.devices[0];
    let amounts = (device.uuid.as_str(), device.memory, device.cores);
    assert_eq!(amounts, ("GPU-a", Mib(20), Percent(2)));
    assert_eq!(device.mode, Mode::Mps);
    let directory = dir.path().join("containers/GPU-a-1-2");
    assert_eq!(main.directory.limits(), directory.join("limits"));
    assert_eq!(main.directory.counters(), directory.join("counters/slots"));
}

#[test]
fn names_unreadable_share_without_hiding_others() {
    let check = |text: &str, expected: &str| {
        let files = [("u1.json", WRITTEN), ("u2.json", text)];
        let containers = read(state(&files, &["GPU-a-1-2", "x"]).path());
        assert_eq!(containers.all.len(), 1, "{text}");
        let problems: String = containers.unreadable.into_values().collect();
        assert!(problems.contains(expected), "{problems}");
        assert_eq!(problems.is_empty(), expected.is_empty(), "{problems}");
    };
    check("{", "EOF");
    check("\0\0", "");
    check(
        &WRITTEN.replace("\"v\":1,\"pod\"", "\"v\":2,\"pod\""),
        "version 2",
    );
    let name = r#"{"name":"x","container":"c"}"#;
    let of_nobody = format!(
        r#"{{"v":1,"pod":"u2","namespace":"d","name":"p","names":[{name}],
        "allocation":{{"v":1,"node":"n","containers":{{}},"init":{{}},"priority":1}},"containers":[]}}"#
    );
    check(&of_nobody, "container c has no allocation");
    check(&of_nobody.replace(name, ""), "");
}

#[test]
fn lists_pod_of_unreadable_share_as_accepted() {
    let dir = state(&[("u1.json", WRITTEN), ("u2.json", "{")], &["GPU-a-1-2"]);
    let mut reader = ContainerReader::new(dir.path().to_owned());
    let containers = reader.read();
    assert_eq!(containers.accepted, ["u1".into(), "u2".into()].into());
    assert!(!containers.unlisted);
    fs::remove_dir_all(dir.path().join("accepted")).expect("removed");
    for _ in 0..2 {
        assert!(reader.read().unlisted, "the list is gone");
    }
    let fresh = ContainerReader::new(dir.path().to_owned()).read();
    assert!(!fresh.unlisted, "nobody was given a share yet");
    fs::write(dir.path().join("accepted"), "").expect("written");
    assert!(read(dir.path()).unlisted, "no folder");
}

#[test]
fn notices_limiter_added_without_modification_time() {
    let dir = state(&[("u1.json", WRITTEN)], &["GPU-a-1-2"]);
    make_old(&dir);
    let mut reader = ContainerReader::new(dir.path().to_owned());
    let first = reader.read();
    assert!(Arc::ptr_eq(&first, &reader.read()), "nothing changed");
    assert!(!first.all[0].limited);
    fs::create_dir(dir.path().join("containers/GPU-a-1-2/lib")).expect("made");
    assert!(
        reader.read().all[0].limited,
        "without a new modification time"
    );
}

#[test]
fn rereads_share_that_was_unreadable() {
    let dir = state(&[("u1.json", "{")], &["GPU-a-1-2"]);
    make_old(&dir);
    let mut reader = ContainerReader::new(dir.path().to_owned());
    assert_eq!(reader.read().unreadable.len(), 1);
    let file = dir.path().join("accepted/u1.json");
    fs::write(&file, WRITTEN).expect("written");
    make_old(&dir);
    assert_eq!(reader.read().all.len(), 1);
    fs::remove_file(file).expect("removed");
    assert_eq!(reader.read().all, []);
    assert_eq!(ContainerReader::new("/nonexistent".into()).read().all, []);
}

#[test]
fn container_runs_in_its_last_directory() {
    let written =
        r#"[{"name":"GPU-a-0-1","container":"i"},{"name":"GPU-a-1-2","container":"main"}]"#;
    assert!(WRITTEN.contains(written));
    let name = |name: &str| format!(r#"{{"name":"{name}","container":"main"}}"#);
    for (first, last) in [("GPU-a-0-1", "GPU-a-1-2"), ("GPU-a-1-2", "GPU-a-0-1")] {
        let names = format!("[{},{}]", name(first), name(last));
        let share = WRITTEN.replace(written, &names);
        let dir = state(&[("u1.json", &share)], &["GPU-a-0-1", "GPU-a-1-2"]);
        let found: Vec<String> = read(dir.path()).all.into_iter().map(|s| s.id).collect();
        assert_eq!(found, [last]);
    }
}

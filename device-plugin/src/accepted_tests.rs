//! The store across restarts of the agent.

use super::*;
use crate::environment::Utilization;
use crate::testing::{allocation, grant};

fn accepted(uid: &str) -> Accepted {
    let container = |name: &str, stage| Container {
        name: name.to_owned(),
        stage,
        effective: Effective {
            utilization: Utilization::Force,
            oom_killer: true,
            oversubscribe: false,
            uncontrolled: false,
        },
    };
    Accepted::new(
        uid.into(),
        "default".to_owned(),
        uid.to_owned(),
        allocation(&[
            ("i", &[grant("GPU-a", 50, 5)]),
            ("main", &[grant("GPU-a", 20, 2)]),
        ]),
        vec![container("i", Stage::Init), container("main", Stage::App)],
    )
}

#[test]
fn what_was_stored_is_there_after_a_restart() {
    let room = tempfile::tempdir().expect("tempdir");
    let directory = room.path().join("accepted");
    let mut store = Store::open(directory.clone()).expect("new");
    store.put(accepted("u1")).expect("stored");
    store.put(accepted("u2")).expect("stored");
    let name = Name::parse("GPU-a-0-1").expect("name");
    store
        .note_names(&"u2".into(), [(&name, "main")])
        .expect("stored");
    store.remove(&"u1".into()).expect("removed");
    let again = Store::open(directory).expect("reopened");
    let mut expected = accepted("u2");
    expected.note(&name, "main");
    assert_eq!(again.all().collect::<Vec<_>>(), [&expected]);
}

#[test]
fn a_pods_use_follows_the_stages_of_its_containers() {
    let share = accepted("u1");
    let cards = share.uses();
    let used = cards[&aliquot_core::GpuUuid::from("GPU-a")];
    assert_eq!((used.seats, used.memory.0, used.cores.0), (1, 50, 5));
}

#[test]
fn one_damaged_share_stopped_the_whole_agent() {
    let check = |text: &str, expected: &str| {
        let room = tempfile::tempdir().expect("tempdir");
        let mut store = Store::open(room.path().to_owned()).expect("new");
        store.put(accepted("u2")).expect("stored");
        std::fs::write(room.path().join("u1.json"), text).expect("written");
        let mut store = Store::open(room.path().to_owned()).expect(text);
        assert_eq!(store.all().collect::<Vec<_>>(), [&accepted("u2")]);
        let why = store.damaged().get("u1").expect("told").clone();
        assert!(why.contains(expected), "{why}");
        // Judged again it is whole, and of one that is gone nothing is left.
        store.put(accepted("u1")).expect("stored");
        assert!(store.damaged().is_empty());
        std::fs::write(room.path().join("u1.json"), text).expect("written");
        let mut store = Store::open(room.path().to_owned()).expect(text);
        store.remove(&"u1".into()).expect("removed");
        assert!(store.damaged().is_empty());
        let again = Store::open(room.path().to_owned()).expect("opened");
        assert!(again.damaged().is_empty());
    };
    check("{", "EOF");
    let text = serde_json::to_string(&accepted("u1")).expect("json");
    check(&text[..text.len() / 2], "EOF");
    check(
        &text.replace("\"v\":1,\"pod\"", "\"v\":9,\"pod\""),
        "version 9",
    );
    check(&text.replace("\"init\"", "\"later\""), "init");
    check(&text.replace("\"u1\"", "\"u3\""), "pod u3");
}

#[test]
fn a_share_that_a_power_cut_left_empty_is_judged_again() {
    let room = tempfile::tempdir().expect("tempdir");
    std::fs::write(room.path().join("u1.json"), "").expect("written");
    std::fs::write(room.path().join("u2.json"), [0; 512]).expect("written");
    let mut store = Store::open(room.path().to_owned()).expect("opened");
    assert_eq!(store.all().count(), 0);
    store.put(accepted("u1")).expect("stored");
    let again = Store::open(room.path().to_owned()).expect("opened");
    assert_eq!(again.all().collect::<Vec<_>>(), [&accepted("u1")]);
}

#[test]
fn a_file_left_half_written_by_a_crash_is_passed_over() {
    let room = tempfile::tempdir().expect("tempdir");
    std::fs::write(room.path().join("u1.tmp"), "{").expect("written");
    let store = Store::open(room.path().to_owned()).expect("opened");
    assert_eq!(store.all().count(), 0);
}

/// The monitor reads the same file.
#[test]
fn a_stored_share_is_what_the_monitor_reads() {
    let mut share = accepted("u1");
    share.pod_name = "train".to_owned();
    for (name, container) in [("GPU-a-0-1", "i"), ("GPU-a-1-2", "main")] {
        share.note(&Name::parse(name).expect("a name"), container);
    }
    share.modes = [("GPU-a".into(), Mode::Mps)].into();
    let text = serde_json::to_string(&share).expect("json");
    assert_eq!(text, include_str!("accepted.golden.json").trim_end());
}

//! The store across restarts of the agent.

use aliquot_core::usage::Stage;
use aliquot_node_state::accepted::AcceptedContainer;
use aliquot_node_state::limits::{EffectiveLimits, UtilizationPolicy};

use super::*;
use crate::testing::{allocation, grant};

fn accepted(uid: &str) -> AcceptedAllocation {
    let container = |name: &str, stage| AcceptedContainer {
        name: name.to_owned(),
        stage,
        effective: EffectiveLimits {
            utilization: UtilizationPolicy::Force,
            oom_killer: true,
            oversubscribe: false,
            uncontrolled: false,
        },
    };
    AcceptedAllocation::new(
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
fn restores_accepted_allocations_after_restart() {
    let dir = tempfile::tempdir().expect("tempdir");
    let directory = dir.path().join("accepted");
    let mut store = Store::open(directory.clone()).expect("new");
    store.put(accepted("u1")).expect("stored");
    store.put(accepted("u2")).expect("stored");
    let name = AnswerName::parse("GPU-a-0-1").expect("name");
    store
        .record_names(&"u2".into(), [(&name, "main")])
        .expect("stored");
    store.remove(&"u1".into()).expect("removed");
    let again = Store::open(directory).expect("reopened");
    let mut expected = accepted("u2");
    expected.record_name(&name, "main");
    assert_eq!(again.all().collect::<Vec<_>>(), [&expected]);
}

#[test]
fn opens_store_with_one_damaged_file() {
    let check = |text: &str, expected: &str| {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut store = Store::open(dir.path().to_owned()).expect("new");
        store.put(accepted("u2")).expect("stored");
        std::fs::write(dir.path().join("u1.json"), text).expect("written");
        let mut store = Store::open(dir.path().to_owned()).expect(text);
        assert_eq!(store.all().collect::<Vec<_>>(), [&accepted("u2")]);
        let why = store.damaged().get("u1").expect("reported").clone();
        assert!(why.contains(expected), "{why}");
        // A new validation replaces it, and removal leaves nothing behind.
        store.put(accepted("u1")).expect("stored");
        assert!(store.damaged().is_empty());
        std::fs::write(dir.path().join("u1.json"), text).expect("written");
        let mut store = Store::open(dir.path().to_owned()).expect(text);
        store.remove(&"u1".into()).expect("removed");
        assert!(store.damaged().is_empty());
        let again = Store::open(dir.path().to_owned()).expect("opened");
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
fn validates_again_after_power_cut_emptied_file() {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("u1.json"), "").expect("written");
    std::fs::write(dir.path().join("u2.json"), [0; 512]).expect("written");
    let mut store = Store::open(dir.path().to_owned()).expect("opened");
    assert_eq!(store.all().count(), 0);
    store.put(accepted("u1")).expect("stored");
    let again = Store::open(dir.path().to_owned()).expect("opened");
    assert_eq!(again.all().collect::<Vec<_>>(), [&accepted("u1")]);
}

#[test]
fn ignores_temporary_file_left_by_crash() {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("u1.tmp"), "{").expect("written");
    let store = Store::open(dir.path().to_owned()).expect("opened");
    assert_eq!(store.all().count(), 0);
}

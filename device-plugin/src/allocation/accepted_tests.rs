//! The store across restarts of the agent.

use super::*;
use crate::testing::share_of;

fn accepted(uid: &str) -> AcceptedAllocation {
    share_of(uid, &["GPU-a"])
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
    // Emptied by a power cut, and left by a crash.
    std::fs::write(directory.join("u3.json"), [0; 512]).expect("written");
    std::fs::write(directory.join("u4.tmp"), "{").expect("written");
    let again = Store::open(directory).expect("reopened");
    let mut expected = accepted("u2");
    expected.record_name(&name, "main");
    assert_eq!(again.all().collect::<Vec<_>>(), [&expected]);
    assert!(again.damaged().is_empty());
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
    check(&text.replace("\"app\"", "\"later\""), "later");
    check(&text.replace("\"u1\"", "\"u3\""), "pod u3");
}

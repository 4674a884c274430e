//! What is published, and to whom.

use super::*;
use crate::testing::{arrangement, facts};

#[test]
fn what_is_published_is_what_the_annotation_carries() {
    let facts = facts(&["GPU-a", "GPU-b"]);
    let published = Published::new(facts, Vec::new(), arrangement(&["GPU-a", "GPU-b"]));
    let inventory = published.get().inventory.clone();
    assert_eq!(inventory.gpus.len(), 2);
    let text = inventory.encode().expect("json");
    assert_eq!(Inventory::decode(&text).expect("json"), inventory);
}

#[test]
fn readers_see_changes_and_only_changes() {
    let published = Published::new(facts(&["GPU-a"]), Vec::new(), arrangement(&["GPU-a"]));
    let changes = published.subscribe();
    published.cards(&facts(&["GPU-a"]), &[], Sickness::default(), Held::new());
    assert_eq!(changes.has_changed().ok(), Some(false));
    let refused = |reason: &str| Refused {
        pod: "u1".into(),
        namespace: "default".to_owned(),
        name: "p".to_owned(),
        reason: reason.to_owned(),
    };
    published.refused(refused("one"));
    published.refused(refused("two"));
    assert_eq!(changes.has_changed().ok(), Some(true));
    assert_eq!(published.get().inventory.refused, [refused("two")]);
    published.keep_refused(|pod| pod.as_str() != "u1");
    assert!(published.get().inventory.refused.is_empty());
}

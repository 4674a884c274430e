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

#[test]
fn an_instance_is_booked_as_itself_where_it_is_a_unit_and_as_its_card_elsewhere() {
    let mut facts = facts(&["GPU-a", "GPU-b"]);
    let instance = |uuid: &str, current: &str| nvml::Instance {
        profile: "1g.5gb".to_owned(),
        start: 6,
        size: 1,
        memory: aliquot_core::Mib(4864),
        id: 13,
        devices: vec![nvml::Device {
            uuid: uuid.to_owned(),
            current: current.to_owned(),
            id: 0,
            whole: true,
        }],
    };
    facts.cards[0].cut.instances = vec![instance("MIG-1", "MIG-1now")];
    facts.cards[1].cut.instances = vec![instance("MIG-2", "MIG-2")];
    let mut arrangement = arrangement(&["GPU-a", "GPU-b"]);
    let layout = aliquot_profiles::mode::Mig {
        layout: vec![aliquot_profiles::mode::Slice {
            profile: "1g.5gb".to_owned(),
            count: 1,
            on: None,
        }],
        ..aliquot_profiles::mode::Mig::default()
    };
    let cut = units::Stand::open(aliquot_profiles::Mode::Mig(layout));
    arrangement.cards.insert("GPU-a".into(), cut);
    let node = Published::new(facts, Vec::new(), arrangement).get();
    let named = node.booked_as();
    let check = |name: &str, unit: &str| assert_eq!(named[name].as_str(), unit, "{name}");
    check("MIG-1", "MIG-1");
    check("MIG-1now", "MIG-1");
    check("MIG-2", "GPU-b");
    check("GPU-a", "GPU-a");
}

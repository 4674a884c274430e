//! From the driver's facts to the inventory and its seats.

use super::*;
use crate::testing::{RESOURCE, facts};

fn sharing(scaling: &str) -> Sharing {
    Sharing {
        seats: 2,
        scaling: scaling.parse().expect("good"),
        resource: RESOURCE.to_owned(),
    }
}

fn health(uuid: &str, health: nvml::Health) -> nvml::CardHealth {
    nvml::CardHealth {
        uuid: uuid.to_owned(),
        health,
    }
}

#[test]
fn the_inventory_is_the_drivers_facts_under_the_nodes_settings() {
    let published = Published::new(&facts(&["GPU-a", "GPU-b"]), &[], &sharing("1.5"));
    let inventory = published.get().inventory.clone();
    let gpu = &inventory.gpus[1];
    assert_eq!((gpu.uuid.as_str(), gpu.index, gpu.seats), ("GPU-b", 1, 2));
    assert_eq!((gpu.memory.0, gpu.scaled.0), (10_000, 15_000));
    let text = inventory.encode().expect("json");
    assert_eq!(Inventory::decode(&text).expect("json"), inventory);
}

#[test]
fn seats_follow_the_health_and_mode_of_their_card() {
    let mut facts = facts(&["GPU-a", "GPU-b", "GPU-c"]);
    facts.cards[2].mig.enabled = true;
    let published = Published::new(
        &facts,
        &[
            health("GPU-a", nvml::Health::Xid(79)),
            health("GPU-b", nvml::Health::Ok),
        ],
        &sharing("1"),
    );
    let node = published.get();
    assert_eq!(
        node.inventory.gpus[0].health,
        Health::Sick("xid 79".to_owned())
    );
    let seats: Vec<_> = seats(&node)
        .into_iter()
        .map(|seat| (seat.id, seat.health))
        .collect();
    let expected = [
        ("GPU-a::0", UNHEALTHY),
        ("GPU-a::1", UNHEALTHY),
        ("GPU-b::0", HEALTHY),
        ("GPU-b::1", HEALTHY),
    ];
    assert_eq!(
        seats,
        expected.map(|(id, health)| (id.to_owned(), health.to_owned()))
    );
}

#[test]
fn a_seat_that_is_held_stays_healthy_on_a_sick_card() {
    let facts = facts(&["GPU-a", "GPU-b"]);
    let published = Published::new(&facts, &[], &sharing("1"));
    let sick = [health("GPU-a", nvml::Health::Xid(79))];
    let check = |held: &[&str], expected: &[&str]| {
        let sickness = Sickness {
            held: held.iter().map(|&id| id.to_owned()).collect(),
            ..Sickness::default()
        };
        published.cards(&facts, &sick, &sharing("1"), sickness);
        let healthy = seats(&published.get()).into_iter();
        let healthy = healthy.filter(|seat| seat.health == HEALTHY);
        let healthy: Vec<String> = healthy.map(|seat| seat.id).collect();
        assert_eq!(healthy, expected, "{held:?}");
    };
    check(&[], &["GPU-b::0", "GPU-b::1"]);
    check(&["GPU-a::1"], &["GPU-a::1", "GPU-b::0", "GPU-b::1"]);
    check(&["GPU-b::1"], &["GPU-b::0", "GPU-b::1"]);
}

#[test]
fn readers_see_changes_and_only_changes() {
    let published = Published::new(&facts(&["GPU-a"]), &[], &sharing("1"));
    let changes = published.subscribe();
    published.cards(&facts(&["GPU-a"]), &[], &sharing("1"), Sickness::default());
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

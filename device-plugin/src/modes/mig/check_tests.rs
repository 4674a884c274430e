//! Containers that see what was booked, and some that do not.

use aliquot_core::mig::published::Placed;
use aliquot_nvml::{Cut, Device, Instance};

use super::*;
use crate::inventory::Published;
use crate::testing::{accepted, allocation, arrangement, facts, grant};

const PLACE: &str = "1g.5gb";

fn node() -> Node {
    let mut facts = facts(&["GPU-a"]);
    let device = |uuid: &str, current: &str| Device {
        uuid: uuid.to_owned(),
        current: current.to_owned(),
        id: 0,
        whole: true,
    };
    let instance = |start, device| Instance {
        profile: PLACE.to_owned(),
        start,
        size: 1,
        memory: aliquot_core::Mib(1),
        id: 7 + u32::from(start),
        devices: vec![device],
    };
    facts.cards[0].cut = Cut {
        geometry: None,
        instances: vec![
            instance(0, device("MIG-known", "MIG-now")),
            instance(6, device("MIG-made", "MIG-made")),
        ],
    };
    let published = Published::new(facts, Vec::new(), arrangement(&["GPU-a"]));
    Node::clone(&published.get())
}

fn check(grants: &[Grant], has: &str, expected: &[&str]) {
    let share = accepted("u1", allocation(&[("main", grants)]));
    let shares = [
        share,
        accepted("u2", allocation(&[("main", &[grant("GPU-a", 1, 1)])])),
    ];
    let found = [
        ("u1".into(), has.to_owned()),
        ("u2".into(), "GPU-z".to_owned()),
    ];
    let wrong = wrong(&node(), &shares, &found);
    let said: Vec<String> = wrong.iter().map(|one| note(&shares[0], one).text).collect();
    assert_eq!(said, expected, "{has}");
}

fn made(start: u8) -> Grant {
    Grant {
        mig: Some(Placed {
            profile: PLACE.to_owned(),
            start,
        }),
        ..grant("GPU-a", 1, 100)
    }
}

#[test]
fn mig_13_a_container_with_another_instance_than_the_booked_one_is_found() {
    let known = [grant("MIG-known", 1, 100)];
    check(&known, "MIG-now", &[]);
    check(&known, "void", &[]);
    check(
        &known,
        "MIG-made",
        &[
            "a container runs with NVIDIA_VISIBLE_DEVICES=MIG-made, but was given MIG-now: delete the pod and create it again",
        ],
    );
    check(&[made(6)], "MIG-made", &[]);
    check(
        &[made(6)],
        "all",
        &[
            "a container runs with NVIDIA_VISIBLE_DEVICES=all, but was given MIG-made: delete the pod and create it again",
        ],
    );
    let both = [grant("MIG-known", 1, 100), made(6)];
    check(&both, "MIG-now,MIG-made", &[]);
    // One that is not there now cannot be compared.
    check(&[made(3)], "MIG-made", &[]);
    assert!(
        concerned(&[accepted(
            "u2",
            allocation(&[("main", &[grant("GPU-a", 1, 1)])])
        )])
        .is_empty()
    );
}

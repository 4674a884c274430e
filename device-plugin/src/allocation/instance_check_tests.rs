//! Containers that see the allocated instance, and some that do not.

use aliquot_core::mig::published::MigPlacement;
use aliquot_nvml::{GpuInstance, MigDevice, MigLayout};

use super::*;
use crate::gpus::inventory::NodePublisher;
use crate::testing::{accepted, allocation, facts, grant, layout_of};

const PLACE: &str = "1g.5gb";

fn node() -> PublishedNode {
    let mut facts = facts(&["GPU-a"]);
    let device = |uuid: &str, current: &str| MigDevice {
        uuid: uuid.to_owned(),
        current: current.to_owned(),
        id: 0,
        whole: true,
    };
    let instance = |start, device| GpuInstance {
        profile: PLACE.to_owned(),
        start,
        size: 1,
        memory: aliquot_core::Mib(1),
        id: 7 + u32::from(start),
        devices: vec![device],
    };
    facts.gpus[0].layout = MigLayout {
        geometry: None,
        instances: vec![
            instance(0, device("MIG-known", "MIG-now")),
            instance(6, device("MIG-made", "MIG-made")),
        ],
    };
    let published = NodePublisher::new(facts, Vec::new(), layout_of(&["GPU-a"]));
    PublishedNode::clone(&published.get())
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
    let wrong = wrong_instances(&node(), &shares, &found);
    let texts: Vec<String> = wrong.iter().map(|one| note(&shares[0], one).text).collect();
    assert_eq!(texts, expected, "{has}");
}

fn made(start: u8) -> Grant {
    Grant {
        burst: None,
        mig: Some(MigPlacement {
            profile: PLACE.to_owned(),
            start,
        }),
        ..grant("GPU-a", 1, 100)
    }
}

#[test]
fn mig_13_reports_container_with_wrong_instance() {
    let known = [grant("MIG-known", 1, 100)];
    check(&known, "MIG-now", &[]);
    check(&known, "void", &[]);
    check(
        &known,
        "MIG-made",
        &[
            "a container was started with the device MIG-made, expected MIG-now: delete the pod and create it again",
        ],
    );
    check(&[made(6)], "MIG-made", &[]);
    check(
        &[made(6)],
        "all",
        &[
            "a container was started with the device all, expected MIG-made: delete the pod and create it again",
        ],
    );
    let both = [grant("MIG-known", 1, 100), made(6)];
    check(&both, "MIG-now,MIG-made", &[]);
    // A missing instance cannot be compared.
    check(&[made(3)], "MIG-made", &[]);
    assert!(
        pods_with_instances(&[accepted(
            "u2",
            allocation(&[("main", &[grant("GPU-a", 1, 1)])])
        )])
        .is_empty()
    );
}

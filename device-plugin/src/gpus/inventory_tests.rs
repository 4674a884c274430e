//! What is published, and to whom.

use super::*;
use crate::testing::{facts, layout_entry, layout_of, published, readings, reported_instance};

#[test]
fn notifies_readers_only_of_changes() {
    let published = published(&["GPU-a"]);
    let changes = published.subscribe();
    let same = readings(&["GPU-a"], NodeFailures::default());
    published.set_readings(same, AllocatedIds::new());
    assert_eq!(changes.has_changed().ok(), Some(false));
    let refused = |reason: &str| RefusedPod {
        pod: "u1".into(),
        namespace: "default".to_owned(),
        name: "p".to_owned(),
        reason: reason.to_owned(),
    };
    published.add_refused(refused("one"), None);
    published.add_refused(refused("two"), None);
    assert_eq!(changes.has_changed().ok(), Some(true));
    assert_eq!(published.get().inventory.refused, [refused("two")]);
    published.retain_refused(|pod| pod.as_str() != "u1");
    assert!(published.get().inventory.refused.is_empty());
}

#[test]
fn publishes_what_the_monitor_reports_of_its_gpus() {
    let published = published(&["GPU-a"]);
    let gpus = ["GPU-a", "GPU-gone"].map(str::to_owned);
    published.set_monitor_reports(MonitorReports {
        unmeasured: gpus.clone().into(),
        unmanaged: gpus.map(|gpu| (gpu, Mib(256))).into(),
        uncorrected: None,
    });
    let text = published.get().inventory.encode().expect("json");
    let reported = r#""unmeasured":["GPU-a"],"unmanaged":{"GPU-a":256}"#;
    assert!(text.contains(reported), "{text}");
    published.set_monitor_reports(MonitorReports::default());
    let text = published.get().inventory.encode().expect("json");
    assert!(!text.contains("unm"), "{text}");
}

#[test]
fn cordons_gpus_whose_resource_another_plugin_serves() {
    let published = published(&["GPU-a"]);
    let taken = |resource: &str| TakenResource {
        resource: resource.to_owned(),
        ids: ["0".to_owned()].into_iter().collect(),
    };
    for (taken, expected) in [
        (vec![taken("nvidia.com/other")], None),
        (
            vec![taken("nvidia.com/gpu")],
            Some("another device plugin serves nvidia.com/gpu"),
        ),
        (Vec::new(), None),
    ] {
        published.set_taken_resources(taken);
        let node = published.get();
        assert_eq!(node.inventory.gpus[0].cordon.as_deref(), expected);
    }
}

#[test]
fn maps_instance_to_itself_or_its_gpu_in_the_ledger() {
    let mut facts = facts(&["GPU-a", "GPU-b"]);
    facts.gpus[0].layout.instances = vec![reported_instance(6, "MIG-1")];
    facts.gpus[1].layout.instances = vec![reported_instance(6, "MIG-2")];
    let mut layout = layout_of(&["GPU-a", "GPU-b"]);
    let mig = aliquot_profiles::mode::Mig {
        layout: vec![layout_entry("1g.5gb", 1, None)],
        ..aliquot_profiles::mode::Mig::default()
    };
    let partitioned = allocatable::GpuLayout::serving(aliquot_profiles::Mode::Mig(mig));
    layout.gpus.insert("GPU-a".into(), partitioned);
    let node = NodePublisher::new(facts, Vec::new(), layout).get();
    let named = node.ledger_ids();
    let check = |name: &str, id: &str| assert_eq!(named[name].as_str(), id, "{name}");
    check("MIG-1", "MIG-1");
    check("MIG-2", "GPU-b");
    check("GPU-a", "GPU-a");
}

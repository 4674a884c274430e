//! Containers that see the allocated instance, and some that do not.

use aliquot_nvml::MigLayout;

use super::*;
use crate::gpus::inventory::NodePublisher;
use crate::testing::{
    accepted, allocation, facts, grant, instance_grant, layout_of, reported_instance, share_of,
};

fn node() -> PublishedNode {
    let mut facts = facts(&["GPU-a"]);
    facts.gpus[0].layout = MigLayout {
        geometry: None,
        instances: vec![
            reported_instance(0, "MIG-known"),
            reported_instance(6, "MIG-made"),
        ],
    };
    let published = NodePublisher::new(facts, Vec::new(), layout_of(&["GPU-a"]));
    PublishedNode::clone(&published.get())
}

fn check(grants: &[Grant], has: &str, expected: &[&str]) {
    let share = accepted("u1", allocation(&[("main", grants)]));
    let shares = [share, share_of("u2", &["GPU-a"])].map(Arc::new);
    let found = [("u1", has), ("u2", "GPU-z")];
    let found = found.map(|(pod, has)| (PodUid::from(pod), BTreeSet::from([has.to_owned()])));
    let notes = wrong_instances(&node(), &shares, &BTreeMap::from(found));
    let texts: Vec<String> = notes.into_iter().map(|note| note.text).collect();
    assert_eq!(texts, expected, "{has}");
}

#[test]
fn mig_13_reports_container_with_wrong_instance() {
    let made = |start| instance_grant("GPU-a", "1g.5gb", start);
    let text = |has: &str, expected: &str| {
        format!(
            "a container was started with the device {has}, expected {expected}: delete the pod and create it again"
        )
    };
    let known = [grant("MIG-known", 1, 100)];
    check(&known, "MIG-known", &[]);
    check(&known, "MIG-made", &[&text("MIG-made", "MIG-known")]);
    check(&[made(6)], "MIG-made", &[]);
    check(&[made(6)], "all", &[&text("all", "MIG-made")]);
    let (long, start) = ("x".repeat(4096), "x".repeat(256));
    let repeated = format!("{start}… (4096 characters)");
    check(&[made(6)], &long, &[&text(&repeated, "MIG-made")]);
    let both = [grant("MIG-known", 1, 100), made(6)];
    check(&both, "MIG-known,MIG-made", &[]);
    // A missing instance cannot be compared.
    check(&[made(3)], "MIG-made", &[]);
}

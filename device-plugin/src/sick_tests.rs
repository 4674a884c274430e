//! Sick cards as values: whose seats stay, who is told what, who leaves.

use aliquot_core::mig::published::{Mig, Part};

use super::*;
use crate::environment::{Effective, NodeRules};
use crate::testing::{allocation, entry, grant, pod};

const A: &str = "GPU-a";
const B: &str = "GPU-b";
const RULES: NodeRules = NodeRules::new(true);

fn pods(all: Vec<Pod>) -> Vec<Arc<Pod>> {
    all.into_iter().map(Arc::new).collect()
}

fn ended(uid: &str) -> Pod {
    let mut pod = pod(uid);
    pod.phase = Phase::Ended;
    pod
}

/// A share of pod `uid` on these cards.
fn share(uid: &str, gpus: &[&str]) -> Accepted {
    let grants: Vec<_> = gpus.iter().map(|gpu| grant(gpu, 1000, 5)).collect();
    let containers = vec![crate::accepted::Container {
        name: "main".to_owned(),
        stage: aliquot_core::demand::Stage::App,
        effective: Effective::of(&BTreeMap::new(), RULES, false),
    }];
    let allocation = allocation(&[("main", &grants)]);
    Accepted::new(
        uid.into(),
        "default".to_owned(),
        uid.to_owned(),
        allocation,
        containers,
    )
}

fn well(gpu: &str) -> nvml::CardHealth {
    health(gpu, nvml::Health::Ok)
}

fn health(gpu: &str, health: nvml::Health) -> nvml::CardHealth {
    nvml::CardHealth {
        uuid: gpu.to_owned(),
        health,
    }
}

fn xid(gpu: &str, code: u64) -> Sick {
    diagnosis(&health(gpu, nvml::Health::Xid(code)), &Actions::default()).expect("sick")
}

#[test]
fn a_card_is_diagnosed_by_its_health_and_the_table() {
    let check = |found: nvml::Health, why: &str, action| {
        let sick = diagnosis(&health(A, found), &Actions::default()).expect("sick");
        assert_eq!((sick.gpu.as_str(), sick.action), (A, action), "{why}");
        assert!(sick.why.contains(why), "{}", sick.why);
    };
    check(
        nvml::Health::Xid(79),
        "XID 79 (GPU has fallen",
        Action::DrainNode,
    );
    check(
        nvml::Health::Xid(48),
        "XID 48 (double bit",
        Action::ResetGpu,
    );
    check(nvml::Health::Xid(999), "not in NVIDIA's", Action::ResetGpu);
    check(
        nvml::Health::Lost("gone".into()),
        "lost: gone",
        Action::DrainNode,
    );
    check(
        nvml::Health::RecoveryAsked(1),
        "reset of the GPU",
        Action::ResetGpu,
    );
    check(
        nvml::Health::RecoveryAsked(2),
        "restart of the node",
        Action::DrainNode,
    );
    check(
        nvml::Health::RecoveryAsked(4),
        "reset of the GPU",
        Action::ResetGpu,
    );
    assert_eq!(diagnosis(&well(A), &Actions::default()), None);
}

#[test]
fn seats_of_living_pods_are_held_whatever_card_their_ids_name() {
    let entries = [
        entry("u1", None, &["GPU-a::0"]),
        entry("u2", None, &["GPU-b::1"]),
        entry("over", None, &["GPU-a::2"]),
        entry("gone", None, &["GPU-a::3"]),
    ];
    let pods = pods(vec![pod("u1"), pod("u2"), ended("over")]);
    let check = |synced, expected: &[&str]| {
        let found = held(&entries, &pods, synced);
        let found: Vec<&String> = found[crate::testing::RESOURCE].iter().collect();
        assert_eq!(found, expected, "{synced}");
    };
    check(true, &["GPU-a::0", "GPU-b::1"]);
    check(false, &["GPU-a::0", "GPU-a::2", "GPU-a::3", "GPU-b::1"]);
}

#[test]
fn the_pods_of_the_sick_card_leave_and_no_others() {
    let mut fixed = pod("static");
    fixed.mirror = true;
    let pods = pods(vec![
        pod("u1"),
        pod("u2"),
        pod("both"),
        ended("over"),
        fixed,
    ]);
    let shares = [
        share("u1", &[A]),
        share("u2", &[B]),
        share("both", &[A, B]),
        share("over", &[A]),
        share("static", &[A]),
        share("gone", &[A]),
    ];
    let check = |sick: &[Sick], expected: &[&str]| {
        let leaving = evict(&concerned(sick, &shares, &pods));
        let names: Vec<&str> = leaving.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, expected, "{sick:?}");
        assert!(
            leaving.iter().all(|r| r.reason.contains("XID")),
            "{leaving:?}"
        );
    };
    check(&[], &[]);
    check(&[xid(A, 79)], &["both", "u1"]);
    check(&[xid(A, 79), xid(B, 48)], &["both", "u1", "u2"]);
}

#[test]
fn each_pod_is_told_once_of_each_trouble_and_once_of_its_end() {
    let here = pods(vec![pod("u1"), pod("u2")]);
    let shares = [share("u1", &[A]), share("u2", &[B])];
    let mut told = Told::default();
    let mut check = |sick: &[Sick], pods: &[Arc<Pod>], expected: &[(&str, &str, &str)]| {
        let notes = told.news(&concerned(sick, &shares, pods), pods, SickPods::Keep);
        assert_eq!(notes.len(), expected.len(), "{notes:?}");
        for (note, (pod, reason, part)) in notes.iter().zip(expected) {
            assert_eq!((note.pod.name.as_str(), note.reason), (*pod, *reason));
            assert!(
                note.text.contains(part) && note.text.contains("GPU-"),
                "{}",
                note.text
            );
        }
    };
    check(&[], &here, &[]);
    check(&[xid(A, 48)], &here, &[("u1", "GpuSick", "XID 48")]);
    check(&[xid(A, 48)], &here, &[]);
    check(
        &[xid(A, 79)],
        &here,
        &[("u1", "GpuSick", "needs drain-node")],
    );
    check(&[], &here, &[("u1", "GpuRecovered", "after XID 79")]);
    check(&[], &here, &[]);
    // A pod that ended meanwhile is told nothing, one that came late is.
    check(&[xid(B, 79)], &here[..1], &[]);
    check(
        &[xid(B, 79)],
        &here,
        &[("u2", "GpuSick", "keeps its share")],
    );
    check(&[], &here[..1], &[]);
}

#[test]
fn a_pod_is_told_that_it_is_evicted_unless_it_cannot_be() {
    let mut fixed = pod("static");
    fixed.mirror = true;
    let check = |pod: Pod, policy, expected: &str| {
        let text = fell_sick(&pod, &xid(A, 79), policy).text;
        assert!(text.ends_with(expected), "{text}");
    };
    check(pod("u1"), SickPods::Evict, "this pod is evicted");
    check(pod("u1"), SickPods::Keep, "this pod keeps its share");
    check(fixed, SickPods::Evict, "this pod keeps its share");
}

#[test]
fn mps_13_an_error_on_a_card_shared_by_mps_is_told_as_everybodys() {
    let gpu = GpuUuid::from(A);
    let text = |shared| application_error(&pod("u1"), &gpu, 31, shared).text;
    assert!(text(true).contains("MPS shares errors"), "{}", text(true));
    assert!(text(false).contains("an application on this GPU"));
    assert!(!text(false).contains("MPS"), "{}", text(false));
}

#[test]
fn a_sick_card_takes_its_instances_along_and_a_drained_node_all_its_units() {
    let mut units = crate::testing::inventory(&[A, B, "MIG-1"]).gpus;
    units[2].mig = Some(Mig::Part(Part {
        parent: A.into(),
        profile: "1g.5gb".to_owned(),
        start: 0,
        gi: 1,
        ci: 0,
    }));
    let check = |code: u64, policy: SickPods, expected: &[&str]| {
        let cards = [xid(A, code)];
        let all = touched(&cards, &units, policy);
        let mut found: Vec<&str> = all.iter().map(|sick| sick.gpu.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{code} {policy:?}");
        assert_eq!(drained(&cards, policy).is_some(), expected.len() == 3);
        assert!(all.iter().all(|sick| sick.why.contains("XID")), "{all:?}");
    };
    check(79, SickPods::Evict, &[A, "MIG-1"]);
    check(48, SickPods::Drain, &[A, "MIG-1"]);
    check(79, SickPods::Drain, &[A, B, "MIG-1"]);
    assert!(touched(&[], &units, SickPods::Drain).is_empty());
}

#[test]
fn a_sick_card_that_is_cut_as_pods_come_was_nobodys() {
    let place = |start| Placed {
        profile: "1g.5gb".to_owned(),
        start,
    };
    let on = |uid: &str, start| {
        let mut share = share(uid, &[A]);
        for grants in share.allocation.containers.values_mut() {
            grants[0].mig = Some(place(start));
        }
        share
    };
    let shares = [on("u1", 6), on("u2", 5), share("u3", &[B])];
    let pods = pods(vec![pod("u1"), pod("u2"), pod("u3")]);
    let check = |unit: GpuUuid, expected: &[&str]| {
        let found = on_card(&unit, &shares, &pods);
        let found: Vec<_> = found.iter().map(|pod| pod.uid.as_str()).collect();
        assert_eq!(found, expected, "{unit}");
    };
    check(A.into(), &["u1", "u2"]);
    check(B.into(), &["u3"]);

    // An instance that is ill by itself concerns its own pod only.
    let mut facts = crate::testing::facts(&[A]);
    facts.cards[0].cut.instances.push(nvml::Instance {
        profile: "1g.5gb".to_owned(),
        start: 5,
        size: 1,
        memory: aliquot_core::Mib(1),
        id: 12,
        devices: vec![nvml::Device {
            uuid: "MIG-5".to_owned(),
            current: "MIG-5".to_owned(),
            id: 0,
            whole: true,
        }],
    });
    assert_eq!(as_booked(&A.into(), &facts), None);
    check(as_booked(&"MIG-5".into(), &facts).expect("known"), &["u2"]);
}

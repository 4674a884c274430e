//! Failed devices: whose ids stay, which pods are notified, which are evicted.

use aliquot_core::mig::published::{FixedInstance, Mig};

use super::*;
use crate::allocation::environment::NodeRules;
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

/// An allocation of pod `uid` on these devices.
fn share(uid: &str, gpus: &[&str]) -> AcceptedAllocation {
    let grants: Vec<_> = gpus.iter().map(|gpu| grant(gpu, 1000, 5)).collect();
    let containers = vec![aliquot_node_state::accepted::AcceptedContainer {
        name: "main".to_owned(),
        stage: aliquot_core::usage::Stage::App,
        effective: RULES.effective_limits(&BTreeMap::new(), false),
    }];
    let allocation = allocation(&[("main", &grants)]);
    AcceptedAllocation::new(
        uid.into(),
        "default".to_owned(),
        uid.to_owned(),
        allocation,
        containers,
    )
}

fn well(gpu: &str) -> nvml::DeviceHealth {
    health(gpu, nvml::DriverHealth::Ok)
}

fn health(gpu: &str, health: nvml::DriverHealth) -> nvml::DeviceHealth {
    nvml::DeviceHealth {
        uuid: gpu.to_owned(),
        health,
    }
}

fn xid(gpu: &str, code: u64) -> DeviceFailure {
    diagnose(
        &health(gpu, nvml::DriverHealth::Xid(code)),
        &XidActions::default(),
    )
    .expect("a failure")
}

fn unregistered() -> nvml::DriverHealth {
    nvml::DriverHealth::FabricNotReady(nvml::UnfinishedRegistration::InProgress)
}

#[test]
fn diagnoses_device_by_health_and_xid_table() {
    let check = |found: nvml::DriverHealth, why: &str, recovery| {
        let failure = diagnose(&health(A, found), &XidActions::default()).expect("a failure");
        assert_eq!(
            (failure.gpu.as_str(), failure.recovery),
            (A, recovery),
            "{why}"
        );
        assert!(failure.cause.contains(why), "{}", failure.cause);
    };
    check(
        nvml::DriverHealth::Xid(79),
        "XID 79 (GPU has fallen",
        Recovery::DrainNode,
    );
    check(
        nvml::DriverHealth::Xid(48),
        "XID 48 (double bit",
        Recovery::ResetGpu,
    );
    check(
        nvml::DriverHealth::Xid(999),
        "not in NVIDIA's",
        Recovery::ResetGpu,
    );
    check(
        nvml::DriverHealth::Lost("gone".into()),
        "lost: gone",
        Recovery::DrainNode,
    );
    check(
        nvml::DriverHealth::RecoveryRequested(1),
        "reset of the GPU",
        Recovery::ResetGpu,
    );
    check(
        nvml::DriverHealth::RecoveryRequested(2),
        "restart of the node",
        Recovery::DrainNode,
    );
    check(
        nvml::DriverHealth::RecoveryRequested(4),
        "reset of the GPU",
        Recovery::ResetGpu,
    );
    check(
        unregistered(),
        "NVLink fabric not ready: registration in progress",
        Recovery::FabricRegistration,
    );
    assert_eq!(diagnose(&well(A), &XidActions::default()), None);
}

#[test]
fn keeps_device_ids_of_living_pods() {
    let entries = [
        entry("u1", None, &["GPU-a::0"]),
        entry("u2", None, &["GPU-b::1"]),
        entry("over", None, &["GPU-a::2"]),
        entry("gone", None, &["GPU-a::3"]),
    ];
    let pods = pods(vec![pod("u1"), pod("u2"), ended("over")]);
    let check = |synced, expected: &[&str]| {
        let found = allocated_ids(&entries, &pods, synced);
        let found: Vec<&String> = found[crate::testing::RESOURCE].iter().collect();
        assert_eq!(found, expected, "{synced}");
    };
    check(true, &["GPU-a::0", "GPU-b::1"]);
    check(false, &["GPU-a::0", "GPU-a::2", "GPU-a::3", "GPU-b::1"]);
}

#[test]
fn evicts_only_pods_on_failed_device() {
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
    let check = |failure: &[DeviceFailure], expected: &[&str]| {
        let leaving = evictions(&affected_pods(failure, &shares, &pods));
        let names: Vec<&str> = leaving.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, expected, "{failure:?}");
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
fn keeps_pods_while_gpu_waits_for_fabric() {
    let waiting = diagnose(&health(A, unregistered()), &XidActions::default());
    let waiting = waiting.expect("a failure");
    let devices = crate::testing::inventory(&[A, B]).gpus;
    let pods = pods(vec![pod("u1"), pod("u2")]);
    let shares = [share("u1", &[A]), share("u2", &[B])];
    let check = |failures: &[DeviceFailure], policy, expected: &[&str]| {
        let all = affected_devices(failures, &devices, policy);
        let leaving = evictions(&affected_pods(&all, &shares, &pods));
        let names: Vec<&str> = leaving.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, expected, "{policy:?}");
    };
    let own = std::slice::from_ref(&waiting);
    check(own, FailurePodPolicy::Evict, &[]);
    check(own, FailurePodPolicy::Drain, &[]);
    let text = failure_event(&pods[0], &waiting, FailurePodPolicy::Evict).text;
    assert!(text.ends_with("this pod keeps running"), "{text}");
    // Another GPU requires the node to be drained.
    let both = [waiting, xid(B, 79)];
    check(&both, FailurePodPolicy::Evict, &["u2"]);
    check(&both, FailurePodPolicy::Drain, &["u1", "u2"]);
}

#[test]
fn reports_each_failure_and_recovery_once_per_pod() {
    let here = pods(vec![pod("u1"), pod("u2")]);
    let shares = [share("u1", &[A]), share("u2", &[B])];
    let mut reported = ReportedFailures::default();
    let mut check =
        |failure: &[DeviceFailure], pods: &[Arc<Pod>], expected: &[(&str, &str, &str)]| {
            let notes = reported.new_events(
                &affected_pods(failure, &shares, pods),
                pods,
                FailurePodPolicy::Keep,
            );
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
    // A pod that ended gets no event; one that came late does.
    check(&[xid(B, 79)], &here[..1], &[]);
    check(&[xid(B, 79)], &here, &[("u2", "GpuSick", "keeps running")]);
    check(&[], &here[..1], &[]);
}

#[test]
fn announces_eviction_except_for_static_pods() {
    let mut fixed = pod("static");
    fixed.mirror = true;
    let check = |pod: Pod, policy, expected: &str| {
        let text = failure_event(&pod, &xid(A, 79), policy).text;
        assert!(text.ends_with(expected), "{text}");
    };
    check(pod("u1"), FailurePodPolicy::Evict, "this pod is evicted");
    check(pod("u1"), FailurePodPolicy::Keep, "this pod keeps running");
    check(fixed, FailurePodPolicy::Evict, "this pod keeps running");
}

#[test]
fn mps_13_reports_mps_error_to_all_pods_on_gpu() {
    let gpu = GpuUuid::from(A);
    let text = |shared| application_error(&pod("u1"), &gpu, 31, shared).text;
    assert!(text(true).contains("MPS shares errors"), "{}", text(true));
    assert!(text(false).contains("an application on this GPU"));
    assert!(!text(false).contains("MPS"), "{}", text(false));
}

#[test]
fn failure_spreads_to_instances_and_drained_node() {
    let mut devices = crate::testing::inventory(&[A, B, "MIG-1"]).gpus;
    devices[2].mig = Some(Mig::Fixed(FixedInstance {
        parent: A.into(),
        profile: "1g.5gb".to_owned(),
        start: 0,
        gi: 1,
        ci: 0,
    }));
    let check = |code: u64, policy: FailurePodPolicy, expected: &[&str]| {
        let failures = [xid(A, code)];
        let all = affected_devices(&failures, &devices, policy);
        let mut found: Vec<&str> = all.iter().map(|failure| failure.gpu.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{code} {policy:?}");
        assert_eq!(
            drain_trigger(&failures, policy).is_some(),
            expected.len() == 3
        );
        assert!(
            all.iter().all(|failure| failure.cause.contains("XID")),
            "{all:?}"
        );
    };
    check(79, FailurePodPolicy::Evict, &[A, "MIG-1"]);
    check(48, FailurePodPolicy::Drain, &[A, "MIG-1"]);
    check(79, FailurePodPolicy::Drain, &[A, B, "MIG-1"]);
    assert!(affected_devices(&[], &devices, FailurePodPolicy::Drain).is_empty());
}

#[test]
fn finds_pods_on_failed_dynamic_mig_gpu() {
    let place = |start| MigPlacement {
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
    let check = |device: GpuUuid, expected: &[&str]| {
        let found = pods_on(&device, &shares, &pods);
        let found: Vec<_> = found.iter().map(|pod| pod.uid.as_str()).collect();
        assert_eq!(found, expected, "{device}");
    };
    check(A.into(), &["u1", "u2"]);
    check(B.into(), &["u3"]);

    // A failed instance affects only its own pod.
    let mut facts = crate::testing::facts(&[A]);
    facts.gpus[0].layout.instances.push(nvml::GpuInstance {
        profile: "1g.5gb".to_owned(),
        start: 5,
        size: 1,
        memory: aliquot_core::Mib(1),
        id: 12,
        devices: vec![nvml::MigDevice {
            uuid: "MIG-5".to_owned(),
            current: "MIG-5".to_owned(),
            id: 0,
            whole: true,
        }],
    });
    assert_eq!(dynamic_mig_id(&A.into(), &facts), None);
    check(
        dynamic_mig_id(&"MIG-5".into(), &facts).expect("known"),
        &["u2"],
    );
}

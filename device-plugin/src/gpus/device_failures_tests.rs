//! Failed devices: whose ids stay, which pods are notified, which are evicted.

use super::*;
use crate::testing::{
    entry, fixed_instance, health, instance_grant, pod, reported_instance, share_of as share,
};

const A: &str = "GPU-a";
const B: &str = "GPU-b";

fn pods(all: Vec<Pod>) -> Vec<Arc<Pod>> {
    all.into_iter().map(Arc::new).collect()
}

fn ended(uid: &str) -> Pod {
    let mut pod = pod(uid);
    pod.phase = Phase::Ended;
    pod
}

fn failed(found: nvml::DriverHealth) -> DeviceFailure {
    diagnose(&health(A, found), &XidActions::default()).expect("a failure")
}

fn xid(gpu: &str, code: u64) -> DeviceFailure {
    DeviceFailure {
        gpu: gpu.into(),
        ..failed(nvml::DriverHealth::Xid(code))
    }
}

fn unregistered() -> nvml::DriverHealth {
    nvml::DriverHealth::FabricNotReady(nvml::UnfinishedRegistration::InProgress)
}

#[test]
fn diagnoses_device_by_health_and_xid_table() {
    use Recovery::{DrainNode, FabricRegistration, ResetGpu};
    use nvml::DriverHealth::{Lost, RecoveryRequested, Xid};
    let unready = "NVLink fabric not ready: registration in progress";
    for (found, why, recovery) in [
        (Xid(79), "XID 79 (GPU has fallen", DrainNode),
        (Xid(48), "XID 48 (double bit", ResetGpu),
        (Xid(999), "not in NVIDIA's", ResetGpu),
        (Lost("gone".into()), "lost: gone", DrainNode),
        (RecoveryRequested(1), "reset of the GPU", ResetGpu),
        (RecoveryRequested(2), "restart of the node", DrainNode),
        (RecoveryRequested(4), "reset of the GPU", ResetGpu),
        (unregistered(), unready, FabricRegistration),
    ] {
        let failure = failed(found);
        assert_eq!(
            (failure.gpu.as_str(), failure.recovery),
            (A, recovery),
            "{why}"
        );
        assert!(failure.cause.contains(why), "{}", failure.cause);
    }
    let well = health(A, nvml::DriverHealth::Ok);
    assert_eq!(diagnose(&well, &XidActions::default()), None);
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
    let waiting = failed(unregistered());
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
    let mut check = |failure: Option<DeviceFailure>, pods: &[Arc<Pod>], expected: &str| {
        let affected = affected_pods(failure.as_slice(), &shares, pods);
        let notes = reported.new_events(&affected, pods, FailurePodPolicy::Keep);
        let found = notes
            .iter()
            .map(|note| format!("{} {}: {}", note.pod.name, note.reason, note.text));
        let found: String = found.collect();
        let mut parts = expected.split(" .. ");
        assert!(
            parts.all(|part| found.contains(part)),
            "{found}, expected {expected}"
        );
        assert_eq!(
            (found.is_empty(), notes.len() < 2),
            (expected.is_empty(), true),
            "{found}"
        );
    };
    check(None, &here, "");
    check(Some(xid(A, 48)), &here, "u1 GpuSick .. GPU-a .. XID 48");
    check(Some(xid(A, 48)), &here, "");
    check(
        Some(xid(A, 79)),
        &here,
        "u1 GpuSick .. GPU-a .. needs drain-node",
    );
    check(None, &here, "u1 GpuRecovered .. GPU-a .. after XID 79");
    check(None, &here, "");
    // A pod that ended gets no event; one that came late does.
    check(Some(xid(B, 79)), &here[..1], "");
    check(
        Some(xid(B, 79)),
        &here,
        "u2 GpuSick .. GPU-b .. keeps running",
    );
    check(None, &here[..1], "");
}

#[test]
fn announces_eviction_except_for_static_pods() {
    for (is_static, policy, expected) in [
        (false, FailurePodPolicy::Evict, "this pod is evicted"),
        (false, FailurePodPolicy::Keep, "this pod keeps running"),
        (true, FailurePodPolicy::Evict, "this pod keeps running"),
    ] {
        let mut pod = pod("u1");
        pod.mirror = is_static;
        let text = failure_event(&pod, &xid(A, 79), policy).text;
        assert!(text.ends_with(expected), "{text}");
    }
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
    devices[2].mig = fixed_instance(A, "1g.5gb");
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
    let on = |uid: &str, start| {
        let given = instance_grant(A, "1g.5gb", start);
        crate::testing::accepted(uid, crate::testing::allocation(&[("main", &[given])]))
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
    facts.gpus[0].layout.instances = vec![reported_instance(5, "MIG-5", "MIG-5")];
    assert_eq!(dynamic_mig_id(&A.into(), &facts), None);
    let instance = dynamic_mig_id(&"MIG-5".into(), &facts);
    check(instance.expect("known"), &["u2"]);
}

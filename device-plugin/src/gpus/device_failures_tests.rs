//! Failed devices: whose ids stay, which pods are notified, which are evicted.

use super::*;
use crate::testing::{
    accepted, allocation, entry, facts, fixed_instance, health, instance_grant, pod,
    reported_instance, share_of as share,
};

const A: &str = "GPU-a";
const B: &str = "GPU-b";

fn ended(uid: &str) -> Pod {
    Pod {
        phase: Phase::Ended,
        ..pod(uid)
    }
}

fn evicted(
    failures: &[DeviceFailure],
    shares: &[AcceptedAllocation],
    pods: &[Arc<Pod>],
) -> Vec<String> {
    let leaving = evictions(&affected_pods(failures, shares, pods));
    assert!(leaving.iter().all(|pod| pod.reason.contains("XID")));
    leaving.into_iter().map(|pod| pod.name).collect()
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
fn names_gpus_that_the_driver_does_not_list() {
    let mut known = facts(&[A]);
    let note = |gpu: &str, call| nvml::Note {
        gpu: gpu.to_owned(),
        call,
        problem: "refused".to_owned(),
    };
    known.notes = vec![
        note(A, "nvmlDeviceGetMinorNumber"),
        note("index 0", "nvmlDeviceGetHandleByIndex_v2"),
        note("index 3", "nvmlDeviceGetHandleByIndex_v2"),
        note("GPU-c", "nvmlDeviceGetMemoryInfo"),
    ];
    let placed = accepted(
        "u3",
        allocation(&[("main", &[instance_grant("GPU-d", "1g.5gb", 0)])]),
    );
    let fixed = share("u4", &["MIG-1", "MIG-a", "MIG-z"]);
    let shares = [share("u1", &[A]), share("u2", &[B]), placed, fixed];
    let pods = ["u1", "u2", "u3", "u4"].map(|uid| Arc::new(pod(uid)));
    let gpu_of = |instance: &GpuUuid| match instance.as_str() {
        "MIG-1" => Some(GpuUuid::from("GPU-e")),
        "MIG-a" => Some(GpuUuid::from(A)),
        _ => None,
    };
    let shown = |pods: &[Arc<Pod>]| -> Vec<String> {
        let found = unlisted(&known, &shares, pods, gpu_of).into_iter();
        let text = |one: DeviceFailure| format!("{}: {}; {}", one.gpu, one.cause, one.recovery);
        found.map(text).collect()
    };
    let unreadable = "GPU-c: cannot be shared: nvmlDeviceGetMemoryInfo: refused; another driver";
    let lost = "index 3: cannot be shared: nvmlDeviceGetHandleByIndex_v2: refused; reset-gpu";
    assert_eq!(
        shown(&pods),
        [
            "GPU-b: the driver no longer lists it; drain-node",
            unreadable,
            "GPU-d: the driver no longer lists it; drain-node",
            "MIG-1: the driver no longer lists its GPU, GPU-e; drain-node",
            lost,
        ]
    );
    assert_eq!(
        shown(&[]),
        [unreadable, lost],
        "nobody is left on the others"
    );
}

#[test]
fn gpu_has_failed_when_unlisted_for_ten_seconds() {
    let start = Instant::now();
    let mut unlisted = UnlistedGpus::default();
    for (seconds, is_listed, has_failed) in [
        (0, false, false),
        (9, false, false),
        (10, false, true),
        (20, true, false),
        (21, false, false),
        (31, false, true),
    ] {
        let now = start + Duration::from_secs(seconds);
        let absent = (!is_listed).then(|| xid(B, 79));
        let failed = unlisted.failed(Vec::from_iter(absent), now);
        assert_eq!(!failed.is_empty(), has_failed, "after {seconds} s");
        let is_pending = !is_listed && !has_failed;
        assert_eq!(unlisted.is_pending(now), is_pending, "after {seconds} s");
    }
}

#[test]
fn diagnoses_device_by_health_and_xid_table() {
    use Recovery::{DrainNode, FabricRegistration, ResetGpu};
    use nvml::DriverHealth::{Lost, RecoveryRequested, Xid};
    let unready = "NVLink fabric not ready: registration in progress";
    for (found, why, recovery) in [
        (Xid(79), "XID 79", DrainNode),
        (Xid(48), "XID 48", ResetGpu),
        (Xid(999), "XID 999", ResetGpu),
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
    let pods = [pod("u1"), pod("u2"), ended("over")].map(Arc::new);
    let found = |synced| {
        let found = allocated_ids(&entries, &pods, synced);
        found[crate::testing::RESOURCE]
            .iter()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(found(true), ["GPU-a::0", "GPU-b::1"]);
    let all = ["GPU-a::0", "GPU-a::2", "GPU-a::3", "GPU-b::1"];
    assert_eq!(found(false), all);
}

#[test]
fn evicts_only_pods_on_failed_device() {
    let mut fixed = pod("static");
    fixed.mirror = true;
    let pods = [pod("u1"), pod("u2"), pod("both"), ended("over"), fixed];
    let pods = pods.map(Arc::new);
    let mut shares = ["u1", "over", "static", "gone"]
        .map(|uid| share(uid, &[A]))
        .to_vec();
    shares.extend([share("u2", &[B]), share("both", &[A, B])]);
    let one = [xid(A, 79)];
    assert_eq!(evicted(&[], &shares, &pods), [""; 0]);
    assert_eq!(evicted(&one, &shares, &pods), ["both", "u1"]);
    let two = [xid(A, 79), xid(B, 48)];
    assert_eq!(evicted(&two, &shares, &pods), ["both", "u1", "u2"]);
}

#[test]
fn keeps_pods_while_gpu_waits_for_fabric() {
    let waiting = failed(unregistered());
    let devices = crate::testing::inventory(&[A, B]).gpus;
    let pods = ["u1", "u2"].map(|uid| Arc::new(pod(uid)));
    let shares = [share("u1", &[A]), share("u2", &[B])];
    let text = failure_event(&pods[0], &waiting, FailurePodPolicy::Evict).text;
    assert!(text.ends_with("this pod keeps running"), "{text}");
    // Another GPU requires the node to be drained.
    let both = [waiting, xid(B, 79)];
    for (failures, policy, expected) in [
        (&both[..1], FailurePodPolicy::Evict, &[][..]),
        (&both[..1], FailurePodPolicy::Drain, &[]),
        (&both, FailurePodPolicy::Evict, &["u2"]),
        (&both, FailurePodPolicy::Drain, &["u1", "u2"]),
    ] {
        let all = affected_devices(failures, &devices, policy);
        assert_eq!(evicted(&all, &shares, &pods), expected, "{policy:?}");
    }
}

#[test]
fn reports_each_failure_and_recovery_once_per_pod() {
    let here = ["u1", "u2"].map(|uid| Arc::new(pod(uid)));
    let shares = [share("u1", &[A]), share("u2", &[B])];
    let mut reported = ReportedFailures::default();
    let sick = |gpu, code| Some(xid(gpu, code));
    for (failure, pods, expected) in [
        (None, &here[..], None),
        (sick(A, 48), &here, Some(("u1", "GpuSick", "XID 48"))),
        (sick(A, 48), &here, None),
        (
            sick(A, 79),
            &here,
            Some(("u1", "GpuSick", "needs drain-node")),
        ),
        (None, &here, Some(("u1", "GpuRecovered", "after XID 79"))),
        (None, &here, None),
        // A pod that ended gets no event; one that came late does.
        (sick(B, 79), &here[..1], None),
        (sick(B, 79), &here, Some(("u2", "GpuSick", "keeps running"))),
        (None, &here[..1], None),
    ] {
        let affected = affected_pods(failure.as_slice(), &shares, pods);
        let notes = reported.new_events(&affected, pods, FailurePodPolicy::Keep);
        let found = notes
            .iter()
            .map(|note| (note.pod.name.as_str(), note.reason));
        let of_note = expected.map(|(pod, reason, _)| (pod, reason));
        assert_eq!(found.collect::<Vec<_>>(), Vec::from_iter(of_note));
        for (note, (.., part)) in notes.iter().zip(expected) {
            assert!(note.text.contains(part) && note.text.contains("GPU-"));
        }
    }
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
    devices[2].mig = Some(fixed_instance(A, "1g.5gb"));
    for (code, policy, expected) in [
        (79, FailurePodPolicy::Evict, &[A, "MIG-1"][..]),
        (48, FailurePodPolicy::Drain, &[A, "MIG-1"]),
        (79, FailurePodPolicy::Drain, &[A, B, "MIG-1"]),
    ] {
        let failures = [xid(A, code)];
        let mut all = affected_devices(&failures, &devices, policy);
        all.sort_by(|a, b| a.gpu.cmp(&b.gpu));
        let found = all.iter().map(|failure| failure.gpu.as_str());
        assert_eq!(found.collect::<Vec<_>>(), expected, "{code} {policy:?}");
        assert!(all.iter().all(|failure| failure.cause.contains("XID")));
        let drains = drain_trigger(&failures, policy).is_some();
        assert_eq!(drains, expected.len() == 3);
    }
    assert!(affected_devices(&[], &devices, FailurePodPolicy::Drain).is_empty());
}

#[test]
fn finds_pods_on_failed_dynamic_mig_gpu() {
    let on = |uid: &str, start| {
        let given = instance_grant(A, "1g.5gb", start);
        accepted(uid, allocation(&[("main", &[given])]))
    };
    let shares = [on("u1", 6), on("u2", 5), share("u3", &[B])];
    let pods = ["u1", "u2", "u3"].map(|uid| Arc::new(pod(uid)));
    let mut facts = crate::testing::facts(&[A]);
    facts.gpus[0].layout.instances = vec![reported_instance(5, "MIG-5")];
    assert_eq!(dynamic_mig_id(&A.into(), &facts), None);
    // A failed instance affects only its own pod.
    let instance = dynamic_mig_id(&"MIG-5".into(), &facts).expect("known");
    for (device, expected) in [
        (A.into(), &["u1", "u2"][..]),
        (B.into(), &["u3"]),
        (instance, &["u2"]),
    ] {
        let found = pods_on(&device, &shares, &pods);
        let found = found.iter().map(|pod| pod.uid.as_str());
        assert_eq!(found.collect::<Vec<_>>(), expected, "{device}");
    }
}

//! What each check of a node finds, from made-up nodes and pods.

use serde_json::{Value, json};

use super::super::cluster_tests::healthy;
use super::super::facts::AgentFacts;
use super::super::finding::Grade;
use super::*;
use crate::components::COMPONENT;

const PAGE: &str = "aliquot_device_plugin_audit_differences_total 0\n\
    aliquot_device_plugin_damaged_shares 0\naliquot_device_plugin_checkpoint_lost 0\n";

fn inventory() -> Inventory {
    let gpu = json!({"uuid": "GPU-a", "index": 0, "model": "A100", "memory": 1000, "scaled": 1000,
        "cores": 100, "seats": 10, "mode": "vgpu", "resource": "nvidia.com/gpu", "health": "ok"});
    let text = json!({"v": 1, "reads": [1], "driver": "580", "gpus": [gpu]});
    Inventory::decode(&text.to_string()).unwrap()
}

fn node(replicas: &str, change: impl FnOnce(&mut Value)) -> Node {
    let mut node = json!({
        "metadata": {"name": "n1", "annotations": {INVENTORY: inventory().encode().unwrap()}},
        "status": {"capacity": {"nvidia.com/gpu": replicas}, "conditions": []},
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn pod(name: &str, image: &str, ours: bool) -> Pod {
    let labels = json!({"app.kubernetes.io/part-of": "aliquot",
        "app.kubernetes.io/component": "device-plugin"});
    let none = json!({});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "s", "labels": if ours { labels } else { none }},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": image}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

fn known(node: Node, pods: Vec<Pod>, page: &str) -> ClusterFacts {
    let agent = AgentFacts {
        ready: Ok(()),
        metrics: Ok(page.to_owned()),
    };
    ClusterFacts {
        nodes: Ok(vec![node]),
        pods: Ok(pods),
        agents: [("n1".into(), agent)].into(),
        ..healthy()
    }
}

fn check(known: &ClusterFacts, expected: &[(&str, Grade)]) {
    let found = checks(known, Some("n1"));
    let found: Vec<_> = found
        .iter()
        .filter(|one| one.grade != Grade::Ok)
        .map(|one| (one.check, one.grade))
        .collect();
    assert_eq!(found, expected);
}

fn agent() -> Pod {
    pod("agent", "aliquot/aliquot:1", true)
}

#[test]
fn reports_nothing_for_healthy_node() {
    check(&known(node("10", |_| ()), vec![agent()], PAGE), &[]);
}

#[test]
fn reports_mps_pod_of_another_image_than_the_agents() {
    let of = |image: &str| {
        let mut mps = pod("aliquot-mps-x", image, true);
        let labels = mps.metadata.labels.get_or_insert_default();
        labels.insert(COMPONENT.to_owned(), "mps".to_owned());
        known(node("10", |_| ()), vec![agent(), mps], PAGE)
    };
    check(&of("aliquot/aliquot:1"), &[]);
    let old = of("aliquot/aliquot:0");
    check(&old, &[("mps-supervisor", Grade::Warning)]);
    let found = checks(&old, Some("n1"));
    let mut found = found.iter().filter(|one| one.check == "mps-supervisor");
    let found = found.next().unwrap();
    let deletes = "kubectl delete pod aliquot-mps-x -n s when no MPS client runs on the node";
    assert!(found.todo.starts_with(deletes), "{}", found.todo);
    for image in ["aliquot/aliquot:0", "aliquot/aliquot:1"] {
        assert!(found.found.contains(image), "{}", found.found);
    }
}

#[test]
fn reports_replicas_unknown_to_kubelet() {
    let bad = Grade::Problem;
    let of = |replicas| known(node(replicas, |_| ()), vec![agent()], PAGE);
    check(&of("0"), &[("kubelet-seats", bad)]);
    check(&of("1"), &[("kubelet-seats", Grade::Warning)]);
}

#[test]
fn names_pods_that_end_with_a_kubelet_that_finds_no_agent() {
    let with_state = |state: &Value| {
        let grant = json!({"resource": "nvidia.com/gpu", "gpu": "GPU-a", "memory": 1, "cores": 1});
        let allocation = json!({"v": 1, "node": "n1", "containers": {},
            "init": {"first": [grant]}, "priority": 1});
        let status = json!({"name": "first", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "state": state});
        let mut pod = serde_json::to_value(pod("train", "own/train:1", false)).unwrap();
        pod["metadata"]["annotations"] = json!({ALLOCATION: allocation.to_string()});
        pod["status"]["initContainerStatuses"] = json!([status]);
        let pod = serde_json::from_value(pod).unwrap();
        known(node("10", |_| ()), vec![agent(), pod], PAGE)
    };
    let ended = with_state(&json!({"terminated": {"exitCode": 0}}));
    check(&ended, &[("ended-shares", Grade::Warning)]);
    let found = checks(&ended, Some("n1"));
    let found = found.iter().find(|one| one.check == "ended-shares");
    assert!(found.unwrap().found.contains("1 running pod, such as s/train"));
    check(&with_state(&json!({"running": {}})), &[]);
}

#[test]
fn names_vanished_gpu_whose_pods_keep_replicas() {
    let holding = |gpu: &str| {
        let grant = json!({"resource": "nvidia.com/gpu", "gpu": gpu, "memory": 1, "cores": 1});
        let allocation = json!({"v": 1, "node": "n1", "containers": {"c": [grant]},
            "init": {}, "priority": 1});
        let mut pod = pod("train", "own/train:1", false);
        let annotations = [(ALLOCATION.to_owned(), allocation.to_string())];
        pod.metadata.annotations = Some(annotations.into());
        known(node("12", |_| ()), vec![agent(), pod], PAGE)
    };
    let found = |gpu| {
        let found = checks(&holding(gpu), Some("n1"));
        let found = found.into_iter().find(|one| one.check == "kubelet-seats");
        found.unwrap()
    };
    assert!(found("GPU-b").found.contains("shares of GPU-b, which"));
    assert!(found("GPU-a").todo.contains("another device plugin"));
}

#[test]
fn reports_other_device_plugin_and_hami_registration() {
    let bad = Grade::Problem;
    let theirs = pod(
        "nvidia-device-plugin-x",
        "nvcr.io/nvidia/k8s-device-plugin:v0.20",
        false,
    );
    let other = pod("web", "nginx", false);
    let all = vec![agent(), theirs, other];
    check(
        &known(node("10", |_| ()), all, PAGE),
        &[("other-plugin", bad)],
    );
    let hami = node("10", |node| {
        node["metadata"]["annotations"][hami::REGISTER] = json!("[]");
    });
    check(&known(hami, vec![agent()], PAGE), &[("hami", bad)]);
}

#[test]
fn names_pod_whose_allocation_cannot_be_read() {
    let mut spoilt = pod("spoilt", "nginx", false);
    spoilt.metadata.uid = Some("u".to_owned());
    let key = aliquot_core::allocation::ALLOCATION.to_owned();
    spoilt.metadata.annotations = Some([(key, "{".to_owned())].into());
    let spec = spoilt.spec.as_mut().unwrap();
    spec.scheduler_name = Some("aliquot-scheduler".to_owned());
    let limits = json!({"limits": {"nvidia.com/gpu": "1"}});
    spec.containers[0].resources = serde_json::from_value(limits).unwrap();
    let known = known(node("10", |_| ()), vec![agent(), spoilt], PAGE);
    check(&known, &[("allocations", Grade::Problem)]);
    let found = checks(&known, Some("n1"));
    assert!(found.iter().any(|one| one.found.contains("s/spoilt")));
}

#[test]
fn reports_agent_conditions_with_reason() {
    let with = |kind: &str, status: &str, reason: &str| {
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": "m"});
        let node = node("10", |node| {
            node["status"]["conditions"] = json!([condition]);
        });
        known(node, vec![agent()], PAGE)
    };
    let (bad, warns) = (Grade::Problem, Grade::Warning);
    let runtime = "AliquotRuntimeIncomplete";
    check(
        &with(runtime, "True", "CdiOff"),
        &[("container-runtime", bad)],
    );
    check(
        &with(runtime, "True", "CdiUnknown"),
        &[("container-runtime", Grade::NotChecked)],
    );
    check(
        &with(runtime, "True", "ToolkitMissing"),
        &[("container-runtime", warns)],
    );
    check(&with(runtime, "False", "RuntimeComplete"), &[]);
    check(
        &with("AliquotGpuSick", "True", "ResetNeeded"),
        &[("gpu-health", bad)],
    );
    check(
        &with("AliquotResourceTaken", "True", "OtherDevicePlugin"),
        &[("other-plugin", bad)],
    );
    check(
        &with("AliquotDriverMissing", "True", "DriverMissing"),
        &[("driver-loaded", bad)],
    );
    let uncorrected = "AliquotComputeUncorrected";
    check(
        &with(uncorrected, "True", "UtilizationNotReported"),
        &[("compute-correction", warns)],
    );
    check(&with(uncorrected, "True", "PartitionedGpus"), &[]);
    let failed = "HousekeepingFailed";
    check(
        &with("AliquotHousekeepingFailed", "True", failed),
        &[("housekeeping", warns)],
    );
    check(&with("AliquotProfile", "True", "Holds"), &[]);
    check(
        &with("AliquotProfile", "False", "GivenUp"),
        &[("profile", warns)],
    );
}

#[test]
fn reports_missing_agent_missing_inventory_and_no_answer() {
    let bad = Grade::Problem;
    let mut away = known(node("10", |_| ()), vec![], PAGE);
    away.agents.clear();
    check(
        &away,
        &[("agent", bad), ("node-accounts", Grade::NotChecked)],
    );
    // Without a pod, but it answers.
    check(&known(node("10", |_| ()), vec![], PAGE), &[]);
    let bare = node("10", |node| node["metadata"]["annotations"] = json!({}));
    check(&known(bare, vec![agent()], PAGE), &[("inventory", bad)]);
    let mut mute = known(node("10", |_| ()), vec![agent()], PAGE);
    let why = || "no rights".to_owned();
    mute.agents = [(
        "n1".into(),
        AgentFacts {
            ready: Err(why()),
            metrics: Err(why()),
        },
    )]
    .into();
    let unmade = Grade::NotChecked;
    check(&mute, &[("agent", unmade), ("node-accounts", unmade)]);
}

#[test]
fn reports_agent_pod_with_unready_container() {
    let mut hangs = agent();
    let statuses = json!([
        {"name": "device-plugin", "ready": true, "restartCount": 0, "image": "i", "imageID": ""},
        {"name": "monitor", "ready": false, "restartCount": 0, "image": "i", "imageID": "",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}},
    ]);
    let status = hangs.status.as_mut().unwrap();
    status.conditions = None;
    status.container_statuses = serde_json::from_value(statuses).unwrap();
    let with_monitor = known(node("10", |_| ()), vec![hangs.clone()], PAGE);
    check(&with_monitor, &[("agent", Grade::Problem)]);
    let bare = node("0", |node| {
        node["metadata"]["annotations"] = json!({});
        node["status"]["capacity"] = json!({});
    });
    let mut new = known(bare, vec![hangs], PAGE);
    new.agents.clear();
    let found = checks(&new, None);
    let agent = found.iter().find(|one| one.check == "agent").unwrap();
    let expected = "pod agent is not ready: monitor (CrashLoopBackOff: back-off)";
    assert_eq!((agent.grade, &*agent.found), (Grade::Problem, expected));
}

#[test]
fn warns_of_differences_counted_by_agent() {
    let page = PAGE.replace("damaged_shares 0", "damaged_shares 2");
    let known = known(node("10", |_| ()), vec![agent()], &page);
    check(&known, &[("node-accounts", Grade::Warning)]);
}

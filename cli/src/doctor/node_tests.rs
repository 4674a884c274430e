//! What each check of a node finds, from made-up nodes and pods.

use serde_json::{Value, json};

use super::super::cluster_tests::healthy;
use super::super::finding::Grade;
use super::*;
use crate::components::COMPONENT;

fn inventory() -> Inventory {
    let gpu = json!({"uuid": "GPU-a", "index": 0, "model": "A100", "memory": 1000, "scaled": 1000,
        "cores": 100, "replicas": 10, "mode": "vgpu", "resource": "nvidia.com/gpu",
        "health": "ok"});
    let text = json!({"v": 1, "reads": [1], "driver": "580", "gpus": [gpu]});
    Inventory::decode(&text.to_string()).unwrap()
}

fn node(change: impl FnOnce(&mut Value)) -> Node {
    let mut node = json!({
        "metadata": {"name": "n1", "annotations": {INVENTORY: inventory().encode().unwrap()}},
        "status": {"conditions": []},
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn pod(name: &str, image: &str) -> Pod {
    let labels = json!({"app.kubernetes.io/part-of": "aliquot",
        "app.kubernetes.io/component": "device-plugin"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "s", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": image}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap()
}

fn known(node: Node, pods: Vec<Pod>) -> ClusterFacts {
    ClusterFacts {
        nodes: Ok(vec![node]),
        pods: Ok(pods),
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
    pod("agent", "aliquot/aliquot:1")
}

#[test]
fn reports_memory_that_is_held_outside_every_share() {
    let mut inventory = inventory();
    inventory
        .unmanaged
        .insert("GPU-a".into(), aliquot_core::Mib(512));
    let held = node(|node| {
        node["metadata"]["annotations"][INVENTORY] = json!(inventory.encode().unwrap());
    });
    let known = known(held, vec![agent()]);
    check(&known, &[("unmanaged-memory", Grade::Warning)]);
}

#[test]
fn reports_mps_pod_of_another_image_than_the_agents() {
    let of = |image: &str| {
        let mut mps = pod("aliquot-mps-x", image);
        let labels = mps.metadata.labels.get_or_insert_default();
        labels.insert(COMPONENT.to_owned(), "mps".to_owned());
        known(node(|_| ()), vec![agent(), mps])
    };
    check(&of("aliquot/aliquot:1"), &[]);
    let old = of("aliquot/aliquot:0");
    check(&old, &[("mps-supervisor", Grade::Warning)]);
    let all = checks(&old, Some("n1"));
    let mut supervisors = all.iter().filter(|one| one.check == "mps-supervisor");
    let found = supervisors.next().unwrap();
    let deletes = "kubectl delete pod aliquot-mps-x -n s when no MPS client runs on the node";
    assert!(found.todo.starts_with(deletes), "{}", found.todo);
    // Without -A, the clients of other namespaces are missed, and end.
    assert!(found.todo.contains("top pods -A "), "{}", found.todo);
    for image in ["aliquot/aliquot:0", "aliquot/aliquot:1"] {
        assert!(found.found.contains(image), "{}", found.found);
    }
}

#[test]
fn names_pods_that_end_with_a_kubelet_that_finds_no_agent() {
    let with_state = |state: &Value| {
        let grant = json!({"resource": "nvidia.com/gpu", "gpu": "GPU-a", "memory": 1, "cores": 1});
        let allocation = json!({"v": 1, "node": "n1", "containers": {},
            "init": {"first": [grant]}, "priority": 1});
        let status = json!({"name": "first", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "state": state});
        let mut pod = serde_json::to_value(pod("train", "own/train:1")).unwrap();
        pod["metadata"]["labels"] = json!({});
        pod["metadata"]["annotations"] = json!({ALLOCATION: allocation.to_string()});
        pod["status"]["initContainerStatuses"] = json!([status]);
        let pod = serde_json::from_value(pod).unwrap();
        known(node(|_| ()), vec![agent(), pod])
    };
    let ended = with_state(&json!({"terminated": {"exitCode": 0}}));
    check(&ended, &[("ended-shares", Grade::Warning)]);
    let found = checks(&ended, Some("n1"));
    let found = found.iter().find(|one| one.check == "ended-shares");
    assert!(
        found
            .unwrap()
            .found
            .contains("1 running pod, such as s/train")
    );
    check(&with_state(&json!({"running": {}})), &[]);
}

#[test]
fn reports_hami_registration() {
    let hami = node(|node| node["metadata"]["annotations"][hami::REGISTER] = json!("[]"));
    check(&known(hami, vec![agent()]), &[("hami", Grade::Problem)]);
}

#[test]
fn reports_agent_conditions_with_reason() {
    let with = |kind: &str, status: &str, reason: &str| {
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": "m"});
        let node = node(|node| {
            node["status"]["conditions"] = json!([condition]);
        });
        known(node, vec![agent()])
    };
    let (bad, warns, unmade) = (Grade::Problem, Grade::Warning, Grade::NotChecked);
    let runtime = "AliquotRuntimeIncomplete";
    let uncorrected = "AliquotComputeUncorrected";
    for (kind, status, reason, grade) in [
        (runtime, "True", "CdiOff", Some(bad)),
        (runtime, "True", "CdiUnknown", Some(unmade)),
        (runtime, "True", "DriverSpecMissing", Some(warns)),
        (runtime, "False", "RuntimeComplete", None),
        ("AliquotGpuSick", "True", "ResetNeeded", Some(bad)),
        (
            "AliquotResourceTaken",
            "True",
            "OtherDevicePlugin",
            Some(bad),
        ),
        ("AliquotDriverMissing", "True", "DriverMissing", Some(bad)),
        (uncorrected, "True", "UtilizationNotReported", Some(warns)),
        (uncorrected, "True", "PartitionedGpus", None),
        (
            "AliquotHousekeepingFailed",
            "True",
            "HousekeepingFailed",
            Some(warns),
        ),
        (
            "AliquotAllocationUnreadable",
            "True",
            "AllocationUnreadable",
            Some(bad),
        ),
        ("AliquotProfile", "True", "Holds", None),
        ("AliquotProfile", "False", "GivenUp", Some(warns)),
        (
            "MemoryPressure",
            "True",
            "KubeletHasInsufficientMemory",
            None,
        ),
    ] {
        let expected = grade.map(|grade| ("conditions", grade));
        check(&with(kind, status, reason), expected.as_slice());
    }
}

#[test]
fn reports_missing_agent_missing_inventory_and_no_answer() {
    let bad = Grade::Problem;
    check(&known(node(|_| ()), vec![]), &[("agent", bad)]);
    let bare = node(|node| node["metadata"]["annotations"] = json!({}));
    check(&known(bare, vec![agent()]), &[("inventory", bad)]);
    let mut blind = known(node(|_| ()), vec![agent()]);
    blind.pods = Err("no rights".to_owned());
    check(&blind, &[("agent", Grade::NotChecked)]);
}

#[test]
fn reports_missing_monitor_where_other_nodes_have_one() {
    let mut elsewhere = pod("monitor", "aliquot/aliquot:1");
    let labels = elsewhere.metadata.labels.get_or_insert_default();
    labels.insert(COMPONENT.to_owned(), "monitor".to_owned());
    elsewhere.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
    let known = known(node(|_| ()), vec![agent(), elsewhere]);
    check(&known, &[("monitor", Grade::Problem)]);
}

#[test]
fn node_that_another_plugin_serves_is_no_problem() {
    let theirs = || -> Node {
        let status = json!({"allocatable": {"nvidia.com/gpu": "8"}});
        serde_json::from_value(json!({"metadata": {"name": "n2"}, "status": status})).unwrap()
    };
    let check = |known: &ClusterFacts, expected: &[Grade]| {
        let found = checks(known, None);
        let nodes = found.iter().filter(|one| one.grade != Grade::Ok);
        let (checks, grades): (Vec<_>, Vec<_>) = nodes.map(|one| (one.check, one.grade)).unzip();
        assert_eq!(grades, expected, "{found:?}");
        assert!(checks.iter().all(|check| *check == "nodes"), "{found:?}");
    };
    let mut mixed = known(node(|_| ()), vec![agent()]);
    mixed.nodes.as_mut().unwrap().push(theirs());
    check(&mixed, &[Grade::Note]);
    // The wait for the first agent goes on.
    check(&known(theirs(), vec![]), &[Grade::Warning, Grade::Note]);
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
    let bare = node(|node| node["metadata"]["annotations"] = json!({}));
    let mut new = known(bare, vec![hangs]);
    let why = "the agent of n1 is not ready: registration".to_owned();
    new.unready_agents = [("n1".into(), why)].into();
    let found = checks(&new, None);
    let agent = found.iter().find(|one| one.check == "agent").unwrap();
    let expected = "pod agent is not ready: monitor (CrashLoopBackOff: back-off); \
        the agent of n1 is not ready: registration";
    assert_eq!((agent.grade, &*agent.found), (Grade::Problem, expected));
}

//! A cluster of two nodes, and pods that fit it or would.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use serde_json::{Value, json};

use super::*;

fn node(name: &str, count: u32) -> Node {
    let gpu = |index: u32| {
        json!({"uuid": format!("GPU-{name}-{index}"), "index": index, "model": "NVIDIA L4",
            "memory": 20_000, "scaled": 20_000, "cores": 100, "replicas": 10, "mode": "vgpu",
            "resource": "nvidia.com/gpu", "health": "ok"})
    };
    let gpus: Vec<_> = (0..count).map(gpu).collect();
    let inventory = json!({"v": 1, "reads": [1], "gpus": gpus}).to_string();
    from(
        json!({"metadata": {"name": name, "annotations": {INVENTORY: inventory}},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": (10 * count).to_string()}}}),
    )
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A pod with this allocation of the first GPU of `node`.
fn bound(node: &str, memory: u64, cores: u32) -> Pod {
    let allocation = json!({"v": 1, "node": node, "priority": 1, "containers": {"main": [
        {"resource": "nvidia.com/gpu", "gpu": format!("GPU-{node}-0"), "memory": memory, "cores": cores}]}});
    from(json!({
        "metadata": {"name": "b", "namespace": "d", "uid": format!("b-{node}"),
            "annotations": {ALLOCATION: allocation.to_string()}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": {"cpu": "7"}}}]},
    }))
}

const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: p, namespace: d}
spec:
  containers:
  - name: main
    image: i
    resources: {requests: {cpu: 500m}, limits: {LIMIT}}
";

/// Two nodes: `a` with one GPU that is half used, `b` with two that are free.
fn ask(limit: &str, annotations: &str) -> WhatIf {
    let nodes = [node("a", 1), node("b", 2)];
    let pods = [bound("a", 10_000, 50), bound("b", 1_000, 10)];
    let text = POD
        .replace("LIMIT", limit)
        .replace("namespace: d", annotations);
    let pod = manifest(&text).unwrap();
    what_if(
        &nodes,
        &pods,
        &pod,
        &Settings::default(),
        Policies::default(),
    )
    .unwrap()
}

fn check(limit: &str, expected: &[(&str, &str)]) {
    let found = ask(limit, "namespace: d");
    assert_eq!(found.ranks, [], "{limit}");
    let found: Vec<_> = found
        .changes
        .iter()
        .map(|c| (c.change.as_str(), c.best.as_str()))
        .collect();
    assert_eq!(found, expected, "{limit}");
}

#[test]
fn names_node_for_pod_that_fits() {
    let found = ask("nvidia.com/gpumem: 12000", "namespace: d");
    assert_eq!(found.ranks, [("b".to_owned(), 10)]);
    let text = table(&found, 20);
    assert!(
        text.contains("The pod would be placed on node b."),
        "{text}"
    );
    assert!(text.contains("fit now: 1 of 2 offered"), "{text}");
}

#[test]
fn suggests_smallest_change_of_each_kind() {
    check(
        "nvidia.com/gpumem: 20001",
        &[("memory: at most 20000 MiB on each GPU", "b")],
    );
    // On b, beside 10 %; a has more memory missing than compute.
    check(
        "nvidia.com/gpumem: 20000, nvidia.com/gpucores: 100, nvidia.com/gpu: 2",
        &[("GPUs: at most 1 for each container", "b")],
    );
}

#[test]
fn names_blocking_rules_cpu_and_cordons() {
    let rule = "namespace: d, annotations: {aliquot.dev/use-gputype: NVIDIA T4}";
    let found = ask("nvidia.com/gpumem: 1000", rule);
    assert!(
        found.changes[0].change.starts_with("annotations:"),
        "{found:?}"
    );
    assert_eq!(found.changes[0].nodes, 2);

    let text = POD.replace("LIMIT", "nvidia.com/gpumem: 1000");
    let heavy = manifest(&text.replace("500m", "2")).unwrap();
    let mut nodes = [node("a", 1)];
    let pods = [bound("a", 10, 0)];
    let asked = |nodes: &[Node], pod: &Pod| {
        let found = what_if(nodes, &pods, pod, &Settings::default(), Policies::default());
        found.unwrap()
    };
    let found = asked(&nodes, &heavy);
    assert_eq!(found.changes.len(), 1, "{found:?}");
    assert!(found.changes[0].change.starts_with("CPU and memory"));
    nodes[0].spec = Some(from(json!({"unschedulable": true})));
    let found = asked(&nodes, &manifest(&text).unwrap());
    assert!(found.changes[0].change.starts_with("nodes: uncordoned"));
    let shown = table(&found, 20);
    assert!(shown.contains("The pod would stay pending."), "{shown}");
    assert!(shown.contains("fit now: 0 of 0 offered"), "{shown}");
}

#[test]
fn rejects_other_kinds_and_pods_without_gpu() {
    let error = manifest("kind: Deployment").unwrap_err().to_string();
    assert!(
        error.starts_with("kind is \"Deployment\"; expected: Pod"),
        "{error}"
    );
    let none = POD.replace("LIMIT", "");
    let none = manifest(&none).unwrap();
    let error = what_if(&[], &[], &none, &Settings::default(), Policies::default());
    assert!(matches!(error, Err(WhatIfError::AsksForNone)));
}

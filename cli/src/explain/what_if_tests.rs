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

#[test]
fn names_node_for_pod_that_fits() {
    // Half of the GPU of `a` is used; `b` has one that is free.
    let nodes = [node("a", 1), node("b", 2)];
    let pods = [bound("a", 10_000, 50), bound("b", 1_000, 10)];
    let pod = manifest(&POD.replace("LIMIT", "nvidia.com/gpumem: 12000")).unwrap();
    let found = what_if(
        &nodes,
        &pods,
        &pod,
        &Settings::default(),
        Policies::default(),
    );
    let found = found.unwrap();
    assert_eq!(found.ranks, [("b".to_owned(), 10)]);
    let text = table(&found, 20);
    assert!(
        text.contains("The pod would be placed on node b."),
        "{text}"
    );
    assert!(text.contains("fit now: 1 of 2 offered"), "{text}");
}

#[test]
fn offers_no_node_that_is_closed_to_the_pod_or_lacks_cpu() {
    let text = POD.replace("LIMIT", "nvidia.com/gpumem: 1000");
    let check = |text: &str, spec: Value| {
        let mut node = node("a", 1);
        node.spec = Some(from(spec));
        let pod = manifest(text).unwrap();
        let (nodes, pods) = ([node], [bound("a", 10, 0)]);
        let found = what_if(
            &nodes,
            &pods,
            &pod,
            &Settings::default(),
            Policies::default(),
        );
        let shown = table(&found.unwrap(), 20);
        assert!(shown.contains("The pod would stay pending."), "{shown}");
        assert!(shown.contains("fit now: 0 of 0 offered"), "{shown}");
    };
    check(&text, json!({"unschedulable": true}));
    check(&text.replace("500m", "2"), json!({}));
    // Of a node that does not answer.
    let gone = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"});
    check(&text, json!({"taints": [gone]}));
    let elsewhere = text.replace("spec:", "spec:\n  nodeSelector: {pool: b}");
    check(&elsewhere, json!({}));
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

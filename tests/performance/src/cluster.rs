//! A made-up cluster, as the watches would deliver it: nodes with 8 A100 and 16 pods each, and one
//! more pod to place. It is the same in every run.

use std::collections::BTreeMap;

use aliquot_core::Demand;
use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::pod::Settings;
use aliquot_k8s::view::PodView;
use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

const GPUS: u32 = 8;
/// Pods on each node.
pub(crate) const PODS: usize = 16;
const RESOURCE: &str = "nvidia.com/gpu";

fn uuid(node: usize, gpu: u32) -> String {
    format!("GPU-{node:08x}-0000-4000-8000-{gpu:012x}")
}

/// The name of the `node`th node.
pub(crate) fn name(node: usize) -> String {
    format!("gpu-worker-{node:05}.example.internal")
}

/// The `node`th node with its inventory.
pub(crate) fn node(node: usize) -> Result<Node> {
    let gpu = |index| {
        let others = (0..GPUS).filter(|other| *other != index);
        let links: BTreeMap<_, _> = others.map(|other| (uuid(node, other), 1200)).collect();
        json!({"uuid": uuid(node, index), "index": index, "model": "NVIDIA A100-SXM4-80GB",
            "memory": 81_920, "scaled": 81_920, "cores": 100, "replicas": 10, "mode": "vgpu",
            "resource": RESOURCE, "numa": index / 4, "health": "ok", "links": links})
    };
    let gpus: Vec<_> = (0..GPUS).map(gpu).collect();
    let inventory =
        json!({"v": 1, "reads": [1], "driver": "580.82", "topologyPolicy": "none", "gpus": gpus});
    let annotations = json!({INVENTORY: inventory.to_string()});
    let status = json!({"allocatable": {RESOURCE: (10 * GPUS).to_string()}});
    let node =
        json!({"metadata": {"name": name(node), "annotations": annotations}, "status": status});
    Ok(serde_json::from_value(node)?)
}

/// The `number`th pod on the `node`th node: two on each GPU, of 17 sizes, so that hardly two GPUs
/// or nodes are alike.
pub(crate) fn bound_pod(node: usize, number: usize) -> Result<serde_json::Value> {
    let size = u64::try_from((node * 7 + number * 5) % 17)? * 1_000 + 8_000;
    let gpu = uuid(node, u32::try_from(number)? % GPUS);
    let grant = json!({"resource": RESOURCE, "gpu": gpu, "memory": size, "cores": 20});
    let allocation = json!({"v": 1, "node": name(node), "containers": {"main": [grant]}, "init": {}, "priority": 1});
    let mut pod = pod(&format!("{node}-{number}"), size);
    pod["metadata"]["annotations"] = json!({ALLOCATION: allocation.to_string()});
    pod["spec"]["nodeName"] = json!(name(node));
    Ok(pod)
}

/// All pods on the `node`th node.
pub(crate) fn pods(node: usize) -> Result<Vec<PodView>> {
    let pods = (0..PODS).map(|number| Ok(serde_json::from_value(bound_pod(node, number)?)?));
    pods.collect()
}

/// A pod that requests this much memory and 20 % of the compute of one GPU.
pub(crate) fn pod(uid: &str, memory: u64) -> serde_json::Value {
    json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"schedulerName": "aliquot-scheduler", "containers": [{"name": "main", "image": "i", "resources": {
            "limits": {RESOURCE: "1", "nvidia.com/gpumem": memory.to_string(), "nvidia.com/gpucores": "20"}}}]},
        "status": {"phase": "Pending"},
    })
}

/// The demand of such a pod.
pub(crate) fn demand(memory: u64) -> Result<Demand> {
    let pod: PodView = serde_json::from_value(pod("p", memory))?;
    Ok(aliquot_k8s::pod::demand(&pod, &Settings::default())?)
}

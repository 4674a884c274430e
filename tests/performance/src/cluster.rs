//! A made-up cluster, as the watches would deliver it: nodes with 8 A100 and 16 pods each, and one
//! more pod to place. It is the same in every run.

use aliquot_core::allocation::{self, ALLOCATION, Allocation, Grant};
use aliquot_core::inventory::{self, Gpu, Health, INVENTORY, Inventory, Mode};
use aliquot_core::{Demand, Mib, Percent};
use aliquot_k8s::pod::Settings;
use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
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
    let gpu = |index| Gpu {
        uuid: uuid(node, index).into(),
        index,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(81_920),
        scaled: Mib(81_920),
        cores: Percent(100),
        replicas: 10,
        mode: Mode::Vgpu,
        resource: RESOURCE.to_owned(),
        numa: Some(index / 4),
        health: Health::Ok,
        links: (0..GPUS)
            .filter(|other| *other != index)
            .map(|other| (uuid(node, other).into(), 1200))
            .collect(),
        mig: None,
        cordon: None,
        even_share: None,
        strict: false,
        reserved: Vec::new(),
    };
    let inventory = Inventory {
        v: inventory::VERSION,
        reads: vec![allocation::VERSION],
        driver: "580.82".to_owned(),
        topology_policy: "none".to_owned(),
        topology_scope: aliquot_core::inventory::TopologyScope::default(),
        gpus: (0..GPUS).map(gpu).collect(),
        lingering: vec![],
        foreign: vec![],
        refused: vec![],
        evict: Vec::new(),
        unmeasured: Vec::new(),
        unreadable: Vec::new(),
        resizes: Vec::new(),
    };
    let annotations = json!({INVENTORY: inventory.encode()?});
    let status = json!({"allocatable": {RESOURCE: (10 * GPUS).to_string()}});
    let node =
        json!({"metadata": {"name": name(node), "annotations": annotations}, "status": status});
    Ok(serde_json::from_value(node)?)
}

/// The `number`th pod on the `node`th node: two on each GPU, of 17 sizes, so that hardly two GPUs
/// or nodes are alike.
pub(crate) fn bound_pod(node: usize, number: usize) -> Result<serde_json::Value> {
    let size = u64::try_from((node * 7 + number * 5) % 17)? * 1_000 + 8_000;
    let grant = Grant {
        resource: RESOURCE.to_owned(),
        gpu: uuid(node, u32::try_from(number)? % GPUS).into(),
        memory: Mib(size),
        cores: Percent(20),
        replicas: 1,
        burst: None,
        mig: None,
    };
    let allocation = Allocation {
        v: allocation::VERSION,
        node: name(node).into(),
        containers: [("main".to_owned(), vec![grant])].into(),
        init: [].into(),
        priority: 1,
    };
    let mut pod = pod(&format!("{node}-{number}"), size);
    pod["metadata"]["annotations"] = json!({ALLOCATION: allocation.encode()?});
    pod["spec"]["nodeName"] = json!(name(node));
    Ok(pod)
}

/// All pods on the `node`th node.
pub(crate) fn pods(node: usize) -> Result<Vec<Pod>> {
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
    let pod: Pod = serde_json::from_value(pod("p", memory))?;
    Ok(aliquot_k8s::pod::demand(&pod, &Settings::default())?)
}

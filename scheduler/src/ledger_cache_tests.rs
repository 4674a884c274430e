//! The ledger cache, fed as the watches feed it, without a stream.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use serde_json::{Value, json};

use super::*;

pub(crate) fn node(name: &str, memory: u64) -> Node {
    let inventory = json!({"v": 1, "reads": [1], "gpus": [{
        "uuid": format!("GPU-{name}"), "index": 0, "model": "m", "memory": memory, "scaled": memory,
        "cores": 100, "replicas": 10, "mode": "vgpu", "resource": "nvidia.com/gpu", "health": "ok",
    }]});
    from(json!({"metadata": {"name": name, "annotations": {INVENTORY: inventory.to_string()}}}))
}

pub(crate) fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A pod that requests `memory`, bound with its allocation where `node` is given.
pub(crate) fn pod(name: &str, memory: u64, node: Option<&str>) -> PodView {
    from(pod_json(name, memory, node))
}

/// The same with these fields, too.
pub(crate) fn pod_with(name: &str, memory: u64, node: Option<&str>, more: Value) -> PodView {
    from(with(pod_json(name, memory, node), more))
}

/// An object with these fields, too.
pub(crate) fn with(object: Value, more: Value) -> Value {
    match (object, more) {
        (Value::Object(mut fields), Value::Object(more)) => {
            for (name, value) in more {
                let field = fields.remove(&name).unwrap_or_default();
                fields.insert(name, with(field, value));
            }
            Value::Object(fields)
        }
        (_, more) => more,
    }
}

/// The pod as the API server has it.
pub(crate) fn pod_json(name: &str, memory: u64, node: Option<&str>) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": {"schedulerName": "aliquot-scheduler", "containers": [
            {"name": "main", "resources": {"limits": {
                "nvidia.com/gpu": "1", "nvidia.com/gpumem": memory.to_string()}}}]},
        "status": {"phase": "Pending"},
    });
    if let Some(node) = node {
        let allocation = json!({"v": 1, "node": node, "priority": 1, "containers": {"main": [
            {"resource": "nvidia.com/gpu", "gpu": format!("GPU-{node}"), "memory": memory, "cores": 0}]}});
        pod["spec"]["nodeName"] = json!(node);
        pod["metadata"]["annotations"] = json!({ALLOCATION: allocation.to_string()});
    }
    pod
}

/// One node `n` of 1000 MiB.
pub(crate) fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    Index::<Node>::reset(&cache, vec![node("n", 1000)]);
    Index::<PodView>::reset(&cache, vec![]);
    cache
}

pub(crate) fn used(cache: &LedgerCache) -> u64 {
    cache.read(|ledger| {
        ledger.cluster().node("n").unwrap().devices[0]
            .allocated
            .used
            .memory
            .0
    })
}

pub(crate) fn reserve(cache: &LedgerCache, name: &str, memory: u64) -> bool {
    let demand = pod::demand(&pod(name, memory, None), cache.settings()).unwrap();
    let reserved = cache.reserve(&name.into(), &"d".into(), &"n".into(), &demand);
    reserved.is_ok()
}

#[test]
fn records_allocation_from_binding_to_pod_end() {
    let cache = cache();
    Index::apply(&cache, pod("a", 600, Some("n")));
    assert_eq!(used(&cache), 600);
    let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    Index::apply(&cache, pod_with("a", 600, Some("n"), ending));
    assert_eq!(used(&cache), 600, "terminating pods keep their share");
    let done = json!({"status": {"phase": "Succeeded"}});
    Index::apply(&cache, pod_with("a", 600, Some("n"), done));
    assert_eq!(used(&cache), 0);
    Index::apply(&cache, pod("b", 700, Some("n")));
    Index::delete(&cache, pod("b", 700, Some("n")));
    assert_eq!(used(&cache), 0);
}

pub(crate) fn quota(memory: &str) -> ResourceQuota {
    serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "d"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": memory}},
    }))
    .unwrap()
}

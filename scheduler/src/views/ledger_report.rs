//! `GET /ledger`: the ledger, with what is allocated on every GPU and to every pod. The metrics may
//! not name pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::explain::PodPlacement;
use aliquot_core::inventory::{Gpu, Health};
use aliquot_core::node::Sums;
use aliquot_core::refusal::Reason;
use aliquot_core::top::DeviceAmount;
use aliquot_core::{GpuUuid, Ledger, NodeName, PodUid};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use super::placement;
use crate::ledger_cache::LedgerCache;

/// Nodes whose lines are made under one lock.
const TOGETHER: usize = 64;

/// The ledger's content. Sorted, so that equal ledgers give equal texts.
#[derive(Debug, Default, Serialize)]
pub struct LedgerReport {
    nodes: BTreeMap<NodeName, NodeLine>,
    pods: BTreeMap<PodUid, PodPlacement>,
}

#[derive(Debug, Serialize)]
struct NodeLine {
    /// A pod's allocation is unreadable: the node counts as full.
    unreadable: bool,
    /// `null` for a node whose inventory is unknown.
    gpus: Option<Vec<GpuLine>>,
}

#[derive(Debug, Serialize)]
struct GpuLine {
    uuid: GpuUuid,
    health: Health,
    pods: u32,
    used: DeviceAmount,
    total: DeviceAmount,
}

impl LedgerReport {
    pub fn new(ledger: &Ledger) -> Self {
        let mut report = Self::default();
        report.add(ledger, &ledger.node_names());
        report
    }

    /// Adds these nodes and their pods.
    fn add(&mut self, ledger: &Ledger, names: &[NodeName]) {
        for name in names {
            let Some(node) = ledger.cluster().node(name.as_str()) else {
                continue;
            };
            let gpus = node.inventory.as_ref().map(|inventory| {
                let gpus = inventory.gpus.iter().enumerate();
                gpus.map(|(place, gpu)| line(gpu, &node.counted_once(place)))
                    .collect()
            });
            let pods = ledger.pods_on(name.as_str());
            let with_share = pods.filter(|(_, entry)| entry.uses_devices());
            let before = self.pods.len();
            self.pods
                .extend(with_share.map(|(pod, entry)| (pod.clone(), placement(entry))));
            // Nodes without GPUs that only run pods without GPUs are left out.
            if gpus.is_some() || self.pods.len() > before {
                let unreadable = node.closed == Some(Reason::NodeAllocationUnreadable);
                self.nodes
                    .insert(name.clone(), NodeLine { unreadable, gpus });
            }
        }
    }
}

fn line(gpu: &Gpu, sums: &Sums) -> GpuLine {
    GpuLine {
        uuid: gpu.uuid.clone(),
        health: gpu.health.clone(),
        pods: sums.pods,
        used: sums.used.into(),
        total: DeviceAmount {
            replicas: gpu.replicas,
            memory: gpu.scaled,
            cores: gpu.cores,
        },
    }
}

pub fn router(cache: Arc<LedgerCache>) -> Router {
    Router::new()
        .route("/ledger", get(report))
        .with_state(cache)
}

async fn report(State(cache): State<Arc<LedgerCache>>) -> Json<LedgerReport> {
    let mut report = LedgerReport::default();
    // Some nodes at a time, so that nothing waits for the lock meanwhile.
    for names in cache.read(Ledger::node_names).chunks(TOGETHER) {
        cache.read(|ledger| report.add(ledger, names));
    }
    Json(report)
}

#[cfg(test)]
mod tests {
    use aliquot_k8s::watch::Index;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;
    use crate::ledger_cache::tests::{node, pod};

    #[test]
    fn reports_every_gpu_and_every_allocation() {
        let cache = LedgerCache::default();
        Index::<Node>::reset(&cache, vec![node("n", 1000)]);
        Index::apply(&cache, pod("a", 600, Some("n")));
        Index::apply(&cache, pod("b", 100, Some("unknown")));
        let report = cache.read(LedgerReport::new);
        let amount = |replicas, memory, cores| json!({"replicas": replicas, "memory": memory, "cores": cores});
        let pod_line = |node: &str, memory| {
            json!({
                "node": node, "confirmed": true,
                "gpus": {format!("GPU-{node}"): amount(1, memory, 0)},
            })
        };
        let expected = json!({
            "nodes": {
                "n": {"unreadable": false, "gpus": [{
                    "uuid": "GPU-n", "health": "ok", "pods": 1,
                    "used": amount(1, 600, 0), "total": amount(10, 1000, 100),
                }]},
                "unknown": {"unreadable": false, "gpus": null},
            },
            "pods": {"a": pod_line("n", 600), "b": pod_line("unknown", 100)},
        });
        assert_eq!(serde_json::to_value(&report).unwrap(), expected);
    }
}

//! A made-up ledger, served by the scheduler's own routes.

use std::net::SocketAddr;
use std::sync::Arc;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::watch::Index;
use aliquot_scheduler::leader::Leader;
use aliquot_scheduler::ledger_cache::LedgerCache;
use aliquot_scheduler::pod_client::PodClient;
use aliquot_scheduler::views::{self, ReadModel};
use aliquot_serve::{Readiness, http};
use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const MODELS: [&str; 3] = [
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L4",
    "NVIDIA H100 80GB HBM3",
];
const NAMESPACES: [&str; 6] = ["vision", "speech", "search", "ci", "notebooks", "ranking"];

/// Nodes of eight GPUs with `shares` on each GPU, except every fifth node, which has few; an unhealthy
/// GPU; pending pods.
pub fn ledger(nodes: usize, shares: usize, waiting: usize) -> Result<LedgerCache> {
    let ledger = LedgerCache::default();
    let all = (0..nodes).map(node).collect::<Result<Vec<Node>>>()?;
    Index::<Node>::reset(&ledger, all);
    let mut pods = Vec::new();
    for node in 0..nodes {
        for gpu in 0..8 {
            let here = if node % 5 == 4 {
                shares.div_ceil(3)
            } else {
                shares
            };
            for share in 0..here {
                pods.push(pod(node, gpu, share)?);
            }
        }
    }
    for number in 0..waiting {
        let limits = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "90000"});
        pods.push(serde_json::from_value(json!({
            "metadata": {"name": format!("large-{number}"), "namespace": "ranking", "uid": format!("w{number}")},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }))?);
    }
    Index::<Pod>::reset(&ledger, pods);
    Ok(ledger)
}

fn node(number: usize) -> Result<Node> {
    let gpu = |index: usize| {
        let sick = number == 1 && index == 2;
        let mode = if index == 7 { "timeslice" } else { "vgpu" };
        json!({
            "uuid": uuid(number, index), "index": index, "model": MODELS[number % 3],
            "memory": 81920, "scaled": 81920, "cores": 100, "seats": 10, "mode": mode,
            "resource": "nvidia.com/gpu", "health": if sick { "xid 79" } else { "ok" },
        })
    };
    let gpus: Vec<Value> = (0..8).map(gpu).collect();
    let inventory = json!({"v": 1, "reads": [1], "driver": "580.82", "gpus": gpus});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("gpu-{number:03}"), "annotations": {INVENTORY: inventory.to_string()}},
        "status": {"allocatable": {"nvidia.com/gpu": "80", "cpu": "64", "memory": "512Gi", "pods": "110"}},
    }))?)
}

fn uuid(node: usize, gpu: usize) -> String {
    format!("GPU-{node:08x}-0000-0000-0000-{gpu:012x}")
}

fn pod(node: usize, gpu: usize, share: usize) -> Result<Pod> {
    let memory = 6000 + 1500 * ((node + gpu + share) % 5);
    let grant = json!({"resource": "nvidia.com/gpu", "gpu": uuid(node, gpu), "memory": memory, "cores": 10});
    let name = format!("gpu-{node:03}");
    let allocation =
        json!({"v": 1, "node": name, "containers": {"main": [grant]}, "init": {}, "priority": 1});
    let uid = format!("p{node}-{gpu}-{share}");
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("job-{node}-{gpu}-{share}"), "uid": uid,
            "namespace": NAMESPACES[(node * 7 + gpu * 3 + share) % NAMESPACES.len()],
            "annotations": {ALLOCATION: allocation.to_string()}},
        "spec": {"nodeName": name, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }))?)
}

/// Serves the ledger; returns the address and a token that stops the server.
pub async fn serve(ledger: LedgerCache) -> Result<(SocketAddr, CancellationToken)> {
    let ledger = Arc::new(ledger);
    // No request is made: there is no API server.
    let client = Client::try_from(Config::new("http://127.0.0.1:9".parse()?))?;
    let router = views::router(ReadModel {
        cache: ledger,
        pods: PodClient::new(client),
        leader: Leader::always(),
        readiness: Readiness::new([]),
    });
    let listener = http::bind("127.0.0.1:0".parse()?).await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    tokio::spawn(http::serve(
        http::plain(listener),
        router,
        stop.clone(),
        http::DRAIN,
    ));
    Ok((address, stop))
}

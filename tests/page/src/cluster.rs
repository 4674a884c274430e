//! A made-up ledger, served by the scheduler's own routes, and an API server that answers for the monitors.

use std::net::SocketAddr;
use std::sync::Arc;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use aliquot_scheduler::leader::Leader;
use aliquot_scheduler::ledger_cache::LedgerCache;
use aliquot_scheduler::pod_client::PodClient;
use aliquot_scheduler::views::hour::{self, Hour};
use aliquot_scheduler::views::monitors::Monitors;
use aliquot_scheduler::views::{self, ReadModel};
use aliquot_serve::Readiness;
use aliquot_serve::http::{self as server, Limits};
use anyhow::Result;
use http::{Request, Response};
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::service_fn;

const MODELS: [&str; 3] = [
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L4",
    "NVIDIA H100 80GB HBM3",
];
const NAMESPACES: [&str; 6] = ["vision", "speech", "search", "ci", "notebooks", "ranking"];

/// Two shares of the GPU with dynamic MIG: profile, start, memory and compute.
const INSTANCES: [(&str, usize, usize, usize); 2] =
    [("3g.40gb", 0, 40_448, 42), ("2g.20gb", 4, 19_968, 28)];

/// Nodes of eight GPUs with `shares` on each GPU, except every fifth node, which has few, and a GPU with
/// dynamic MIG, which has two; an unhealthy GPU; pending pods.
pub fn ledger(nodes: usize, shares: usize, waiting: usize) -> Result<LedgerCache> {
    let ledger = LedgerCache::default();
    let all = (0..nodes).map(node).collect::<Result<Vec<Node>>>()?;
    Index::<Node>::reset(&ledger, all);
    let mut pods = Vec::new();
    for node in 0..nodes {
        for gpu in 0..8 {
            for share in 0..shares_on(node, gpu, shares) {
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
    Index::<PodView>::reset(&ledger, pods);
    let quota = serde_json::from_value(json!({
        "metadata": {"namespace": "vision", "name": "team"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "4000000"}},
    }))?;
    Index::<ResourceQuota>::reset(&ledger, vec![quota]);
    Ok(ledger)
}

fn node(number: usize) -> Result<Node> {
    let memory = if is_small(number) { 24_576 } else { 81_920 };
    let gpu = |index: usize| {
        let sick = number == 1 && index == 2;
        let mode = if index == 7 { "timeslice" } else { "vgpu" };
        let mut gpu = json!({
            "uuid": uuid(number, index), "index": index, "model": MODELS[number % 3],
            "memory": memory, "scaled": memory, "cores": 100, "replicas": 10, "mode": mode,
            "resource": "nvidia.com/gpu", "health": if sick { "xid 79" } else { "ok" },
        });
        if is_mig(number, index) {
            gpu["mode"] = json!("mig");
            gpu["replicas"] = json!(0);
            gpu["mig"] = json!({"compute": 7, "profiles": [
                {"name": "1g.10gb", "compute": 1, "size": 1, "memory": 9728, "starts": [0, 1, 2, 3, 4, 5, 6], "most": 7},
                {"name": "2g.20gb", "compute": 2, "size": 2, "memory": 19_968, "starts": [0, 2, 4], "most": 3},
                {"name": "3g.40gb", "compute": 3, "size": 4, "memory": 40_448, "starts": [0, 4], "most": 2},
            ], "instances": [{"profile": "1g.10gb", "start": 6, "uuid": "MIG-idle", "gi": 1, "ci": 0}]});
        }
        gpu
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

/// What a share has allocated: less on the small GPUs.
fn memory(node: usize, gpu: usize, share: usize) -> usize {
    let memory = 6000 + 1500 * ((node + gpu + share) % 5);
    if is_small(node) { memory / 4 } else { memory }
}

fn is_small(node: usize) -> bool {
    node % 3 == 1
}

fn is_mig(node: usize, gpu: usize) -> bool {
    (node, gpu) == (2, 0)
}

/// How many of `shares` a GPU has.
fn shares_on(node: usize, gpu: usize, shares: usize) -> usize {
    match node % 5 {
        _ if is_mig(node, gpu) => INSTANCES.len(),
        4 => shares.div_ceil(3),
        _ => shares,
    }
}

fn namespace(node: usize, gpu: usize, share: usize) -> &'static str {
    NAMESPACES[(node * 7 + gpu * 3 + share) % NAMESPACES.len()]
}

fn pod(node: usize, gpu: usize, share: usize) -> Result<PodView> {
    let memory = memory(node, gpu, share);
    let mut grant = json!({"resource": "nvidia.com/gpu", "gpu": uuid(node, gpu), "memory": memory, "cores": 10});
    if is_mig(node, gpu) {
        let (profile, start, memory, cores) = INSTANCES[share];
        grant = json!({"resource": format!("nvidia.com/mig-{profile}"), "gpu": uuid(node, gpu),
            "memory": memory, "cores": cores, "mig": {"profile": profile, "start": start}});
    }
    let name = format!("gpu-{node:03}");
    let allocation =
        json!({"v": 1, "node": name, "containers": {"main": [grant]}, "init": {}, "priority": 1});
    let uid = format!("p{node}-{gpu}-{share}");
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("job-{node}-{gpu}-{share}"), "uid": uid,
            "namespace": namespace(node, gpu, share),
            "annotations": {ALLOCATION: allocation.to_string()}},
        "spec": {"nodeName": name, "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }))?)
}

/// What the monitor of a node answers through the API server's proxy: each share of a GPU uses the same part of
/// its memory, half on the first GPU, and more each half minute; one borrows. The monitor of the second node is down.
fn monitor(node: usize, is_history: bool) -> (u16, Value) {
    if node == 1 {
        return (
            503,
            json!({"kind": "Status", "message": "dial tcp: connection refused"}),
        );
    }
    let mut gpus = Vec::new();
    let mut shares = Vec::new();
    for index in 0..8 {
        let gpu = uuid(node, index);
        let (eighths, sm) = [(4, 10), (7, 9), (2, 3), (6, 10), (0, 0)][index % 5];
        let (here, mut used) = (shares_on(node, index, 5), 0);
        for share in 0..here {
            let limit = memory(node, index, share);
            let borrows = (node, index, share) == (2, 3, 0);
            let memory = if borrows {
                limit + 8192
            } else {
                limit * eighths / 8
            };
            used += memory;
            let hour =
                |value: usize| -> Vec<usize> { (1..=120).map(|at| value * at / 120).collect() };
            let mut answer = json!({"gpu": gpu, "device": gpu, "container": "main",
                "namespace": namespace(node, index, share), "pod": format!("job-{node}-{index}-{share}"),
                "limit": limit, "memory": memory, "sm": sm, "throttled": sm / 2});
            if borrows {
                answer["request"] = json!(limit);
            }
            if is_history {
                answer["memory"] = json!(hour(memory));
                answer["sm"] = json!(hour(sm));
            }
            shares.push(answer);
        }
        gpus.push(json!({"gpu": gpu, "memory": used, "sm": here * sm, "temperature": 40 + index, "power": 71 + 4 * sm}));
    }
    (
        200,
        json!({"node": format!("gpu-{node:03}"), "gpus": gpus, "shares": shares}),
    )
}

/// The API server: it has an agent on each node, `agent-` and the node's number.
fn api_server(request: &Request<Body>) -> (u16, Value) {
    let uri = request.uri();
    if let Some((_, rest)) = uri.path().split_once("/https:agent-") {
        let node = rest
            .split(':')
            .next()
            .and_then(|number| number.parse().ok());
        return monitor(node.unwrap_or_default(), rest.ends_with("/usage/history"));
    }
    let query = uri.query().unwrap_or_default();
    let named = query.split_once("nodeName%3Dgpu-");
    let number = named.and_then(|(_, rest)| rest.get(..3)?.parse::<usize>().ok());
    let pod = number.map(|number| json!({"metadata": {"name": format!("agent-{number}")}}));
    let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
        "metadata": {}, "items": pod.into_iter().collect::<Vec<_>>()});
    (200, list)
}

/// Serves the ledger; returns the address and a token that stops the server.
pub async fn serve(ledger: LedgerCache) -> Result<(SocketAddr, CancellationToken)> {
    let ledger = Arc::new(ledger);
    let service = service_fn(|request: Request<Body>| async move {
        let (status, answer) = api_server(&request);
        let response = Response::builder().status(status);
        response.body(Body::from(answer.to_string().into_bytes()))
    });
    let client = Client::new(service, "default");
    let namespace = Some("aliquot-system".to_owned());
    let monitors = Monitors::new(client.clone(), namespace, None);
    let (hour, readiness) = (Hour::default(), Readiness::new([]));
    let stop = CancellationToken::new();
    tokio::spawn(hour::run(
        hour.clone(),
        ledger.clone(),
        monitors.clone(),
        readiness.clone(),
        stop.clone(),
    ));
    let router = views::router(ReadModel {
        cache: ledger,
        pods: PodClient::new(client),
        monitors,
        hour,
        leader: Leader::always(),
        readiness,
    });
    let listener = server::bind("127.0.0.1:0".parse()?).await?;
    let address = listener.local_addr()?;
    let limits = Limits::new(0);
    tokio::spawn(server::serve(listener, None, router, limits, stop.clone()));
    Ok((address, stop))
}

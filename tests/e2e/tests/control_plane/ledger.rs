//! A ledger that is not ready place nothing.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_core::allocation::ALLOCATION;
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use hyper::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// Counted as the whole of every GPU, and reported; not on a pod that another scheduler placed.
pub(crate) async fn unreadable(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 2,
        replicas: 10,
    };
    let nodes = [("unreadable-1".to_owned(), shape)];
    let pool = Pool::open(&stack, "unreadable", &nodes).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, pool.name);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ALLOCATION: "{\"v\":99}"}}}));
    let params = PatchParams::default();
    let mut forged = simple(pool.name, "forged", &[]);
    forged["spec"]["nodeName"] = json!("unreadable-1");
    stack.cluster.create_pod(forged).await?;
    pods.patch_metadata("forged", &params, &patch).await?;
    pool.create("spoilt", &[("gpumem", "1000")]).await?;
    pool.bound("spoilt").await?;
    pods.patch_metadata("spoilt", &params, &patch).await?;

    // The watch shows pods in the order of their changes: once the scheduler
    // counts this one, it has seen the patch.
    let mut next = pool.pod("next", &[("gpumem", "1000")]);
    next["spec"]["schedulingGates"] = json!([{"name": "aliquot.dev/test"}]);
    let waiting = async || {
        let address = stack.address(Kind::Scheduler);
        http::metric(address, "aliquot_scheduler_pending_pods", &[]).await
    };
    let before = waiting().await?;
    stack.cluster.create_pod(next).await?;
    eventually(PATIENCE, "the next pod in the ledger", || async {
        let waiting = waiting().await?;
        until!(waiting > before, "{waiting} pods wait");
        Ok(Some(()))
    })
    .await?;
    let open = json!({"spec": {"schedulingGates": null}});
    pods.patch("next", &params, &Patch::Merge(open)).await?;
    let why = "GPU request does not fit the one node offered: 1 NodeAllocationUnreadable";
    let event = pool.event("next", "Refused: ").await?;
    ensure!(event == format!("Refused: {why}"), "{event}");
    ensure!(node_of(&pods.get("next").await?).is_none());
    named(&stack, &pool).await?;

    stack.cluster.delete_pod(pool.name, "spoilt").await?;
    pool.bound("next").await?;
    pool.close().await
}

/// Whose pod it is, in the answers of the scheduler and in the events of pod and node.
async fn named(stack: &Stack, pool: &Pool<'_>) -> Result<()> {
    let address = stack.address(Kind::Scheduler);
    let top: Value = serde_json::from_str(&http::get(address, "/top").await?)?;
    let nodes = top["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let mut spoilt = nodes.iter().filter(|node| node["node"] == "unreadable-1");
    let spoilt = spoilt.next().map(|node| &node["unreadable"]);
    ensure!(spoilt == Some(&json!(["unreadable/spoilt"])), "{top}");
    let answer = http::get(address, "/explain/unreadable/next").await?;
    ensure!(answer.contains("of pod unreadable/spoilt"), "{answer}");
    let why = "annotation aliquot.dev/allocation of pod unreadable/spoilt cannot be read, so node unreadable-1 counts as full";
    pool.event("spoilt", why).await?;
    eventually(PATIENCE, "the event of the node", || async {
        let events = stack.cluster.events("default", "Node", "unreadable-1");
        let mut texts = events.await?.into_iter().filter_map(|event| event.message);
        Ok(texts.any(|text| text.contains(why)).then_some(()))
    })
    .await
}

/// A second scheduler that cannot list answers, but with no node.
pub(crate) async fn not_ready(stack: Arc<Stack>) -> Result<()> {
    let cluster = &stack.cluster;
    let real = std::fs::read_to_string(cluster.kubeconfig())?;
    let nowhere = format!("https://{}", cluster.part_address(9));
    let blind = real.replace(&cluster.api_url(), &nowhere);
    let file = stack.write("nowhere.kubeconfig", &blind)?;
    let address = cluster.part_address(8);
    let args = [
        "--kubeconfig",
        &file.to_string_lossy(),
        "--listen",
        &address.to_string(),
    ];
    let program = stack.program(Kind::Scheduler);
    let part = cluster.start_part("blind-scheduler", &program, &args, &[])?;
    let post = async |path: &str, body: Value| {
        http::call(Method::POST, address, path, body.to_string()).await
    };

    let ready = eventually(PATIENCE, "the blind scheduler to listen", || async {
        part.check()?;
        http::call(Method::GET, address, "/readyz", String::new())
            .await
            .or_not_yet()
            .map(Some)
    });
    let (status, body) = ready.await?;
    ensure!(status == 503, "/readyz: {status} {body}");
    let pod = simple("default", "p", &[("gpu", "1")]);
    let request = json!({"Pod": pod, "NodeNames": ["n1"]});
    let (status, body) = post("/filter", request.clone()).await?;
    let answer: Value = serde_json::from_str(&body)?;
    let error = answer["Error"].as_str().unwrap_or_default();
    ensure!(
        status == 200
            && error.starts_with("aliquot-scheduler is not ready: ")
            && answer["NodeNames"].is_null(),
        "/filter: {status} {body}"
    );
    let (status, body) = post("/prioritize", request).await?;
    ensure!(status == 503, "/prioritize: {status} {body}");
    let request = json!({"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"});
    let (status, body) = post("/bind", request).await?;
    let answer: Value = serde_json::from_str(&body)?;
    ensure!(
        status == 200 && answer["Error"].as_str() == Some(error),
        "/bind: {status} {body}"
    );
    part.kill().await
}

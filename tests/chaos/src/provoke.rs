//! Makes a replica pass the places that load alone does not lead to.

use std::time::Duration;

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_core::allocation::ALLOCATION;
use aliquot_core::resize::RESIZE;
use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::GPU_MEMORY;
use aliquot_e2e::proxy::{Proxy, Traffic};
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::load::NAMESPACE;
use crate::observer::Observer;

/// Prefix of the names of pods that bypass the scheduler. Only these may overcommit a GPU.
pub const FORGED: &str = "forged-";

/// Of Bindings neither the answer arrives nor, every other time, the request.
pub async fn lose_answers(proxy: &Proxy) -> Result<()> {
    let mut trap = proxy.trap(Traffic::Binding);
    loop {
        drop(trap.next().await?);
        let answered = trap.next().await?.forward().await?;
        // The sender may have been killed.
        let _sent = match answered.status() {
            201 => answered.replace(StatusCode::INTERNAL_SERVER_ERROR),
            _ => answered.pass(),
        };
    }
}

/// Bindings are refused and never arrive.
pub async fn reject(proxy: &Proxy) -> Result<()> {
    let mut trap = proxy.trap(Traffic::Binding);
    loop {
        let _sent = trap.next().await?.answer(StatusCode::FORBIDDEN);
    }
}

/// Asks for other shares of bound pods, most of which fit: for one pod at a time, since the API
/// server has the load of the pods too.
pub async fn resize(stack: &Stack, observer: &Observer) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    loop {
        ticks.tick().await;
        let mut bound = observer.pods("");
        bound.retain(|pod| pod.node.is_some());
        let Some(pod) = fastrand::choice(bound) else {
            continue;
        };
        let (memory, cores) = (fastrand::u64(4_000..30_000), fastrand::u64(1..40));
        let text = format!("main:gpumem={memory},gpucores={cores} deadline=5");
        let patch = json!({"metadata": {"annotations": {RESIZE: text}}});
        // The pod may be gone.
        let _written = pods
            .patch(&pod.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
    }
}

/// Forges one pod after the other, with names that begin so: an eviction of which the answer is late
/// passes no place, and there is none of a pod that is gone.
pub async fn forge(stack: &Stack, names: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    for n in 0_u64.. {
        forge_one(stack, &format!("{names}-{n}")).await?;
        eventually(PATIENCE, "the forged pod to be evicted", || async {
            Ok(is_gone(&pods, names).await?.then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Whether no pod is left whose name begins so.
pub async fn is_gone(pods: &Api<Pod>, names: &str) -> Result<bool> {
    let all = pods.list_metadata(&ListParams::default()).await?.items;
    let mut all = all.iter().filter_map(|pod| pod.metadata.name.as_deref());
    let names = format!("{names}-");
    Ok(!all.any(|name| name.starts_with(&names)))
}

/// Binds a pod to the real node, bypassing the scheduler, with more memory of its first GPU than
/// that has.
async fn forge_one(stack: &Stack, name: &str) -> Result<()> {
    let mut pod = simple(NAMESPACE, name, &[("gpu", "1"), ("gpumem", "1000")]);
    pod["spec"]["schedulerName"] = json!("nobody");
    stack.cluster.create_pod(pod).await?;
    let machine = stack.machine().show()?;
    let gpu = machine["gpus"][0]["uuid"].as_str().context("a uuid")?;
    let allocation = json!({
        "v": 1, "node": NODE, "priority": 1, "init": {},
        "containers": {"main": [
            {"resource": "nvidia.com/gpu", "gpu": gpu, "memory": GPU_MEMORY + 1, "cores": 0},
        ]},
    });
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "annotations": {ALLOCATION: allocation.to_string()}},
        "target": {"kind": "Node", "name": NODE},
    });
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, NAMESPACE);
    let params = PostParams::default();
    let _: Value = pods
        .create_subresource("binding", name, &params, &binding)
        .await?;
    Ok(())
}

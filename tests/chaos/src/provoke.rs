//! Makes a replica pass the places that mere load does not lead to.
//!
//! Fed by: [`crate::run`], while load goes on. Must not: choose whom to kill.

use aliquot_core::allocation::ALLOCATION;
use aliquot_e2e::pods::simple;
use aliquot_e2e::pool::CARD;
use aliquot_e2e::proxy::{Proxy, Traffic};
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result};
use hyper::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::load::NAMESPACE;

/// Names of pods bound past the scheduler begin so. Nothing but they may ever
/// over-book a card.
pub const FORGED: &str = "forged-";

/// Of Bindings neither the answer arrives nor, every other time, the request.
pub async fn lose_answers(proxy: &Proxy) -> Result<()> {
    let mut trap = proxy.trap(&[Traffic::Binding]);
    loop {
        drop(trap.next().await?);
        let answered = trap.next().await?.forward().await?;
        // The sender may have been killed.
        let _told = match answered.status() {
            201 => answered.replace(StatusCode::INTERNAL_SERVER_ERROR),
            _ => answered.pass(),
        };
    }
}

/// Bindings are refused and never arrive.
pub async fn reject(proxy: &Proxy) -> Result<()> {
    let mut trap = proxy.trap(&[Traffic::Binding]);
    loop {
        let _told = trap.next().await?.answer(StatusCode::FORBIDDEN);
    }
}

/// Binds a pod past the scheduler to the real node, with more memory of its
/// first card than that has.
pub async fn forge(stack: &Stack, name: &str) -> Result<()> {
    let mut pod = simple(NAMESPACE, name, &[("gpu", "1"), ("gpumem", "1000")]);
    pod["spec"]["schedulerName"] = json!("nobody");
    stack.cluster.create_pod(pod).await?;
    let machine = stack.machine().show()?;
    let gpu = machine["gpus"][0]["uuid"].as_str().context("a uuid")?;
    let allocation = json!({
        "v": 1, "node": NODE, "priority": 1, "init": {},
        "containers": {"main": [
            {"resource": "nvidia.com/gpu", "gpu": gpu, "memory": CARD + 1, "cores": 0},
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

//! Pods that bypass the scheduler do not start, report why, and are evicted where possible.

use std::sync::Arc;

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::running::{Running, main_status, wait_blocked};

const LIMITS: [(&str, &str); 2] = [("gpu", "1"), ("gpumem", "1000")];

/// A static pod with our resource, and a pod that is bound by hand without an allocation.
pub(crate) async fn static_pod(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("static").await?;
    let running = Running::start(stack, "static", "running", 3000).await?;
    // It evicts refused pods soon.
    stack.restart_scheduler(&["--evict-after", "3"]).await?;
    let manifest = stack.cluster.manifests_dir().join("gpu.yaml");
    std::fs::write(&manifest, simple("static", "gpu", &LIMITS).to_string())?;
    let mirror = format!("gpu-{NODE}");
    let why = "is a static pod, which bypasses the scheduler";
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "static");
    eventually(PATIENCE, "the static pod", || async {
        Ok(pods.get_opt(&mirror).await?)
    })
    .await?;
    wait_blocked(stack, "static", &mirror, why).await?;
    stack
        .wait_event(
            "static",
            &mirror,
            &["Failed: ", why, "run it as a Deployment"],
        )
        .await?;

    // Refused later than the static pod, evicted: the static one's time has come.
    bind(stack, "static", "later").await?;
    let why = "static/later was bound to this node without an allocation";
    wait_blocked(stack, "static", "later", why).await?;
    let fix = "delete the pod and create it again with `schedulerName: aliquot-scheduler`";
    stack
        .wait_event("static", "later", &["Failed: ", why, fix])
        .await?;
    eventually(PATIENCE, "the later pod to be evicted", || async {
        Ok(pods.get_opt("later").await?.is_none().then_some(()))
    })
    .await?;
    let evicted = ["EvictedRefused: ", "without an allocation"];
    stack.wait_event("static", "later", &evicted).await?;
    let found = pods.get(&mirror).await?;
    let status = main_status(&found).context("main has a status")?;
    ensure!(
        status.restart_count == 0 && found.metadata.deletion_timestamp.is_none(),
        "{status:?}"
    );
    let events = stack.event_texts("static", &mirror).await?;
    ensure!(!events.iter().any(|e| e.contains("Evicted")), "{events:?}");

    running.untouched(stack).await?;
    let next = Running::start(stack, "static", "next", 2000).await?;
    std::fs::remove_file(&manifest)?;
    eventually(PATIENCE, "the static pod to be gone", || async {
        Ok(pods.get_opt(&mirror).await?.is_none().then_some(()))
    })
    .await?;
    stack.restart_scheduler(&[]).await?;
    running.untouched(stack).await?;
    next.delete(stack).await?;
    running.delete(stack).await
}

/// Creates a pod that no scheduler takes, and binds it.
async fn bind(stack: &Stack, namespace: &str, name: &str) -> Result<()> {
    let mut pod = simple(namespace, name, &LIMITS);
    pod["spec"]["schedulerName"] = json!("nobody");
    stack.cluster.create_pod(pod).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, namespace);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": NODE},
    });
    let params = PostParams::default();
    let _: Value = pods
        .create_subresource("binding", name, &params, &binding)
        .await?;
    Ok(())
}

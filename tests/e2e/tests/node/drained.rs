//! With `--sick-pods drain`: an unhealthy GPU that requires a drain of its node.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_device_plugin::publish::drain::{CLEARED, TAINT};
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::losses::refused;
use crate::running::Running;

/// Pods of both GPUs leave, the node is tainted, and all is back when the GPU is well.
pub(crate) async fn drains(stack: Arc<Stack>) -> Result<()> {
    let draining = NodeOptions {
        flags: &["--sick-pods", "drain"],
        ..NodeOptions::default()
    };
    stack.terminate(Kind::Scheduler).await?;
    stack.start_scheduler(&["--gpu-policy", "spread"]).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&draining).await?;
    let outcome = drained(&stack).await;
    stack.machine().set("0", &[("health", "ok")])?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    stack.terminate(Kind::Scheduler).await?;
    stack.start_scheduler(&[]).await?;
    tainted(&stack, false).await?;
    outcome
}

async fn drained(stack: &Stack) -> Result<()> {
    stack.cluster.namespace("drained").await?;
    let first = Running::start(stack, "drained", "first", 1000).await?;
    let second = Running::start(stack, "drained", "second", 1000).await?;
    ensure!(first.share.gpu() != second.share.gpu(), "both on one GPU");
    stack.machine().xid("0", 79)?;
    tainted(stack, true).await?;
    let pods: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "drained");
    for pod in [&first, &second] {
        eventually(PATIENCE, &format!("{} to be gone", pod.name), || async {
            Ok(pods.get_opt(&pod.name).await?.is_none().then_some(()))
        })
        .await?;
    }
    // The cordon excludes a pod that tolerates everything.
    let mut stubborn = Running::pod("drained", "stubborn", 1000);
    stubborn["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    stack.cluster.create_pod(stubborn).await?;
    refused(stack, "drained", "stubborn", "CardCordoned").await?;

    stack.machine().set("0", &[("health", "ok")])?;
    tainted(stack, false).await?;
    stack.cluster.wait_running("drained", "stubborn").await?;
    stack.cluster.delete_pod("drained", "stubborn").await?;

    // The owner's annotation takes effect, and is removed.
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let cleared = Patch::Merge(json!({"metadata": {"annotations": {CLEARED: "GPU-of-nobody"}}}));
    nodes.patch(NODE, &PatchParams::default(), &cleared).await?;
    eventually(
        PATIENCE,
        "the owner's annotation to be taken away",
        || async {
            let annotations = nodes.get(NODE).await?.metadata.annotations;
            let still = annotations.is_some_and(|all| all.contains_key(CLEARED));
            Ok((!still).then_some(()))
        },
    )
    .await
}

async fn tainted(stack: &Stack, expected: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    eventually(PATIENCE, &format!("the taint: {expected}"), || async {
        let taints = nodes.get(NODE).await?.spec.and_then(|spec| spec.taints);
        let found = taints.iter().flatten().any(|taint| taint.key == TAINT);
        until!(found == expected, "{taints:?}");
        Ok(Some(()))
    })
    .await
}

//! What the Node object shows of the GPUs: capacity that the kubelet enforces.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use crate::running::Running;

const MEMORY: &str = "nvidia.com/gpumem";
const CORES: &str = "nvidia.com/gpucores";

async fn restart_agent(stack: &Stack, options: &NodeOptions) -> Result<()> {
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(options).await
}

/// Capacity of memory and compute: the kubelet refuses what is beyond, it is never less
/// than what runs, and it goes when it is switched off.
pub(crate) async fn capacity(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let on = NodeOptions {
        flags: &["--node-capacity", "true"],
        ..NodeOptions::default()
    };
    restart_agent(stack, &on).await?;
    let outcome = counted(stack).await;
    restart_agent(stack, &NodeOptions::default()).await?;
    published(stack, None, None).await?;
    outcome
}

async fn counted(stack: &Stack) -> Result<()> {
    published(stack, Some("162572"), Some("200")).await?;
    stack.cluster.namespace("counted").await?;
    let running = Running::start(stack, "counted", "running", 30_000).await?;
    // Bypassing the scheduler, so that only the kubelet refuses it.
    stack.cluster.exempt_namespace("counted-exempt").await?;
    let mut large = simple("counted-exempt", "large", &[("gpumem", "140000")]);
    large["spec"]["nodeName"] = json!(NODE);
    stack.cluster.create_pod(large).await?;
    let failed = stack
        .cluster
        .wait_phase("counted-exempt", "large", "Failed")
        .await?;
    let status = failed.status.context("it has a status")?;
    let reason = status.reason.unwrap_or_default();
    ensure!(reason == format!("OutOf{MEMORY}"), "{reason}");

    // A tenth of 162,572 is less than what runs; a kubelet that restarts counts it again.
    let little = NodeOptions {
        flags: &["--node-capacity", "true"],
        scaling: "0.1",
        ..NodeOptions::default()
    };
    restart_agent(stack, &little).await?;
    published(stack, Some("30k"), Some("200")).await?;
    stack.cluster.restart_kubelet().await?;
    stack.wait_capacity("20").await?;
    running.untouched(stack).await?;
    running.delete(stack).await?;
    published(stack, Some("16256"), Some("200")).await?;
    stack.cluster.delete_pod("counted-exempt", "large").await
}

/// Waits until capacity and allocatable are these.
async fn published(stack: &Stack, memory: Option<&str>, cores: Option<&str>) -> Result<()> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    eventually(
        PATIENCE,
        &format!("capacity {memory:?} {cores:?}"),
        || async {
            let status = nodes.get(NODE).await?.status.unwrap_or_default();
            for (name, expected) in [(MEMORY, memory), (CORES, cores)] {
                for side in [&status.capacity, &status.allocatable] {
                    let found = side.as_ref().and_then(|side| side.get(name));
                    let found = found.map(|quantity| quantity.0.as_str());
                    until!(found == expected, "{name}: {found:?}");
                }
            }
            Ok(Some(()))
        },
    )
    .await
}

//! Pods in the way of a change: evicted if the profile says so, waited for no longer than it says.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_core::inventory::Mode;
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::labels::{device, restarts};
use super::world::{PATIENCE, label, wait_condition, wait_modes};

const BEFORE: [Mode; 3] = [Mode::Timeslice, Mode::Vgpu, Mode::Vgpu];
const AFTER: [Mode; 3] = [Mode::Exclusive, Mode::Vgpu, Mode::Vgpu];

/// A pod on this GPU of the node, running.
async fn on(stack: &Stack, (space, name): (&str, &str), gpu: usize) -> Result<Pod> {
    let uuid = stack.inventory().await?.gpus[gpu].uuid.to_string();
    let mut pod = simple(space, name, &[("gpu", "1")]);
    pod["metadata"]["annotations"]["aliquot.dev/use-gpu"] = uuid.as_str().into();
    stack.cluster.create_pod(pod).await?;
    let pod = stack.cluster.wait_running(space, name).await?;
    ensure!(device(&pod)? == uuid, "{name} is not on {uuid}");
    Ok(pod)
}

/// It is the same pod, and its container runs since its first start.
async fn untouched(stack: &Stack, before: &Pod) -> Result<()> {
    let name = before.metadata.name.clone().unwrap_or_default();
    let space = before.metadata.namespace.clone().unwrap_or_default();
    let now = stack.cluster.wait_running(&space, &name).await?;
    let same = now.metadata.uid == before.metadata.uid && restarts(&now) == 0;
    ensure!(same, "{name}: {:?}", now.status);
    Ok(())
}

async fn wait_gone(stack: &Stack, space: &str, name: &str) -> Result<()> {
    let pods = Api::<Pod>::namespaced(stack.cluster.admin()?, space);
    eventually(PATIENCE, &format!("{name} to be gone"), || async {
        Ok(pods.get_opt(name).await?.is_none().then_some(()))
    })
    .await
}

/// The pod in the way of the new mode is evicted with a reason; the one on another GPU is not.
pub(crate) async fn evicted(stack: Arc<Stack>) -> Result<()> {
    let space = "evicted";
    stack.cluster.namespace(space).await?;
    label(&stack, Some("left")).await?;
    wait_modes(&stack, &BEFORE).await?;
    on(&stack, (space, "in-the-way"), 0).await?;
    let aside = on(&stack, (space, "aside"), 2).await?;
    label(&stack, Some("evicts")).await?;
    wait_gone(&stack, space, "in-the-way").await?;
    wait_modes(&stack, &AFTER).await?;
    wait_condition(&stack, "Applied", "profile evicts").await?;
    let why = "changes to mode exclusive, as the profile of its node requires";
    stack.wait_event(space, "in-the-way", &[why]).await?;
    untouched(&stack, &aside).await?;
    stack.ledger_agrees().await?;
    // The next pod has the whole GPU.
    on(&stack, (space, "next"), 0).await?;
    for name in ["aside", "next"] {
        stack.cluster.delete_pod(space, name).await?;
    }
    label(&stack, None).await
}

/// A GPU that is not free in time stays what it was and takes pods again; once it is free by itself
/// it gets its new mode.
pub(crate) async fn given_up(stack: Arc<Stack>) -> Result<()> {
    let space = "given-up";
    stack.cluster.namespace(space).await?;
    label(&stack, Some("left")).await?;
    wait_modes(&stack, &BEFORE).await?;
    let stays = on(&stack, (space, "stays"), 0).await?;
    label(&stack, Some("hurries")).await?;
    let words = "stays timeslice instead of changing to exclusive: it was still in use when the timeout expired";
    wait_condition(&stack, "GivenUp", words).await?;
    wait_modes(&stack, &BEFORE).await?;
    let more = on(&stack, (space, "more"), 0).await?;
    for pod in [&stays, &more] {
        untouched(&stack, pod).await?;
    }
    eventually(PATIENCE, "the switch to be counted", || async {
        let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
        let counted = "aliquot_device_plugin_switches_total{outcome=\"given-up\"} 1";
        until!(metrics.contains(counted), "{metrics}");
        Ok(Some(()))
    })
    .await?;
    for name in ["stays", "more"] {
        stack.cluster.delete_pod(space, name).await?;
    }
    wait_modes(&stack, &AFTER).await?;
    wait_condition(&stack, "Applied", "profile hurries").await?;
    stack.ledger_agrees().await?;
    label(&stack, None).await
}

//! The kubelet's checkpoint lost, `deviceMemoryScaling` lowered; each while pods run.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::stack::{NodeOptions, Stack};
use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::running::Running;

/// The kubelet comes back with an empty checkpoint. The node reports it, our allocations stay;
/// running containers run on and new pods get shares of what is left. A container of an old pod
/// that exits stays down: the kubelet (1.37) does not call the plugin for a container that is not
/// in its checkpoint, so the pod must be created again.
pub(crate) async fn checkpoint(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("checkpoint").await?;
    let first = Running::start(stack, "checkpoint", "first", 70000).await?;
    let second = Running::start(stack, "checkpoint", "second", 70000).await?;
    ensure!(first.share.gpu() != second.share.gpu(), "on one GPU");

    stack.cluster.stop_kubelet().await?;
    let plugins = stack.cluster.kubelet_dir().join("device-plugins");
    std::fs::remove_file(plugins.join("kubelet_internal_checkpoint"))?;
    stack.cluster.start_kubelet().await?;
    wait_condition(stack, "True", &[&first.uid, &second.uid]).await?;
    stack.wait_capacity("20").await?;

    // Still allocated: 70000 of 81286 on each GPU.
    Running::create(stack, "checkpoint", "large", 20000).await?;
    refused(stack, "checkpoint", "large", "CardInsufficientMemory").await?;
    let small = Running::start(stack, "checkpoint", "small", 1000).await?;
    first.untouched(stack).await?;
    second.untouched(stack).await?;

    first.exit(stack).await?;
    first
        .wait_blocked(stack, "no devices found allocated in local cache")
        .await?;
    second.untouched(stack).await?;
    // The event of its refusal is that of before.
    let waits = stack.cluster.wait_phase("checkpoint", "large", "Pending");
    waits.await?;
    wait_condition(stack, "True", &[&first.uid, &second.uid]).await?;

    // Made again, it runs; the refused pod has its place as well.
    first.delete(stack).await?;
    let large = Running::created(stack, "checkpoint", "large").await?;
    wait_condition(stack, "True", &[&second.uid]).await?;
    second.untouched(stack).await?;
    second.delete(stack).await?;
    wait_condition(stack, "False", &[]).await?;
    let first = Running::start(stack, "checkpoint", "first", 70000).await?;
    for pod in [first, small, large] {
        pod.delete(stack).await?;
    }
    Ok(())
}

/// A GPU is overcommitted when the scaling goes back to 1.
pub(crate) async fn scaling(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("scaling").await?;
    let twice = NodeOptions {
        scaling: "2",
        ..NodeOptions::default()
    };
    stack.restart_device_plugin(&twice).await?;
    wait_scaled(stack, 2 * 81286).await?;
    let mut pods = Vec::new();
    for name in ["a", "b", "c", "d"] {
        pods.push(Running::start(stack, "scaling", name, 60000).await?);
    }

    stack.restart_device_plugin(&NodeOptions::default()).await?;
    wait_scaled(stack, 81286).await?;
    try_join_all(pods.iter().map(|pod| pod.untouched(stack))).await?;
    pods[0].exit(stack).await?;
    pods[0].back(stack).await?;

    Running::create(stack, "scaling", "new", 1000).await?;
    refused(stack, "scaling", "new", "CardInsufficientMemory").await?;
    let gone = pods.remove(3);
    gone.delete(stack).await?;
    let new = Running::created(stack, "scaling", "new").await?;
    ensure!(new.share.gpu() == gone.share.gpu(), "not on the freed GPU");

    pods.push(new);
    try_join_all(pods[1..].iter().map(|pod| pod.untouched(stack))).await?;
    try_join_all(pods.iter().map(|pod| pod.delete(stack))).await?;
    Ok(())
}

/// Waits until an event refuses the pod for `reason`, and the pod is Pending.
async fn refused(stack: &Stack, namespace: &str, name: &str, reason: &str) -> Result<()> {
    let parts = ["Refused: ", reason];
    stack.wait_event(namespace, name, &parts).await?;
    stack
        .cluster
        .wait_phase(namespace, name, "Pending")
        .await
        .map(drop)
}

async fn wait_scaled(stack: &Stack, mib: u64) -> Result<()> {
    let what = format!("an inventory with {mib} MiB a GPU");
    eventually(PATIENCE, &what, || async {
        let gpus = stack.inventory().await?.gpus;
        until!(gpus.iter().all(|gpu| gpu.scaled.0 == mib), "{gpus:?}");
        Ok(Some(()))
    })
    .await
}

/// Waits until the node's condition has this status and names exactly these pods.
async fn wait_condition(stack: &Stack, status: &str, pods: &[&str]) -> Result<()> {
    let is_expected = |text: &str| {
        let (begin, message) = text.split_once(": ").unwrap_or_default();
        let named = message.matches('-').count() / 4;
        begin.starts_with(status)
            && pods.iter().all(|uid| message.contains(uid))
            && named == pods.len()
    };
    let found = stack.wait_condition("AliquotCheckpointLost", is_expected);
    found.await.map(drop)
}

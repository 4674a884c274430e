//! Plugin and kubelet restart while pods run. No container restarts;
//! one that exits comes up again with its share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_e2e::figures::report;
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Result, ensure};

use crate::running::Running;

/// From the replicas on the Node to a running container: kube-scheduler's pause of up to 10 s and a
/// start on a slow machine. It was five minutes.
const SOON: Duration = Duration::from_secs(90);
/// The kubelet's message when a plugin is gone.
const STOPPED: &str = "has been stopped";

/// The plugin ends by SIGTERM, then by -9.
pub(crate) async fn plugin(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("plugin").await?;
    let first = Running::start(stack, "plugin", "first", 2000).await?;
    let second = Running::start(stack, "plugin", "second", 3000).await?;
    let bystander = Running::start(stack, "plugin", "bystander", 4000).await?;

    stack.terminate(Kind::DevicePlugin).await?;
    stack.wait_capacity("0").await?;
    first.exit(stack).await?;
    first.wait_blocked(stack, STOPPED).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    first.back(stack).await?;
    second.untouched(stack).await?;

    stack.kill(Kind::DevicePlugin).await?;
    stack.wait_capacity("0").await?;
    second.exit(stack).await?;
    second.wait_blocked(stack, STOPPED).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    second.back(stack).await?;

    bystander.untouched(stack).await?;
    for pod in [first, second, bystander] {
        pod.delete(stack).await?;
    }
    Ok(())
}

/// kube-scheduler refused it for want of replicas, and tried it again after five minutes.
pub(crate) async fn created_meanwhile(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("meanwhile").await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.wait_capacity("0").await?;
    Running::create(stack, "meanwhile", "waits", 1000).await?;
    let why = "1 NodeInsufficientReplicas (the kubelet offers 0 of nvidia.com/gpu)";
    for reason in ["Refused: ", "FailedScheduling: "] {
        let parts = [reason, why];
        stack.wait_event("meanwhile", "waits", &parts).await?;
    }
    stack.start_device_plugin(&NodeOptions::default()).await?;
    let offered = Instant::now();
    let pod = Running::created(stack, "meanwhile", "waits").await?;
    let took = offered.elapsed();
    report(
        "a pod that waited for an agent, from its replicas to its start",
        took,
    );
    ensure!(took < SOON, "{took:?}, allowed {SOON:?}");
    pod.delete(stack).await
}

/// The kubelet restarts with the plugin alive, then without it: then it starts
/// containers again without asking, and what is on disk must be right.
pub(crate) async fn kubelet(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("kubelet").await?;
    let first = Running::start(stack, "kubelet", "first", 2000).await?;
    let second = Running::start(stack, "kubelet", "second", 3000).await?;
    let bystander = Running::start(stack, "kubelet", "bystander", 4000).await?;

    let before = registrations(stack).await?;
    stack.cluster.restart_kubelet().await?;
    eventually(PATIENCE, "a new registration", || async {
        let now = registrations(stack).await?;
        until!(now > before, "{now} registrations");
        Ok(Some(()))
    })
    .await?;
    stack.wait_capacity("20").await?;
    second.untouched(stack).await?;
    first.exit(stack).await?;
    first.back(stack).await?;

    stack.terminate(Kind::DevicePlugin).await?;
    stack.cluster.restart_kubelet().await?;
    stack.wait_capacity("0").await?;
    // A kubelet that starts would refuse a pod whose container has ended meanwhile. It admits
    // pods in the order of their creation.
    eventually(PATIENCE, "the kubelet to admit its pods", || async {
        let known = stack
            .cluster
            .exec("kubelet", "bystander", "main", &["true"]);
        known.await.or_not_yet()?.success().or_not_yet().map(Some)
    })
    .await?;
    second.exit(stack).await?;
    second.back(stack).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;

    let new = Running::start(stack, "kubelet", "new", 5000).await?;
    bystander.untouched(stack).await?;
    for pod in [first, second, bystander, new] {
        pod.delete(stack).await?;
    }
    Ok(())
}

async fn registrations(stack: &Stack) -> Result<f64> {
    let name = "aliquot_device_plugin_register_total";
    http::metric(stack.address(Kind::DevicePlugin), name, &["done"]).await
}

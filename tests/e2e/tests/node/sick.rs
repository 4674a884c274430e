//! A GPU becomes unhealthy while pods run: what becomes of its replicas at the real kubelet, of its
//! pods, and of the other GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::figures::report;
use aliquot_e2e::pod_resources::{self, AllocatableResourcesRequest};
use aliquot_e2e::stack::{NodeOptions, Stack};
use anyhow::{Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::running::Running;

/// On an idle machine it takes one second: `protocol/health.rs` of the device plugin checks that.
const SOON: Duration = Duration::from_secs(10);

/// With `--sick-pods evict`: XID 79 on one of two GPUs with five pods each.
pub(crate) async fn evicts(stack: Arc<Stack>) -> Result<()> {
    let evicting = NodeOptions {
        flags: &["--sick-pods", "evict"],
        ..NodeOptions::default()
    };
    stack.restart_scheduler(&["--gpu-policy", "spread"]).await?;
    stack.restart_device_plugin(&evicting).await?;
    let outcome = evicted(&stack).await;
    stack.machine().set("0", &[("health", "ok")])?;
    stack.restart_device_plugin(&NodeOptions::default()).await?;
    stack.restart_scheduler(&[]).await?;
    outcome
}

async fn evicted(stack: &Stack) -> Result<()> {
    stack.cluster.namespace("dead").await?;
    let sick = stack.inventory().await?.gpus[0].uuid.to_string();
    let mut pods = Vec::new();
    for number in 0..10 {
        let name = format!("p{number}");
        pods.push(Running::start(stack, "dead", &name, 1000).await?);
    }
    let (on_sick, mut others): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|pod| pod.share.gpu() == sick);
    ensure!((on_sick.len(), others.len()) == (5, 5), "not five each");

    // The kubelet's own count: the free replicas go at once, allocated ones stay until their pods
    // are gone.
    ensure!(allocatable(stack, &sick).await? == 10);
    let began = Instant::now();
    stack.machine().xid("0", 79)?;
    eventually(PATIENCE, "five free replicas to be unhealthy", || async {
        Ok((allocatable(stack, &sick).await? <= 5).then_some(()))
    })
    .await?;
    let took = began.elapsed();
    report("free replicas unhealthy at the kubelet", took);
    ensure!(took < SOON, "{took:?}, allowed {SOON:?}");
    stack
        .wait_condition("AliquotGpuSick", |text| {
            text.starts_with("True DrainNeeded: ")
                && text.contains(&sick)
                && text.contains("XID 79")
        })
        .await?;
    let api: Api<Pod> = Api::namespaced(stack.cluster.admin()?, "dead");
    for pod in &on_sick {
        eventually(PATIENCE, &format!("{} to be evicted", pod.name), || async {
            Ok(api.get_opt(&pod.name).await?.is_none().then_some(()))
        })
        .await?;
        let why = ["GpuSick: ", &sick, "XID 79", "this pod is evicted"];
        stack.wait_event("dead", &pod.name, &why).await?;
        let why = ["EvictedFromGpu: ", &sick, "XID 79"];
        stack.wait_event("dead", &pod.name, &why).await?;
    }
    eventually(PATIENCE, "no replica of the unhealthy GPU", || async {
        Ok((allocatable(stack, &sick).await? == 0).then_some(()))
    })
    .await?;
    stack.wait_capacity("10").await?;

    // The other GPU fills to its last replica, and no further.
    for number in 10..15 {
        let name = format!("p{number}");
        let pod = Running::start(stack, "dead", &name, 1000).await?;
        ensure!(pod.share.gpu() != sick, "{name} on {sick}");
        others.push(pod);
    }
    Running::create(stack, "dead", "waits", 1000).await?;
    let full = "1 CardNotHealth, 1 CardTimeSlicingExhausted";
    let parts = ["FailedScheduling: ", full];
    stack.wait_event("dead", "waits", &parts).await?;
    stack.cluster.delete_pod("dead", "waits").await?;
    try_join_all(others.iter().map(|pod| pod.untouched(stack))).await?;

    stack.machine().set("0", &[("health", "ok")])?;
    stack.wait_capacity("20").await?;
    ensure!(allocatable(stack, &sick).await? == 10);
    stack
        .wait_condition("AliquotGpuSick", |text| {
            text.starts_with("False GpusWell: ")
        })
        .await?;
    let healed = Running::start(stack, "dead", "healed", 1000).await?;
    ensure!(healed.share.gpu() == sick, "not on the healed GPU");
    others.push(healed);
    try_join_all(others.iter().map(|pod| pod.delete(stack))).await?;
    Ok(())
}

/// How many replicas of the GPU the kubelet would hand out or has handed out, by its
/// own account.
async fn allocatable(stack: &Stack, gpu: &str) -> Result<usize> {
    let mut kubelet = pod_resources::client(&stack.cluster).await?;
    let answer = kubelet.get_allocatable_resources(AllocatableResourcesRequest {});
    let devices = answer.await?.into_inner().devices;
    let ids = devices.iter().flat_map(|devices| &devices.device_ids);
    Ok(ids.filter(|id| id.starts_with(gpu)).count())
}

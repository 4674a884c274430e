//! What the Node object shows of the GPUs: labels, capacity that the kubelet enforces, and replicas
//! that its Topology Manager aligns.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::pod_resources::{self, ListPodResourcesRequest};
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::losses::{inventory, refused};
use crate::running::Running;

const MEMORY: &str = "nvidia.com/gpumem";
const CORES: &str = "nvidia.com/gpucores";

async fn restart_agent(stack: &Stack, options: &NodeOptions) -> Result<()> {
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(options).await
}

async fn node(stack: &Stack) -> Result<Node> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    Ok(nodes.get(NODE).await?)
}

/// Labels of the two GPUs: a changed one is put back, one that was set first by another program
/// stays, and all go when the owner turns them off.
pub(crate) async fn labels(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    labelled(stack, &[("nvidia.com/gpu.count", Some("2"))]).await?;
    labelled(
        stack,
        &[
            ("nvidia.com/gpu.product", Some("NVIDIA-A100-SXM4-80GB")),
            ("nvidia.com/gpu.memory", Some("81920")),
            ("nvidia.com/gpu.replicas", Some("10")),
            ("nvidia.com/mig.capable", Some("true")),
            ("aliquot.dev/product.NVIDIA-A100-SXM4-80GB", Some("2")),
            ("aliquot.dev/mode.vgpu", Some("2")),
        ],
    )
    .await?;
    label(stack, "nvidia.com/gpu.count", json!("7")).await?;
    labelled(stack, &[("nvidia.com/gpu.count", Some("2"))]).await?;

    let off = NodeOptions {
        flags: &["--feature-labels", "off"],
        ..NodeOptions::default()
    };
    restart_agent(stack, &off).await?;
    let gone = ("aliquot.dev/mode.vgpu", None);
    labelled(stack, &[("nvidia.com/gpu.count", None), gone]).await?;
    label(stack, "nvidia.com/gpu.count", json!("7")).await?;
    restart_agent(stack, &NodeOptions::default()).await?;
    let back = ("aliquot.dev/mode.vgpu", Some("2"));
    labelled(stack, &[back, ("nvidia.com/gpu.count", Some("7"))]).await?;
    label(stack, "nvidia.com/gpu.count", Value::Null).await?;
    labelled(stack, &[("nvidia.com/gpu.count", Some("2"))]).await
}

async fn label(stack: &Stack, key: &str, value: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let patch = Patch::Merge(json!({"metadata": {"labels": {key: value}}}));
    nodes.patch(NODE, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn labelled(stack: &Stack, expected: &[(&str, Option<&str>)]) -> Result<()> {
    eventually(PATIENCE, &format!("labels {expected:?}"), || async {
        let labels = node(stack).await?.metadata.labels.unwrap_or_default();
        let ours: BTreeMap<_, _> = labels.iter().filter(|(k, _)| k.contains("gpu.")).collect();
        for (key, value) in expected {
            let found = labels.get(*key).map(String::as_str);
            until!(found == *value, "{key}: {found:?} of {ours:?}");
        }
        Ok(Some(()))
    })
    .await
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
    eventually(
        PATIENCE,
        &format!("capacity {memory:?} {cores:?}"),
        || async {
            let status = node(stack).await?.status.unwrap_or_default();
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

/// Under `single-numa-node`, with one GPU on a NUMA node that this machine has not: the scheduler
/// aligns a pod's GPUs, the kubelet its replicas.
pub(crate) async fn aligned(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.machine().set("1", &[("numa", "1")])?;
    restart_agent(stack, &NodeOptions::default()).await?;
    stack.cluster.stop_kubelet().await?;
    let policy = ("topologyManagerPolicy", "single-numa-node");
    stack.cluster.start_kubelet_with(&[policy]).await?;
    let outcome = check_alignment(stack).await;
    stack.machine().set("1", &[("numa", "0")])?;
    stack.cluster.restart_kubelet().await?;
    wait_policy(stack, "none").await?;
    restart_agent(stack, &NodeOptions::default()).await?;
    outcome
}

async fn wait_policy(stack: &Stack, policy: &str) -> Result<()> {
    eventually(PATIENCE, &format!("topology policy {policy}"), || async {
        let found = inventory(&stack.cluster).await?.topology_policy;
        until!(found == policy, "{found}");
        Ok(Some(()))
    })
    .await
}

async fn check_alignment(stack: &Stack) -> Result<()> {
    wait_policy(stack, "single-numa-node").await?;
    stack.wait_capacity("20").await?;
    let gpus = inventory(&stack.cluster).await?.gpus;
    stack.cluster.namespace("aligned").await?;
    // Two GPUs are on two NUMA nodes: the scheduler refuses, before the kubelet.
    let two = simple("aligned", "two", &[("gpu", "2"), ("gpumem", "1000")]);
    stack.cluster.create_pod(two).await?;
    refused(stack, "aligned", "two", "NumaNotFit").await?;
    stack.cluster.delete_pod("aligned", "two").await?;
    let here = gpus[0].uuid.as_str();
    let mut one = simple("aligned", "one", &[("gpu", "1"), ("gpumem", "1000")]);
    one["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": here});
    stack.cluster.create_pod(one).await?;
    stack.cluster.wait_running("aligned", "one").await?;
    let given = replica_ids(stack, "one").await?;
    ensure!(
        given.len() == 1 && given[0].starts_with(here),
        "{given:?}, not of {here}"
    );
    // Bypassing the scheduler: 20 replicas are free, and 9 of them on a NUMA node of the machine.
    stack.cluster.exempt_namespace("aligned-exempt").await?;
    let mut wide = simple("aligned-exempt", "wide", &[("gpu", "10")]);
    wide["spec"]["nodeName"] = json!(NODE);
    stack.cluster.create_pod(wide).await?;
    let failed = stack
        .cluster
        .wait_phase("aligned-exempt", "wide", "Failed")
        .await?;
    let reason = failed.status.and_then(|status| status.reason);
    ensure!(
        reason.as_deref() == Some("TopologyAffinityError"),
        "{reason:?}"
    );
    stack.cluster.delete_pod("aligned-exempt", "wide").await?;
    stack.cluster.delete_pod("aligned", "one").await
}

/// The replicas of a pod by the kubelet's own account.
async fn replica_ids(stack: &Stack, name: &str) -> Result<Vec<String>> {
    let mut kubelet = pod_resources::client(&stack.cluster).await?;
    let answer = kubelet.list(ListPodResourcesRequest::default()).await?;
    let pods = answer.into_inner().pod_resources.into_iter();
    let pod = pods.filter(|pod| pod.namespace == "aligned" && pod.name == name);
    let devices = pod.flat_map(|pod| pod.containers).flat_map(|c| c.devices);
    Ok(devices.flat_map(|devices| devices.device_ids).collect())
}

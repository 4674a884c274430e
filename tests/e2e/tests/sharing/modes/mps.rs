//! Mode mps at the real kubelet: programs of one container stay within its memory together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::clients::{answers, answers_until_released, offer_driver, with_python};
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use serde_json::json;

use super::PLAIN;

const PREFIX: &str = "apiVersion: aliquot.dev/v1alpha1\ndefault: here\nprofiles:\n  here:\n";

fn profile(text: &str) -> String {
    format!("{PREFIX}{text}")
}

/// GPU 0 by MPS for four containers, the others whole.
pub(crate) fn one_mps_gpu() -> String {
    profile("    gpus:\n    - {select: {index: 0}, mode: mps, replicas: 4}\n    rest: exclusive\n")
}

/// The same of GPUs 0 and 1.
pub(crate) fn two_mps_gpus() -> String {
    profile(
        "    gpus:\n    - {select: {index: 0}, mode: mps, replicas: 4}\n    - {select: {index: 1}, mode: mps, replicas: 4}\n    rest: exclusive\n",
    )
}

/// Waits until capacity and allocatable of a resource are `replicas`; `None`: the node has no such
/// key any more.
pub(crate) async fn wait_replicas(
    stack: &Stack,
    resource: &str,
    replicas: Option<&str>,
) -> Result<()> {
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let what = format!("{replicas:?} of {resource}");
    eventually(PATIENCE, &what, || async {
        let status = nodes.get(NODE).await?.status.unwrap_or_default();
        let of = |all: Option<BTreeMap<String, Quantity>>| {
            let quantity = all.unwrap_or_default().remove(resource);
            quantity.map(|quantity| quantity.0)
        };
        let found = (of(status.capacity), of(status.allocatable));
        let expected = replicas.map(str::to_owned);
        until!(found == (expected.clone(), expected), "{found:?}");
        Ok(Some(()))
    })
    .await
}

/// The uuid of a GPU.
pub(crate) fn uuid(stack: &Stack, index: usize) -> Result<String> {
    let shown = stack.machine().show()?;
    let uuid = shown["gpus"][index]["uuid"].as_str();
    Ok(uuid.context("a uuid")?.to_owned())
}

/// Starts a pod on a GPU; Python runs in it.
pub(crate) async fn start(
    stack: &Stack,
    (namespace, name): (&str, &str),
    gpu: usize,
    limits: &[(&str, &str)],
) -> Result<()> {
    let mut pod = with_python(stack, namespace, name, limits)?;
    pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpuuuid": uuid(stack, gpu)?});
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(namespace, name).await.map(drop)
}

pub(crate) async fn end(stack: &Stack, namespace: &str, names: &[&str]) -> Result<()> {
    for name in names {
        stack.cluster.delete_pod(namespace, name).await?;
    }
    Ok(())
}

/// Back to `vgpu` on all GPUs.
pub(crate) async fn plain(stack: &Stack) -> Result<()> {
    stack.write_profiles(PLAIN)?;
    wait_replicas(stack, "nvidia.com/gpu", Some("80")).await
}

/// MPS-7 and MPS-4: with libvgpu.so two processes of one container stay within its memory
/// together, and the agent counts them.
pub(crate) async fn total(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let options = |profiles: &str, limited| NodeOptions {
        limited,
        profiles: Some(profiles.to_owned()),
        ..NodeOptions::default()
    };
    stack.terminate(Kind::DevicePlugin).await?;
    offer_driver(stack)?;
    let limited = options(&one_mps_gpu(), true);
    stack.start_device_plugin_unready(&limited).await?;
    wait_replicas(stack, "nvidia.com/gpu", Some("11")).await?;
    stack.cluster.namespace("mps-total").await?;
    let limits = [("gpu", "1"), ("gpumem", "5000")];
    start(stack, ("mps-total", "two"), 0, &limits).await?;
    let first = ["init", "alloc,3000", "hold"];
    let second = ["init", "alloc,3000", "alloc,500"];
    let both = async {
        let seen = async {
            counted(stack, "mps_clients", "1").await?;
            let bytes = (3000_u64 + 416 / 8) << 20;
            counted(stack, "mps_used_bytes", &bytes.to_string()).await?;
            let seen = answers(stack, "mps-total", "two", &second).await?;
            // Alone it could have 5000: the other's memory counts.
            ensure!(seen[1..] == ["alloc,3000: 2", "alloc,500: 0"], "{seen:?}");
            anyhow::Ok(())
        };
        let client = answers_until_released(stack, "mps-total", "two", &first);
        tokio::select! {
            output = client => Err(anyhow::anyhow!("the client ended early: {output:?}")),
            seen = seen => seen,
        }
    };
    both.await?;
    end(stack, "mps-total", &["two"]).await?;
    plain(stack).await?;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&options(PLAIN, false)).await
}

/// Waits until a metric of container `main` of pod `two` has this value.
async fn counted(stack: &Stack, name: &str, value: &str) -> Result<()> {
    let what = format!("{name} to be {value}");
    // Less than the client uses.
    eventually(Duration::from_mins(1), &what, || async {
        let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
        let of = |line: &&str| {
            line.contains(&format!("{name}{{")) && line.contains("pod=\"two\",container=\"main\"")
        };
        let found = metrics.lines().find(of).map(str::to_owned);
        let ends = format!(" {value}");
        until!(
            found.as_ref().is_some_and(|line| line.ends_with(&ends)),
            "{found:?}"
        );
        Ok(Some(()))
    })
    .await
}

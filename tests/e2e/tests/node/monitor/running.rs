//! Pods with programs that use memory, and a monitor.

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
pub(crate) use aliquot_e2e::clients::{REAL, beside};
use aliquot_e2e::clients::{nvidia_spec, with_python};
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::Result;
use serde_json::{Value, json};

use crate::limits::limited_with;

pub(crate) use aliquot_cluster::wait::PATIENCE;

pub(crate) const MIB: f64 = 1_048_576.0;
/// MiB that the simulated driver takes for a context.
pub(crate) const CONTEXT: f64 = 416.0;

/// The agent with libvgpu.so, a monitor, and a namespace.
pub(crate) async fn monitored(stack: &Stack, namespace: &str) -> Result<()> {
    stack.cluster.namespace(namespace).await?;
    limited_with(stack, &nvidia_spec(stack)?).await?;
    stack.start_monitor().await
}

/// Ends the namespace and the monitor.
pub(crate) async fn over(stack: &Stack, namespace: &str) -> Result<()> {
    let delete = ["delete", "pod", "-n", namespace, "--all", "--wait"];
    stack.cluster.kubectl(&delete).await?.success()?;
    stack.terminate(Kind::Monitor).await
}

/// Has processes of a pod killed above its memory limit.
pub(crate) fn with_oom_killer(pod: &mut Value) {
    let variable = json!({"name": "ACTIVE_OOM_KILLER", "value": "true"});
    pod["spec"]["containers"][0]["env"] = json!([variable]);
}

/// Starts a pod of this memory, in which programs can be run and killed.
pub(crate) async fn pod(stack: &Stack, namespace: &str, name: &str, memory: &str) -> Result<()> {
    let limits = [("gpu", "1"), ("gpumem", memory), ("gpucores", "20")];
    let mut pod = with_python(stack, namespace, name, &limits)?;
    with_oom_killer(&mut pod);
    stack.cluster.create_pod(pod).await?;
    stack.cluster.wait_running(namespace, name).await.map(drop)
}

/// A figure of a pod, or of the node if `labels` has no pod.
pub(crate) async fn figure(stack: &Stack, name: &str, labels: &[&str]) -> Result<f64> {
    http::metric(stack.address(Kind::Monitor), name, labels).await
}

/// Waits until a figure of a pod is within a percent of this.
pub(crate) async fn becomes(stack: &Stack, name: &str, pod: &str, expected: f64) -> Result<()> {
    let label = format!("pod=\"{pod}\"");
    let what = format!("{name} of {pod} to be {expected}");
    eventually(PATIENCE, &what, || async {
        let found = figure(stack, name, &[&label]).await?;
        until!(
            (found - expected).abs() <= expected / 100.0,
            "it is {found}"
        );
        Ok(Some(()))
    })
    .await
}

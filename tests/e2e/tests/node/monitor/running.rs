//! Pods with programs that use memory, and a monitor.

pub(crate) use aliquot_e2e::clients::{REAL, beside};
use aliquot_e2e::clients::{nvidia_spec, offer, open_machine, with_python};
use aliquot_e2e::http;
use aliquot_e2e::measured;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::Result;
use serde_json::{Value, json};

pub(crate) use aliquot_cluster::wait::PATIENCE;

/// One MiB.
pub(crate) const MIB: f64 = 1_048_576.0;
/// MiB that the simulated driver takes for a context.
pub(crate) const CONTEXT: f64 = 416.0;

/// The agent with libvgpu.so, a monitor with these flags, and a namespace.
pub(crate) async fn monitored(stack: &Stack, namespace: &str, flags: &[&str]) -> Result<()> {
    stack.cluster.namespace(namespace).await?;
    offer(stack, &nvidia_spec(stack)?)?;
    let limited = NodeOptions {
        limited: true,
        ..NodeOptions::default()
    };
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&limited).await?;
    open_machine(stack)?;
    stack.start_monitor(&limited, flags).await
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
    measured::becomes(stack, name, &[format!("pod=\"{pod}\"")], expected).await
}

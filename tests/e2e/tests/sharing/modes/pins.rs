//! Instances by name at the real kubelet. The simulated machine and `PodResources` give what is
//! allocated.

use std::sync::Arc;

use aliquot_e2e::pod_resources::{self, ContainerDevices, ListPodResourcesRequest};
use aliquot_e2e::pods;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::mig::{SMALL, instances, plain, seen};
use super::node::wait_replicas;

/// A pod that requests a small instance with this pin.
async fn create(stack: &Stack, namespace: &str, name: &str, pin: &str) -> Result<()> {
    let mut pod = pods::simple(namespace, name, &[("mig-1g.5gb", "1")]);
    pod["metadata"]["annotations"] = json!({"aliquot.dev/use-gpu": pin});
    stack.cluster.create_pod(pod).await?;
    Ok(())
}

/// What the kubelet reports for the pod.
async fn reported(stack: &Stack, namespace: &str, name: &str) -> Result<Vec<String>> {
    let mut kubelet = pod_resources::client(&stack.cluster).await?;
    let answer = kubelet.list(ListPodResourcesRequest::default()).await?;
    let pods = answer.into_inner().pod_resources.into_iter();
    let pod = pods.filter(|pod| pod.namespace == namespace && pod.name == name);
    let devices = pod.flat_map(|pod| pod.containers).flat_map(|c| c.devices);
    let describe = |device: ContainerDevices| {
        let ids = device.device_ids.join(",");
        format!("{} {ids}", device.resource_name)
    };
    Ok(devices.map(describe).collect())
}

/// MIG-5: a pin by uuid and one by index and place are allocated, visible in the container and
/// reported by the kubelet as exactly that; the second pod waits, with an event that names the
/// first.
pub(crate) async fn pinned(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    let namespace = "mig-pins";
    stack.cluster.namespace(namespace).await?;
    stack.write_profiles(
        "apiVersion: aliquot.dev/v1alpha1\ndefault: here\nprofiles:\n  here:\n    gpus:\n    - {select: {index: 0}, mode: mig, layout: [{profile: 1g.5gb, count: 3}]}\n    - {select: {index: 1}, mode: mig, dynamic: true, allow: [1g.5gb]}\n    rest: vgpu\n",
    )?;
    wait_replicas(stack, SMALL, Some("10")).await?;
    let shown = stack.machine().show()?;
    let gpu = shown["gpus"][1]["uuid"].as_str().context("a uuid")?;
    // Not the one that a pod without a pin would get.
    let (uuid, _) = instances(stack, 0)?.swap_remove(1);
    create(stack, namespace, "first", &uuid).await?;
    let visible = seen(stack, namespace, "first").await?;
    ensure!(visible == [uuid.clone()], "{visible:?}, pinned to {uuid}");
    let first = reported(stack, namespace, "first").await?;
    ensure!(first == [format!("{SMALL} {uuid}::0")], "{first:?}");

    create(stack, namespace, "place", "1:4:1g.5gb").await?;
    let visible = seen(stack, namespace, "place").await?;
    let made = instances(stack, 1)?;
    let expected = [(visible[0].clone(), "1g.5gb@4".to_owned())];
    ensure!(made == expected, "{made:?}, seen {visible:?}");
    let place = reported(stack, namespace, "place").await?;
    ensure!(place == [format!("{SMALL} {gpu}::4")], "{place:?}");

    create(stack, namespace, "second", &uuid).await?;
    let reason = "CardPinned (allocated to mig-pins/first)";
    stack.wait_event(namespace, "second", &[reason]).await?;
    create(stack, namespace, "third", "1:4").await?;
    let reason = "CardPinned (allocated to mig-pins/place)";
    stack.wait_event(namespace, "third", &[reason]).await?;
    stack.cluster.delete_pod(namespace, "first").await?;
    let visible = seen(stack, namespace, "second").await?;
    ensure!(visible == [uuid.clone()], "{visible:?}, pinned to {uuid}");
    for pod in ["place", "second", "third"] {
        stack.cluster.delete_pod(namespace, pod).await?;
    }
    plain(stack).await
}

//! The profiles of these scenarios, and what the node reports.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_core::inventory::Mode;
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

pub(crate) use aliquot_cluster::wait::PATIENCE;

/// TS-1.
pub(crate) const PROMISED: Duration = Duration::from_secs(5);
/// The usual name.
pub(crate) const USUAL: &str = "nvidia.com/gpu";

/// The third GPU is vgpu in `left` and `right`, and not used by another.
pub(crate) const PROFILES: &str = "
apiVersion: aliquot.dev/v1alpha1
default: shared
profiles:
  shared:
    gpus: [{select: {index: [0, 1]}, mode: timeslice, replicas: 15}]
    rest: unmanaged
  ten:
    gpus: [{select: {index: [0, 1]}, mode: timeslice, replicas: 10}]
    rest: unmanaged
  plain:
    gpus: [{select: {index: [0, 1]}, mode: exclusive}]
    rest: unmanaged
  two-names:
    gpus:
    - {select: {index: 0}, mode: timeslice, replicas: 10, rename: nvidia.com/gpu.shared}
    - {select: {index: 1}, mode: exclusive}
    rest: unmanaged
  one-name:
    gpus:
    - {select: {index: 0}, mode: timeslice, replicas: 10}
    - {select: {index: 1}, mode: exclusive}
    rest: unmanaged
  own-numbers:
    gpus:
    - {select: {index: 0}, mode: timeslice, replicas: 2}
    - {select: {index: 1}, mode: timeslice, replicas: 10}
    - {select: {index: 2}, mode: exclusive}
  left:
    gpus:
    - {select: {index: 0}, mode: timeslice, replicas: 4}
    rest: {mode: vgpu, split: 10}
  right:
    gpus:
    - {select: {index: 1}, mode: timeslice, replicas: 4}
    rest: {mode: vgpu, split: 10}
  nowhere:
    gpus: [{select: {pci: '0000:ff:1f.0'}, mode: exclusive}]
    rest: vgpu
";

/// The modes of the GPUs in `left` and in `right`.
pub(crate) const LEFT: [Mode; 3] = [Mode::Timeslice, Mode::Vgpu, Mode::Vgpu];
pub(crate) const RIGHT: [Mode; 3] = [Mode::Vgpu, Mode::Timeslice, Mode::Vgpu];

/// Labels the node, or takes the label away.
pub(crate) async fn label(stack: &Stack, profile: Option<&str>) -> Result<()> {
    let patch = json!({"metadata": {"labels": {"aliquot.dev/profile": profile}}});
    let nodes = Api::<Node>::all(stack.cluster.admin()?);
    nodes
        .patch(NODE, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

pub(crate) async fn node(stack: &Stack) -> Result<Node> {
    Ok(Api::<Node>::all(stack.cluster.admin()?).get(NODE).await?)
}

/// What the kubelet has allocatable of the resources of GPUs.
pub(crate) async fn offered(stack: &Stack) -> Result<BTreeMap<String, String>> {
    let status = node(stack).await?.status.unwrap_or_default();
    let all = status.allocatable.unwrap_or_default().into_iter();
    let ours = all.filter(|(name, _)| name.starts_with(USUAL));
    Ok(ours.map(|(name, amount)| (name, amount.0)).collect())
}

/// Waits until exactly this is offered; a name at 0 counts as gone. How long it took.
pub(crate) async fn wait_offered(stack: &Stack, expected: &[(&str, &str)]) -> Result<Duration> {
    let began = Instant::now();
    let target: BTreeMap<String, String> = expected
        .iter()
        .map(|&(name, amount)| (name.to_owned(), amount.to_owned()))
        .collect();
    eventually(PATIENCE, &format!("{expected:?} to be offered"), || async {
        let mut found = offered(stack).await?;
        found.retain(|_, amount| amount != "0");
        until!(found == target, "{found:?}");
        Ok(Some(()))
    })
    .await?;
    Ok(began.elapsed())
}

/// Waits until the condition about the profile has this reason and a message with this part.
pub(crate) async fn wait_condition(stack: &Stack, reason: &str, part: &str) -> Result<String> {
    let reason = format!(" {reason}: ");
    let is_expected = |text: &str| text.contains(&reason) && text.contains(part);
    stack.wait_condition("AliquotProfile", is_expected).await
}

/// The modes of the devices in order, each with whether it is cordoned.
pub(crate) async fn modes(stack: &Stack) -> Result<Vec<(Mode, bool)>> {
    let gpus = stack.inventory().await?.gpus.into_iter();
    Ok(gpus.map(|gpu| (gpu.mode, gpu.cordon.is_some())).collect())
}

/// Waits until the devices have these modes and take shares.
pub(crate) async fn wait_modes(stack: &Stack, expected: &[Mode]) -> Result<()> {
    eventually(PATIENCE, &format!("{expected:?}"), || async {
        let found = modes(stack).await?;
        let right = found.len() == expected.len()
            && found
                .iter()
                .zip(expected)
                .all(|(f, mode)| *f == (*mode, false));
        until!(right, "{found:?}");
        Ok(Some(()))
    })
    .await
}

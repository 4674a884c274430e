//! The node's label chooses the profile; pods run on.

use std::sync::Arc;

use aliquot_cluster::starvation::Attempts;
use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_core::inventory::Mode;
use aliquot_e2e::figures::report;
use aliquot_e2e::pods::{allocation, simple};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use super::RENAMED;
use super::world::{
    PATIENCE, PROMISED, USUAL, label, node, wait_condition, wait_modes, wait_offered,
};

/// The device of a pod's first share.
pub(crate) fn device(pod: &Pod) -> Result<String> {
    let allocation = allocation(pod)?;
    let grants = allocation.grants("main").context("main has a share")?;
    Ok(grants[0].gpu.to_string())
}

pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

/// Profiles of other numbers, the default one first and last.
pub(crate) async fn followed(stack: Arc<Stack>) -> Result<()> {
    label(&stack, None).await?;
    wait_offered(&stack, &[(USUAL, "30")]).await?;
    wait_condition(&stack, "Applied", "profile shared, the default").await?;
    let moves = [
        (Some("ten"), "20"),
        (Some("plain"), "2"),
        (Some("own-numbers"), "13"),
        (None, "30"),
    ];
    let mut attempts = Attempts::new("node capacity follows its label");
    loop {
        let parts = [Kind::DevicePlugin];
        let measured = stack.measure_starvation(&parts, &["kubelet"]).await?;
        let mut slow = Vec::new();
        for (profile, replicas) in moves {
            label(&stack, profile).await?;
            let took = wait_offered(&stack, &[(USUAL, replicas)]).await?;
            let what = format!("label {profile:?} until allocatable {replicas}");
            report(&what, took);
            if took >= PROMISED {
                slow.push(format!("{what}: {took:?}"));
            }
        }
        if slow.is_empty() {
            return Ok(());
        }
        let missed = format!("{}, promised {PROMISED:?}", slow.join(", "));
        attempts.again(missed, measured.starved())?;
    }
}

pub(crate) async fn under_pods(stack: Arc<Stack>) -> Result<()> {
    label(&stack, Some("shared")).await?;
    wait_offered(&stack, &[(USUAL, "30")]).await?;
    let (space, name) = ("ts-4", "stays");
    stack.cluster.namespace(space).await?;
    stack
        .cluster
        .create_pod(simple(space, name, &[("gpu", "1")]))
        .await?;
    let pod = stack.cluster.wait_running(space, name).await?;
    let used = device(&pod)?;
    // Other numbers: at once, with the pod on it.
    label(&stack, Some("ten")).await?;
    wait_offered(&stack, &[(USUAL, "20")]).await?;
    // Another mode: its GPU waits, the other one does not.
    label(&stack, Some("plain")).await?;
    wait_condition(
        &stack,
        "Changing",
        &format!("waits for these pods to end: {space}/{name}"),
    )
    .await?;
    eventually(PATIENCE, "the other GPU to be whole", || async {
        for gpu in &stack.inventory().await?.gpus {
            let waits = gpu.uuid.as_str() == used;
            let mode = if waits {
                Mode::Timeslice
            } else {
                Mode::Exclusive
            };
            until!(gpu.mode == mode && gpu.cordon.is_some() == waits, "{gpu:?}");
        }
        Ok(Some(()))
    })
    .await?;
    let pod = stack.cluster.wait_running(space, name).await?;
    ensure!(restarts(&pod) == 0, "{:?}", pod.status);
    stack.cluster.delete_pod(space, name).await?;
    wait_modes(&stack, &[Mode::Exclusive, Mode::Exclusive]).await?;
    wait_offered(&stack, &[(USUAL, "2")]).await?;
    stack.ledger_agrees().await?;
    label(&stack, None).await
}

pub(crate) async fn sliced_and_whole(stack: Arc<Stack>) -> Result<()> {
    let space = "ts-8";
    stack.cluster.namespace(space).await?;
    label(&stack, Some("two-names")).await?;
    wait_offered(&stack, &[(USUAL, "1"), (RENAMED, "10")]).await?;
    let gpus = stack.inventory().await?.gpus;
    let (sliced, whole) = (gpus[0].uuid.to_string(), gpus[1].uuid.to_string());
    let run = async |name: &str, limits: &[(&str, &str)]| {
        let pod = simple(space, name, limits);
        stack.cluster.create_pod(pod).await?;
        device(&stack.cluster.wait_running(space, name).await?)
    };
    ensure!(run("whole", &[("gpu", "1")]).await? == whole);
    ensure!(run("slice", &[("gpu.shared", "1")]).await? == sliced);
    for name in ["whole", "slice"] {
        stack.cluster.delete_pod(space, name).await?;
    }
    label(&stack, Some("one-name")).await?;
    wait_offered(&stack, &[(USUAL, "11")]).await?;
    // The key of the name that is gone goes too; the kubelet alone would leave it at 0.
    eventually(PATIENCE, "the key to go", || async {
        let status = node(&stack).await?.status.unwrap_or_default();
        let capacity = status.capacity.unwrap_or_default();
        until!(!capacity.contains_key(RENAMED), "{capacity:?}");
        Ok(Some(()))
    })
    .await?;
    ensure!(run("alone", &[("gpu", "1"), ("gpucores", "100")]).await? == whole);
    stack.ledger_agrees().await?;
    stack.cluster.delete_pod(space, "alone").await?;
    label(&stack, None).await
}

//! Mode mig at the real kubelet: resources of instances, and another layout. The simulated machine
//! gives what is on the GPUs.

use std::sync::Arc;

use aliquot_e2e::pods;
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::PLAIN;
use super::node::wait_replicas;
use super::offers::{Offer, Offers};

pub(crate) use aliquot_cluster::wait::PATIENCE;

pub(crate) const SMALL: &str = "nvidia.com/mig-1g.5gb";
pub(crate) const LARGE: &str = "nvidia.com/mig-3g.20gb";

/// GPU 0 partitioned with these settings, the others as without a configuration.
pub(crate) fn first(settings: &str) -> String {
    format!(
        "apiVersion: aliquot.dev/v1alpha1\ndefault: here\nprofiles:\n  here:\n    gpus:\n    - {{select: {{index: 0}}, mode: mig, {settings}}}\n    rest: vgpu\n"
    )
}

/// The instances of a GPU: uuid and `profile@start`.
pub(crate) fn instances(stack: &Stack, gpu: usize) -> Result<Vec<(String, String)>> {
    let shown = stack.machine().show()?;
    let all = shown["gpus"][gpu]["instances"].as_array();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let describe = |one: &Value| {
        (
            text(&one["uuid"]),
            format!("{}@{}", text(&one["profile"]), one["start"]),
        )
    };
    Ok(all.context("instances")?.iter().map(describe).collect())
}

/// What a running pod's container sees.
pub(crate) async fn seen(stack: &Stack, namespace: &str, pod: &str) -> Result<Vec<String>> {
    stack.cluster.wait_running(namespace, pod).await?;
    let environment = stack.environment(namespace, pod, "main").await?;
    let visible = environment
        .get("ALIQUOT_VISIBLE_DEVICES")
        .context("the variable")?;
    Ok(visible.split(',').map(str::to_owned).collect())
}

async fn start(
    stack: &Stack,
    namespace: &str,
    name: &str,
    limits: &[(&str, &str)],
) -> Result<Vec<String>> {
    stack
        .cluster
        .create_pod(pods::simple(namespace, name, limits))
        .await?;
    seen(stack, namespace, name).await
}

pub(crate) async fn plain(stack: &Stack) -> Result<()> {
    stack.write_profiles(PLAIN)?;
    wait_replicas(stack, "nvidia.com/gpu", Some("80")).await?;
    ensure!(
        instances(stack, 0)?.is_empty(),
        "{:?}",
        instances(stack, 0)?
    );
    Ok(())
}

/// MIG-1, MIG-10 and MIG-18: seven slices are seven replicas beside seven whole GPUs; another
/// layout changes that GPU alone, and the old name leaves the node.
pub(crate) async fn layouts(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("mig-layouts").await?;
    stack.write_profiles(&first("layout: [{profile: 1g.5gb, count: 7}]"))?;
    wait_replicas(stack, SMALL, Some("7")).await?;
    wait_replicas(stack, "nvidia.com/gpu", Some("70")).await?;
    let whole = start(
        stack,
        "mig-layouts",
        "whole",
        &[("gpu", "1"), ("gpumem", "1000")],
    )
    .await?;
    start(stack, "mig-layouts", "small", &[("mig-1g.5gb", "1")]).await?;

    let offers = Offers::watch(stack).await?;
    stack.write_profiles(&first("layout: [{profile: 3g.20gb, count: 2}]"))?;
    let waits = "waits for these pods to end: mig-layouts/small";
    let waits = stack.wait_condition("AliquotProfile", |text| text.contains(waits));
    waits.await?;
    let now = instances(stack, 0)?;
    ensure!(now.len() == 7, "{now:?}");
    stack.cluster.delete_pod("mig-layouts", "small").await?;
    wait_replicas(stack, LARGE, Some("2")).await?;
    wait_replicas(stack, SMALL, None).await?;
    // All seven at once, and before anything is offered in their place.
    let offered = offers.until_gone(SMALL).await?;
    let of_small: Vec<_> = offered.iter().map(|offer| offer.0.as_deref()).collect();
    ensure!(
        matches!(of_small.as_slice(), [Some("7"), Some("0"), None]),
        "{offered:?}"
    );
    let some = |amount: &Option<String>| amount.as_deref().is_some_and(|amount| amount != "0");
    let both = |offer: &&Offer| some(&offer.0) && some(&offer.1);
    ensure!(!offered.iter().any(|offer| both(&offer)), "{offered:?}");
    ensure!(seen(stack, "mig-layouts", "whole").await? == whole);
    stack.cluster.delete_pod("mig-layouts", "whole").await?;
    plain(stack).await?;
    wait_replicas(stack, LARGE, None).await
}

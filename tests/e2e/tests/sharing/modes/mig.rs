//! Mode mig at the real kubelet: resources of instances, what containers see, other layouts,
//! dynamic MIG, a reboot. The simulated machine gives what is on the GPUs.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::pods;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::PLAIN;
use super::mig_shown::{Offer, Offers};
use super::mps::wait_replicas;

pub(crate) use aliquot_cluster::wait::PATIENCE;

pub(crate) const SMALL: &str = "nvidia.com/mig-1g.5gb";
pub(crate) const LARGE: &str = "nvidia.com/mig-3g.20gb";

/// GPU 0 partitioned with these settings, the others as without a configuration.
pub(crate) fn first(settings: &str) -> String {
    format!(
        "apiVersion: aliquot.dev/v1alpha1\ndefault: here\nprofiles:\n  here:\n    gpus:\n    - {{select: {{index: 0}}, mode: mig, {settings}}}\n    rest: vgpu\n"
    )
}

/// The instances of GPU 0: uuid and `profile@start`.
pub(crate) fn instances(stack: &Stack) -> Result<Vec<(String, String)>> {
    let shown = stack.machine().show()?;
    let all = shown["gpus"][0]["instances"].as_array();
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
    ensure!(instances(stack)?.is_empty(), "{:?}", instances(stack)?);
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
    let waits = async || {
        let now = instances(stack)?;
        ensure!(now.len() == 7, "{now:?}");
        anyhow::Ok(())
    };
    waits().await?;
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

/// MIG-2, MIG-20 and MIG-19: containers see the instances that they were given, two profiles in
/// one container too; after a reboot the same replicas are there, and containers see what is now.
pub(crate) async fn instances_of_pods(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("mig-pods").await?;
    let profile = first("layout: [{profile: 3g.20gb}, {profile: 1g.5gb, count: 2}]");
    stack.write_profiles(&profile)?;
    wait_replicas(stack, SMALL, Some("2")).await?;
    wait_replicas(stack, LARGE, Some("1")).await?;
    let there = instances(stack)?;
    let kinds = |visible: &[String]| -> Vec<String> {
        let place = |uuid: &String| there.iter().find(|(known, _)| known == uuid);
        let found = visible.iter().filter_map(place);
        found
            .map(|(_, place)| place.split('@').next().unwrap_or_default().to_owned())
            .collect()
    };
    let one = start(stack, "mig-pods", "one", &[("mig-1g.5gb", "1")]).await?;
    ensure!(kinds(&one) == ["1g.5gb"], "{one:?} of {there:?}");
    let both = start(
        stack,
        "mig-pods",
        "both",
        &[("mig-1g.5gb", "1"), ("mig-3g.20gb", "1")],
    )
    .await?;
    let mut found = kinds(&both);
    found.sort();
    ensure!(found == ["1g.5gb", "3g.20gb"], "{both:?} of {there:?}");
    ensure!(!both.contains(&one[0]));

    stack.terminate(Kind::DevicePlugin).await?;
    stack.machine().reboot()?;
    ensure!(instances(stack)?.is_empty());
    let options = NodeOptions {
        profiles: Some(profile.clone()),
        ..NodeOptions::default()
    };
    stack.start_device_plugin_unready(&options).await?;
    wait_replicas(stack, SMALL, Some("2")).await?;
    let places = |all: &[(String, String)]| {
        all.iter()
            .map(|(_, place)| place.clone())
            .collect::<Vec<_>>()
    };
    // The node may still show the replicas from before.
    let again = eventually(PATIENCE, "the instances to be made again", || async {
        let again = instances(stack)?;
        until!(
            places(&again) == places(&there),
            "{again:?}, before {there:?}"
        );
        Ok(Some(again))
    })
    .await?;
    wait_replicas(stack, SMALL, Some("2")).await?;
    ensure!(again.iter().all(|one| !there.contains(one)), "new uuids");
    stack.cluster.delete_pod("mig-pods", "one").await?;
    let next = start(stack, "mig-pods", "next", &[("mig-1g.5gb", "1")]).await?;
    ensure!(
        again.iter().any(|(uuid, _)| *uuid == next[0]),
        "{next:?} of {again:?}"
    );
    for pod in ["both", "next"] {
        stack.cluster.delete_pod("mig-pods", pod).await?;
    }
    plain(stack).await
}

/// MIG-17: an instance is created for the pod that needs it, at the place that costs the least; it
/// stays for the next, and gives way to another profile.
pub(crate) async fn dynamic(stack: Arc<Stack>) -> Result<()> {
    let stack = &*stack;
    stack.cluster.namespace("mig-dynamic").await?;
    stack.write_profiles(&first("dynamic: true, allow: [1g.5gb, 3g.20gb]"))?;
    wait_replicas(stack, SMALL, Some("7")).await?;
    wait_replicas(stack, LARGE, Some("2")).await?;
    let one = start(stack, "mig-dynamic", "one", &[("mig-1g.5gb", "1")]).await?;
    let made = instances(stack)?;
    ensure!(
        made == [(one[0].clone(), "1g.5gb@6".to_owned())],
        "{made:?}, seen {one:?}"
    );
    let large = start(stack, "mig-dynamic", "large", &[("mig-3g.20gb", "1")]).await?;
    stack.cluster.delete_pod("mig-dynamic", "one").await?;
    let idle = instances(stack)?;
    ensure!(idle.len() == 2, "not retained for the next pod: {idle:?}");
    // Beside the allocated one only the idle one is in the way of a second.
    stack
        .cluster
        .create_pod(pods::simple(
            "mig-dynamic",
            "second",
            &[("mig-3g.20gb", "1")],
        ))
        .await?;
    eventually(PATIENCE, "the idle instance to give way", || async {
        let now = instances(stack)?;
        until!(
            now.len() == 2 && now.iter().all(|(_, place)| place.starts_with("3g")),
            "{now:?}"
        );
        Ok(Some(()))
    })
    .await?;
    let second = seen(stack, "mig-dynamic", "second").await?;
    ensure!(second != large);
    ensure!(seen(stack, "mig-dynamic", "large").await? == large);
    for pod in ["large", "second"] {
        stack.cluster.delete_pod("mig-dynamic", pod).await?;
    }
    plain(stack).await
}

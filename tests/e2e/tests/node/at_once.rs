//! How long the agent takes for 64 pods that start at once on the real kubelet. The figure is only
//! printed, because the machine is shared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::figures::report;
use aliquot_e2e::http;
use aliquot_e2e::pods::simple;
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

const SPACE: &str = "at-once";
const PODS: usize = 64;
const PATIENCE: Duration = Duration::from_mins(8);

pub(crate) async fn sixty_four(stack: Arc<Stack>) -> Result<()> {
    stack.terminate(Kind::DevicePlugin).await?;
    let options = NodeOptions {
        split: 32,
        ..NodeOptions::default()
    };
    stack.start_device_plugin(&options).await?;
    let outcome = started(&stack).await;
    stack.terminate(Kind::DevicePlugin).await?;
    stack.start_device_plugin(&NodeOptions::default()).await?;
    outcome
}

async fn started(stack: &Stack) -> Result<()> {
    stack.cluster.namespace(SPACE).await?;
    let names: Vec<String> = (0..PODS).map(|n| format!("p{n}")).collect();
    let limits = [("gpu", "1"), ("gpumem", "1000"), ("gpucores", "1")];
    let began = Instant::now();
    let pods = names.iter().map(|name| simple(SPACE, name, &limits));
    try_join_all(pods.map(|pod| stack.cluster.create_pod(pod))).await?;
    let pods = Api::<Pod>::namespaced(stack.cluster.admin()?, SPACE);
    eventually(PATIENCE, "64 pods to run", || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let phase =
            |pod: &&Pod| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        let running = all.iter().filter(phase).count();
        until!(running == PODS, "{running} run");
        Ok(Some(()))
    })
    .await?;
    let took = began.elapsed();
    let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
    for call in ["allocate", "prestart"] {
        let within = |part| within(&metrics, call, part).context("the histogram");
        let (half, most) = (within(0.5)?, within(0.99)?);
        let what = format!(
            "64 pods at once on the real kubelet, {call}: half within {half:.1} ms, 99 of 100 within {most:.1} ms; all run after"
        );
        report(&what, took);
    }
    stack.ledger_agrees().await?;
    try_join_all(
        names
            .iter()
            .map(|name| stack.cluster.delete_pod(SPACE, name)),
    )
    .await?;
    Ok(())
}

/// The bound in milliseconds of the first bucket that has this part of a call's times.
fn within(metrics: &str, call: &str, part: f64) -> Option<f64> {
    let start = "aliquot_device_plugin_call_seconds_bucket{";
    let own = format!("call=\"{call}\"");
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with(start) && line.contains(&own));
    let bucket = |line: &str| {
        let (_, rest) = line.split_once("le=\"")?;
        let (bound, rest) = rest.split_once('"')?;
        let count: f64 = rest.rsplit(' ').next()?.parse().ok()?;
        Some((bound.replace("+Inf", "inf").parse::<f64>().ok()?, count))
    };
    let buckets: Vec<(f64, f64)> = lines.filter_map(bucket).collect();
    let all = buckets.iter().map(|(_, count)| *count).fold(0.0, f64::max);
    let mut enough = buckets.iter().filter(|(_, count)| *count >= all * part);
    enough.next().map(|(bound, _)| bound * 1000.0)
}

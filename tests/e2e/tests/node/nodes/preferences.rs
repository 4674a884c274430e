//! What decides among real nodes that fit, and that the pods run where they were
//! sent, with their shares.

use std::sync::Arc;

use aliquot_e2e::pods::{allocation, simple};
use aliquot_e2e::pool::node_of;
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::cases::{cases, limits, merge};

const NAMESPACE: &str = "prefer";
const SECOND: &str = "node-2";
const THIRD: &str = "node-3";

/// Binpack, spread, a required and a preferred affinity.
pub(crate) async fn on_real_nodes(stack: Arc<Stack>) -> Result<()> {
    let (second, third) = futures::try_join!(
        Box::pin(stack.cluster.further_node(SECOND, 1)),
        Box::pin(stack.cluster.further_node(THIRD, 2)),
    )?;
    let _agents = futures::try_join!(
        Box::pin(stack.start_agent_on(&second, 8)),
        Box::pin(stack.start_agent_on(&third, 9)),
    )?;
    taint(&stack).await?;
    stack.cluster.namespace(NAMESPACE).await?;
    let mut names = Vec::new();
    for (name, preference, expected) in cases([NODE, SECOND, THIRD]) {
        let mut pod = simple(NAMESPACE, name, &limits(name));
        merge(&mut pod, preference);
        stack.cluster.create_pod(pod).await?;
        let what = format!("{name} to be bound");
        let bound =
            stack
                .cluster
                .wait_pod(NAMESPACE, name, &what, |pod| Ok(node_of(pod).is_some()));
        let bound = bound.await?;
        let found = node_of(&bound).unwrap_or_default();
        ensure!(
            expected.contains(&found),
            "{name}: {found}, expected {expected:?}"
        );
        names.push(name);
    }
    try_join_all(names.iter().map(|name| runs(&stack, name))).await?;
    stack.ledger_agrees().await?;
    try_join_all(
        names
            .iter()
            .map(|name| stack.cluster.delete_pod(NAMESPACE, name)),
    )
    .await?;
    Ok(())
}

/// The pod runs, and its container sees what it was granted.
async fn runs(stack: &Stack, name: &str) -> Result<()> {
    let pod = stack.cluster.wait_running(NAMESPACE, name).await?;
    let allocation = allocation(&pod)?;
    let grant = &allocation.grants("main").context("a share")?[0];
    let environment = stack.environment(NAMESPACE, name, "main").await?;
    for (variable, expected) in [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", format!("{}m", grant.memory.0)),
        ("ALIQUOT_VISIBLE_DEVICES", grant.gpu.to_string()),
    ] {
        let found = environment.get(variable);
        ensure!(found == Some(&expected), "{name}: {variable} is {found:?}");
    }
    Ok(())
}

/// Taints the second node with `PreferNoSchedule`.
async fn taint(stack: &Stack) -> Result<()> {
    let taint = json!({"key": "shabby", "effect": "PreferNoSchedule"});
    let patch = Patch::Merge(json!({"spec": {"taints": [taint]}}));
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let patched = nodes.patch(SECOND, &PatchParams::default(), &patch).await;
    patched.map(drop).context("taint the second node")
}

//! What scenarios with GPUs in other modes ask of the node.

use std::collections::BTreeMap;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::stack::{NODE, Stack};
use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;

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

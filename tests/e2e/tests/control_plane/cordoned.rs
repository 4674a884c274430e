//! A GPU is taken out of use by an annotation of its node, and put back.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::{PATIENCE, eventually};
use aliquot_e2e::http;
use aliquot_e2e::pool::{Pool, Shape};
use aliquot_e2e::stack::{Kind, Stack};
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

const WHOLE: (&str, &str) = ("gpumem", "81920");

/// docs/guides/nodes.md, with the command that stands there.
pub(crate) async fn until_uncordoned(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 1,
        replicas: 10,
    };
    let nodes = [("cordoned-1".to_owned(), shape)];
    let pool = Pool::open(&stack, "cordoned", &nodes).await?;
    let all: Api<Node> = Api::all(stack.cluster.admin()?);
    let node = all.get("cordoned-1").await?;
    let inventory = node.metadata.annotations.unwrap_or_default();
    let inventory = inventory
        .get("aliquot.dev/inventory")
        .context("an inventory")?;
    let inventory: serde_json::Value = serde_json::from_str(inventory)?;
    let uuid = inventory["gpus"][0]["uuid"].as_str().context("a uuid")?;

    let cordon = format!("aliquot.dev/device-cordon={uuid}");
    let annotate = async |what: &str| {
        let args = ["annotate", "node", "cordoned-1", what];
        stack.cluster.kubectl(&args).await?.success()
    };
    annotate(&cordon).await?;
    // A pod that comes before the scheduler's watch shows it would be bound.
    let scheduler = stack.address(Kind::Scheduler);
    eventually(PATIENCE, "the scheduler to see the cordon", || async {
        let top = http::get(scheduler, "/top").await?;
        until!(top.contains("CardCordoned"), "{top}");
        Ok(Some(()))
    })
    .await?;
    pool.create("waits", &[WHOLE]).await?;
    let event = pool.event("waits", "Refused: ").await?;
    ensure!(event.contains("1 CardCordoned"), "{event}");
    annotate("aliquot.dev/device-cordon-").await?;
    pool.bound("waits").await?;
    pool.close().await
}

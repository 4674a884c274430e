//! Errors are reported, and the last good configuration stays.

use std::sync::Arc;

use aliquot_cluster::until;
use aliquot_cluster::wait::eventually;
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NODE, Stack};
use anyhow::{Result, ensure};

use super::world::{PATIENCE, PROFILES, USUAL, label, wait_condition, wait_offered};

pub(crate) async fn unknown(stack: Arc<Stack>) -> Result<()> {
    label(&stack, Some("ten")).await?;
    wait_offered(&stack, &[(USUAL, "20")]).await?;
    label(&stack, Some("tenn")).await?;
    let found = wait_condition(&stack, "ProfileUnknown", "\"tenn\" is not a profile").await?;
    let stays = "the last valid profile stays in effect: ten";
    ensure!(
        found.starts_with("False ") && found.contains(stays),
        "{found}"
    );
    wait_offered(&stack, &[(USUAL, "20")]).await?;
    eventually(PATIENCE, "the metric to report it", || async {
        let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
        let sample = "aliquot_device_plugin_profile_error 1";
        until!(metrics.contains(sample), "{metrics}");
        Ok(Some(()))
    })
    .await?;
    eventually(PATIENCE, "an event on the node", || async {
        let events = stack.cluster.events("default", "Node", NODE).await?;
        let notes = events.iter().filter_map(|event| event.message.as_deref());
        let matching = notes.filter(|note| note.contains("\"tenn\" is not a profile"));
        until!(matching.count() > 0, "{events:?}");
        Ok(Some(()))
    })
    .await?;
    label(&stack, Some("nowhere")).await?;
    wait_condition(&stack, "ProfileDoesNotFit", "selects no GPU").await?;
    label(&stack, None).await?;
    wait_condition(&stack, "Applied", "profile shared")
        .await
        .map(drop)
}

pub(crate) async fn edited(stack: Arc<Stack>) -> Result<()> {
    label(&stack, None).await?;
    wait_offered(&stack, &[(USUAL, "30")]).await?;
    stack.write_profiles(&PROFILES.replace("replicas: 15", "replicas: 12"))?;
    let outcome = wait_offered(&stack, &[(USUAL, "24")]).await;
    stack.write_profiles(PROFILES)?;
    wait_offered(&stack, &[(USUAL, "30")]).await?;
    outcome.map(drop)
}

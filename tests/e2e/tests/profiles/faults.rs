//! What is wrong is told, and what was right stays.
//!
//! Fed by: `main`. Must not: leave a broken file behind.

use std::sync::Arc;

use aliquot_cluster::wait::eventually;
use aliquot_e2e::http;
use aliquot_e2e::stack::{Kind, NODE, Stack};
use anyhow::{Result, ensure};

use crate::world::{PATIENCE, PROFILES, USUAL, condition, label, wait_condition, wait_offered};
use crate::{options, restart};

pub(crate) async fn unknown(stack: Arc<Stack>) -> Result<()> {
    label(&stack, Some("ten")).await?;
    wait_offered(&stack, &[(USUAL, "20")], PATIENCE).await?;
    label(&stack, Some("tenn")).await?;
    wait_condition(&stack, "ProfileUnknown", "\"tenn\" is no profile").await?;
    let [status, _, message] = condition(&stack).await?;
    ensure!(status == "False" && message.contains("the last good profile stays: ten"));
    wait_offered(&stack, &[(USUAL, "20")], PATIENCE).await?;
    eventually(PATIENCE, "the metric to say so", || async {
        let metrics = http::get(stack.address(Kind::DevicePlugin), "/metrics").await?;
        let fault = "aliquot_device_plugin_profile_fault 1";
        ensure!(metrics.contains(fault), "{metrics}");
        Ok(Some(()))
    })
    .await?;
    eventually(PATIENCE, "an event on the node", || async {
        let events = stack.cluster.events("default", "Node", NODE).await?;
        let notes = events.iter().filter_map(|event| event.message.as_deref());
        let told = notes.filter(|note| note.contains("\"tenn\" is no profile"));
        ensure!(told.count() > 0, "{events:?}");
        Ok(Some(()))
    })
    .await?;
    label(&stack, Some("nowhere")).await?;
    wait_condition(&stack, "ProfileDoesNotFit", "selects no card").await?;
    label(&stack, None).await?;
    wait_condition(&stack, "Applied", "profile shared").await
}

pub(crate) async fn edited(stack: Arc<Stack>) -> Result<()> {
    label(&stack, None).await?;
    wait_offered(&stack, &[(USUAL, "30")], PATIENCE).await?;
    stack.write_profiles(&PROFILES.replace("replicas: 15", "replicas: 12"))?;
    let outcome = wait_offered(&stack, &[(USUAL, "24")], PATIENCE).await;
    stack.write_profiles(PROFILES)?;
    wait_offered(&stack, &[(USUAL, "30")], PATIENCE).await?;
    outcome.map(drop)
}

pub(crate) async fn broken(stack: Arc<Stack>) -> Result<()> {
    label(&stack, Some("plain")).await?;
    wait_offered(&stack, &[(USUAL, "2")], PATIENCE).await?;
    wait_condition(&stack, "Applied", "profile plain").await?;
    stack.write_profiles(&PROFILES.replace("replicas: 15", "replica: 15"))?;
    wait_condition(&stack, "ConfigurationBroken", "unknown key").await?;
    stack.terminate(Kind::DevicePlugin).await?;
    let bad = PROFILES.replace("replicas: 15", "replica: 15");
    restart(&stack, &options(&bad)).await?;
    wait_offered(&stack, &[(USUAL, "2")], PATIENCE).await?;
    wait_condition(&stack, "ConfigurationBroken", "plain").await?;
    stack.write_profiles(PROFILES)?;
    wait_condition(&stack, "Applied", "profile plain").await?;
    label(&stack, None).await?;
    wait_offered(&stack, &[(USUAL, "30")], PATIENCE)
        .await
        .map(drop)
}

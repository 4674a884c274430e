//! GPUs of one real node in different modes, chosen by profile and changed while pods run. What the
//! node offers is read from the real kubelet.

use std::sync::Arc;

use aliquot_e2e::scenario::{Scenario, scenario};
use aliquot_e2e::stack::{Kind, NodeOptions, Stack};
use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result};
use serde_json::json;

mod faults;
mod killed;
mod labels;
mod moved;
mod world;

/// The names of renamed GPUs in these scenarios.
const RENAMED: &str = "nvidia.com/gpu.shared";

/// Three GPUs: the scenarios give the first two their modes.
const MACHINE: &str = "name: profiles\ngpus:\n  - {count: 3, model: NVIDIA A100-SXM4-40GB}\n";

/// What the agent is started with.
fn options(profiles: &str) -> NodeOptions {
    NodeOptions {
        profiles: Some(profiles.to_owned()),
        ..NodeOptions::default()
    }
}

pub(crate) async fn start(stack: Arc<Stack>) -> Result<()> {
    let renamed = [("extraResources", json!([RENAMED]))];
    stack.cluster.restart_scheduler_with(&renamed).await?;
    let machine = stack.machine();
    std::fs::create_dir_all(machine.state().parent().context("a directory")?)?;
    SimulatedMachine::create(machine.state(), MACHINE)?;
    let more = ["--extra-resources", RENAMED];
    stack.start_scheduler(&more).await?;
    stack.start_webhook(&more).await?;
    restart(&stack, &options(world::PROFILES)).await
}

/// Starts the agent and waits until it is ready.
async fn restart(stack: &Stack, options: &NodeOptions) -> Result<()> {
    stack.start_device_plugin_unready(options).await?;
    stack.wait_ready(Kind::DevicePlugin).await
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "ts_1_ts_2_ts_3_ts_5_ts_10_ts_13_capacity_follows_label_within_five_seconds",
            labels::followed,
        ),
        scenario(
            "ts_4_another_label_switches_the_profile_under_running_pods",
            labels::under_pods,
        ),
        scenario(
            "ts_6_keeps_the_profile_and_reports_an_unknown_name",
            faults::unknown,
        ),
        scenario(
            "ts_7_applies_a_configuration_edited_in_place",
            faults::edited,
        ),
        scenario(
            "ts_8_sliced_and_whole_gpu_under_two_names_and_under_one",
            labels::sliced_and_whole,
        ),
        scenario(
            "hundred_label_changes_under_load_lose_nothing",
            moved::hundred,
        )
        .long(),
        scenario(
            "agent_killed_during_a_switch_leaves_old_mode_or_new",
            killed::switching,
        ),
        scenario(
            "agent_killed_during_a_start_leaves_no_partial_share",
            killed::starting,
        ),
    ]
}

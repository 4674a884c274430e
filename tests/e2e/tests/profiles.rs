//! Cards of one real node in different modes, chosen by profile and changed while pods run, on the
//! real kubelet (issue D3).
//!
//! Fed by: `cargo test --test profiles`. Must not: take the agent's word for what the kubelet offers.

use std::process::ExitCode;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{Kind, NODE, NodeOptions, Stack};
use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result};
use serde_json::json;

#[path = "profiles/faults.rs"]
mod faults;
#[path = "profiles/killed.rs"]
mod killed;
#[path = "profiles/labels.rs"]
mod labels;
#[path = "profiles/leaving.rs"]
mod leaving;
#[path = "profiles/moved.rs"]
mod moved;
#[path = "profiles/world.rs"]
mod world;

/// The names of renamed cards in these scenarios.
const RENAMED: &str = "nvidia.com/gpu.shared";

/// Three cards: the scenarios give the first two their modes.
const MACHINE: &str = "name: profiles\ngpus:\n  - {count: 3, model: NVIDIA A100-SXM4-40GB}\n";

/// What the agent is started with.
fn options(profiles: &str) -> NodeOptions {
    NodeOptions {
        profiles: Some(profiles.to_owned()),
        ..NodeOptions::default()
    }
}

async fn start() -> Result<Stack> {
    let cluster = Cluster::with_node().node_name(NODE).extender();
    let cluster = cluster.chart_value("extraResources", json!([RENAMED]));
    let stack = Stack::on(Box::pin(cluster.start()).await?).await?;
    let machine = stack.machine();
    std::fs::create_dir_all(machine.state().parent().context("a folder")?)?;
    SimulatedMachine::create(machine.state(), MACHINE)?;
    let more = ["--extra-resources", RENAMED];
    stack.start_scheduler(&more).await?;
    stack.start_webhook(&more).await?;
    restart(&stack, &options(world::PROFILES)).await?;
    Ok(stack)
}

/// Starts the agent and waits until it is ready.
async fn restart(stack: &Stack, options: &NodeOptions) -> Result<()> {
    stack.start_device_plugin_unready(options).await?;
    stack.wait_ready(Kind::DevicePlugin).await
}

fn main() -> ExitCode {
    scenario::main(
        start,
        vec![
            scenario(
                "ts_2_fifteen_replicas_on_two_cards_are_thirty",
                labels::fifteen,
            ),
            scenario(
                "ts_1_what_a_node_offers_follows_its_label_within_five_seconds",
                labels::followed,
            ),
            scenario(
                "ts_3_a_profile_without_sharing_offers_the_plain_number_of_cards",
                labels::plain,
            ),
            scenario(
                "ts_4_another_label_switches_the_profile_under_running_pods",
                labels::under_pods,
            ),
            scenario(
                "ts_5_without_the_label_the_default_is_back",
                labels::taken_back,
            ),
            scenario(
                "ts_6_an_unknown_name_keeps_the_profile_and_is_told",
                faults::unknown,
            ),
            scenario(
                "ts_7_a_configuration_edited_in_place_is_taken_up",
                faults::edited,
            ),
            scenario(
                "ts_8_a_sliced_card_and_a_whole_one_under_two_names_and_under_one",
                labels::sliced_and_whole,
            ),
            scenario(
                "ts_10_each_card_has_its_own_number_of_replicas",
                labels::own_numbers,
            ),
            scenario(
                "ts_13_a_label_makes_a_node_of_whole_cards",
                labels::dedicated,
            ),
            scenario(
                "a_broken_configuration_keeps_the_last_good_profile_over_a_restart",
                faults::broken,
            ),
            scenario(
                "a_change_that_evicts_ends_the_pod_in_its_way_and_no_other",
                leaving::evicted,
            ),
            scenario(
                "a_card_that_is_not_free_in_time_stays_what_it_was_until_it_is",
                leaving::given_up,
            ),
            scenario(
                "the_label_moves_a_hundred_times_under_load_and_nothing_is_lost",
                moved::hundred,
            ),
            scenario(
                "an_agent_killed_at_every_point_of_a_switch_leaves_the_old_mode_or_the_new",
                killed::switching,
            ),
            scenario(
                "an_agent_killed_at_every_point_of_a_start_leaves_no_half_share",
                killed::starting,
            ),
        ],
    )
}

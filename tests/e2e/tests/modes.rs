//! Scenarios on a real node whose cards are shared in different modes.

use std::process::ExitCode;

use aliquot_cluster::Cluster;
use aliquot_e2e::scenario::{self, scenario};
use aliquot_e2e::stack::{NODE, NodeOptions, Stack};
use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result};

#[path = "modes/mig.rs"]
mod mig;
#[path = "modes/mig_shown.rs"]
mod mig_shown;
#[path = "modes/monitored.rs"]
mod monitored;
#[path = "modes/mps.rs"]
mod mps;
#[path = "modes/mps_users.rs"]
mod mps_users;
#[path = "modes/pins.rs"]
mod pins;
#[path = "modes/together.rs"]
mod together;

/// Eight cards of 40 GiB, as `index` of a profile names them; each scenario leaves them in `vgpu`.
const MACHINE: &str =
    "name: modes\ngpus:\n  - {count: 8, model: NVIDIA A100-SXM4-40GB, memoryMib: 40960}\n";

/// Every card as without a configuration.
pub(crate) const PLAIN: &str =
    "apiVersion: aliquot.dev/v1alpha1\ndefault: plain\nprofiles:\n  plain: {rest: vgpu}\n";

async fn stack() -> Result<Stack> {
    let cluster = Cluster::with_node().node_name(NODE).extender();
    let stack = Stack::on(Box::pin(cluster.start()).await?).await?;
    let machine = stack.machine();
    let folder = machine.state().parent().context("a folder")?;
    std::fs::create_dir_all(folder)?;
    SimulatedMachine::create(machine.state(), MACHINE)?;
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await?;
    stack.start_keeper().await?;
    let options = NodeOptions {
        profiles: Some(PLAIN.to_owned()),
        ..NodeOptions::default()
    };
    stack.start_device_plugin(&options).await?;
    Ok(stack)
}

fn main() -> ExitCode {
    scenario::main(
        stack,
        vec![
            scenario(
                "mps_1_thirty_two_seats_on_eight_cards_and_mps_18_none_after_it",
                mps::seats,
            ),
            scenario(
                "mps_2_and_mps_17_a_renamed_mps_card_beside_whole_cards",
                mps::beside,
            ),
            scenario(
                "mps_3_programs_in_pods_have_their_caps_and_share_the_card",
                mps::caps,
            ),
            scenario(
                "mps_7_two_programs_of_a_container_stay_within_its_memory_together",
                mps::total,
            ),
            scenario("mps_11_a_killed_daemon_is_told_and_comes_back", mps::killed),
            scenario(
                "mps_14_top_shows_memory_and_clients_for_each_pod_and_each_card",
                mps_users::shown,
            ),
            scenario(
                "mps_16_programs_of_different_users_share_one_card",
                mps_users::users,
            ),
            scenario(
                "mig_4_an_odd_card_under_one_name_is_in_the_nodes_condition",
                mig_shown::odd,
            ),
            scenario(
                "mig_8_a_program_in_the_container_lists_the_booked_instance_and_no_other",
                mig_shown::listed,
            ),
            scenario(
                "mig_1_mig_10_and_mig_18_layouts_of_one_card_beside_whole_ones",
                mig::layouts,
            ),
            scenario(
                "mig_2_mig_20_and_mig_19_pods_see_their_instances_after_a_reboot_too",
                mig::instances_of_pods,
            ),
            scenario(
                "mig_17_instances_are_made_as_pods_come_and_give_way_when_idle",
                mig::dynamic,
            ),
            scenario(
                "mig_5_pins_are_what_is_booked_seen_and_reported_by_the_kubelet",
                pins::pinned,
            ),
            scenario(
                "mig_15_an_instance_that_is_kept_stays_free_for_its_namespace",
                pins::kept,
            ),
            scenario(
                "the_monitor_finds_whose_each_process_is_in_every_mode",
                monitored::figures,
            ),
            scenario(
                "a_pod_of_each_kind_runs_at_once_on_six_cards_in_six_arrangements",
                together::six,
            ),
        ],
    )
}

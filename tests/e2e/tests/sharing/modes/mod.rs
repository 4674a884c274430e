//! Scenarios on a real node whose GPUs are shared in different modes.

use std::sync::Arc;

use aliquot_e2e::scenario::{Scenario, scenario};
use aliquot_e2e::stack::{NodeOptions, Stack};
use aliquot_gpusim::SimulatedMachine;
use anyhow::{Context as _, Result};

mod mps_users;
mod together;

/// Eight GPUs of 40 GiB, of which the driver reserves nothing, as `index` of a profile names them; each scenario leaves them in `vgpu`.
const MACHINE: &str = "name: modes\ngpus:\n  - {count: 8, model: NVIDIA A100-SXM4-40GB, memoryMib: 40960, reservedMib: 0}\n";

/// Every GPU as without a configuration.
pub(crate) const PLAIN: &str =
    "apiVersion: aliquot.dev/v1alpha1\ndefault: plain\nprofiles:\n  plain: {rest: vgpu}\n";

pub(crate) async fn start(stack: Arc<Stack>) -> Result<()> {
    let machine = stack.machine();
    let folder = machine.state().parent().context("a directory")?;
    std::fs::create_dir_all(folder)?;
    SimulatedMachine::create(machine.state(), MACHINE)?;
    stack.start_scheduler(&[]).await?;
    stack.start_webhook(&[]).await?;
    stack.start_mps_supervisor().await?;
    let options = NodeOptions {
        profiles: Some(PLAIN.to_owned()),
        ..NodeOptions::default()
    };
    stack.start_device_plugin(&options).await
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario(
            "mps_shared_memory_is_closed_to_other_gpus_and_users",
            mps_users::shared_memory,
        ),
        scenario("pods_run_at_once_on_six_gpus_in_six_layouts", together::six),
    ]
}

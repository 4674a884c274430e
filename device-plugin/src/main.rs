//! The node agent's process ([`agent::start`]); as `mps-supervisor` the process that supervises MPS
//! daemons; as `cleanup` the job that the chart runs before its removal ([`cluster::run`]); as
//! `chroot` another program, which runs with the host's root.

#[cfg(feature = "fail-points")]
compile_error!("fail-points are for aliquot-device-plugin-chaos: cargo build --bin that");

use std::sync::Arc;
use std::time::Duration;

use aliquot_device_plugin::agent;
use aliquot_device_plugin::container_edits::driver_spec::{self, CHROOT};
use aliquot_device_plugin::modes::mps::supervisor;
use aliquot_device_plugin::publish::cleanup::cluster;
use aliquot_device_plugin::settings::Settings;
use aliquot_nvml::{ComputeModes, NvmlPerCall, Options, root};
use aliquot_serve::{Readiness, stop, telemetry};
use anyhow::Context as _;
use clap::Parser as _;

/// The first argument that makes this process the supervisor of MPS daemons.
const MPS_SUPERVISOR: &str = "mps-supervisor";
/// The interval at which the supervisor of MPS daemons tries to open the driver at its start.
const DRIVER_RETRY: Duration = Duration::from_secs(2);
/// The first argument that makes it ask the agents of all nodes to clean up.
const CLEANUP: &str = "cleanup";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os();
    let first = arguments.nth(1).unwrap_or_default();
    if first == MPS_SUPERVISOR {
        let program = std::iter::once(MPS_SUPERVISOR.into());
        return run_mps_supervisor(supervisor::SupervisorSettings::parse_from(
            program.chain(arguments),
        ))
        .await;
    }
    if first == CLEANUP {
        let program = std::iter::once(CLEANUP.into());
        return clean_up(cluster::Settings::parse_from(program.chain(arguments))).await;
    }
    if first == CHROOT {
        return Err(driver_spec::run_with_root(arguments).into());
    }
    let settings = Settings::parse();
    telemetry::init(settings.log_format, &settings.log)?;
    Box::pin(agent::start(settings))
        .await
        .context("the agent ended")
}

/// Succeeds even where nodes remain: the chart's removal goes on.
async fn clean_up(settings: cluster::Settings) -> anyhow::Result<()> {
    telemetry::init(settings.log_format, &settings.log)?;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    let within = Duration::from_secs(settings.within.into());
    let remaining = cluster::run(client, within).await?;
    for node in remaining {
        tracing::warn!(
            node,
            "the agent did not clean up this node in time; docs/guides/upgrade.md lists the commands that do"
        );
    }
    Ok(())
}

async fn run_mps_supervisor(settings: supervisor::SupervisorSettings) -> anyhow::Result<()> {
    telemetry::init(settings.log_format, &settings.log)?;
    let stop = stop::on_signals(Readiness::new([]), Duration::ZERO)?;
    let running = tokio::task::spawn_blocking(move || {
        let open = || {
            let library = root::library(&settings.nvml_library, settings.driver_root.as_deref())?;
            NvmlPerCall::new(Options {
                library,
                ..Options::default()
            })
        };
        // On a node that boots, the driver may come later.
        let driver: Arc<dyn ComputeModes> = loop {
            match open() {
                Ok(driver) => break Arc::new(driver),
                Err(error) => tracing::warn!(%error, "waiting for the driver"),
            }
            if stop.is_cancelled() {
                return Ok(());
            }
            std::thread::park_timeout(DRIVER_RETRY);
        };
        supervisor::run(&settings, &driver, &stop);
        anyhow::Ok(())
    });
    running.await?
}

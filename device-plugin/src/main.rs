//! The node agent's process: flags, logs, then [`agent::start`]; as `mps-keeper` the process
//! beside it, [`keeper::run`]; as `leave` what the chart runs before its removal, [`everywhere::run`].
//!
//! Fed by: the command line. Must not: decide anything.

#[cfg(feature = "fail-points")]
compile_error!("fail-points are for aliquot-device-plugin-chaos: cargo build --bin that");

use std::sync::Arc;
use std::time::Duration;

use aliquot_device_plugin::agent;
use aliquot_device_plugin::leave::everywhere;
use aliquot_device_plugin::mps::keeper;
use aliquot_device_plugin::settings::Settings;
use aliquot_nvml::{ByCall, ComputeModes, Options, root};
use aliquot_serve::{Readiness, stop, telemetry};
use anyhow::Context as _;
use clap::Parser as _;

/// The first argument that makes this process the keeper of MPS daemons.
const KEEPER: &str = "mps-keeper";
/// The first argument that makes it ask all agents to leave.
const LEAVE: &str = "leave";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os();
    let first = arguments.nth(1).unwrap_or_default();
    if first == KEEPER {
        let program = std::iter::once(KEEPER.into());
        return keep(keeper::Settings::parse_from(program.chain(arguments))).await;
    }
    if first == LEAVE {
        let program = std::iter::once(LEAVE.into());
        return leave(everywhere::Settings::parse_from(program.chain(arguments))).await;
    }
    let settings = Settings::parse();
    telemetry::init(settings.log_format, &settings.log)?;
    agent::start(settings).await.context("the agent ended")
}

/// Ends well where nodes remain, too: what is to be removed is removed.
async fn leave(settings: everywhere::Settings) -> anyhow::Result<()> {
    telemetry::init(settings.log_format, &settings.log)?;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    let within = Duration::from_secs(settings.within.into());
    let remaining = everywhere::run(client, within).await?;
    for node in remaining {
        tracing::warn!(
            node,
            "not left: docs/guides/install.md has the commands for what stays on it"
        );
    }
    Ok(())
}

async fn keep(settings: keeper::Settings) -> anyhow::Result<()> {
    telemetry::init(settings.log_format, &settings.log)?;
    let stop = stop::on_signals(Readiness::new([]), Duration::ZERO)?;
    let keeping = tokio::task::spawn_blocking(move || {
        let root = settings.driver_root.as_deref();
        let library = root::library(&settings.nvml_library, root)?;
        let driver: Arc<dyn ComputeModes> = Arc::new(ByCall::new(Options {
            library,
            ..Options::default()
        })?);
        keeper::run(&settings, &driver, &stop);
        anyhow::Ok(())
    });
    keeping.await?
}

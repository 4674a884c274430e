//! The node agent's process: flags, logs, driver, client, then [`agent::run`]; as
//! `mps-keeper` the process beside it, [`keeper::run`].
//!
//! Fed by: the command line. Must not: decide anything.

use std::sync::Arc;
use std::time::Duration;

use aliquot_device_plugin::agent;
use aliquot_device_plugin::mps::keeper;
use aliquot_device_plugin::settings::Settings;
use aliquot_nvml::{ComputeModes, Nvml, Options};
use aliquot_serve::{Readiness, stop, telemetry};
use anyhow::Context as _;
use clap::Parser as _;

/// The first argument that makes this process the keeper of MPS daemons.
const KEEPER: &str = "mps-keeper";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|first| first == KEEPER) {
        let program = std::iter::once(KEEPER.into());
        return keep(keeper::Settings::parse_from(program.chain(arguments))).await;
    }
    let settings = Settings::parse();
    telemetry::init(settings.log_format, &settings.log)?;
    let readiness = Readiness::new([agent::REGISTERED, agent::INVENTORY, agent::PODS]);
    // Nobody sends us requests through a service: no linger.
    let stop = stop::on_signals(readiness.clone(), Duration::ZERO)?;
    let options = Options {
        library: settings.nvml_library.clone().into_os_string(),
        ignored_xids: settings.xid_actions.ignored(),
    };
    let driver = tokio::task::spawn_blocking(move || Nvml::open(options)).await??;
    let client = aliquot_k8s::client::client(settings.kubeconfig.as_deref()).await?;
    agent::run(settings, Arc::new(driver), client, readiness, stop)
        .await
        .context("the agent ended")
}

async fn keep(settings: keeper::Settings) -> anyhow::Result<()> {
    telemetry::init(settings.log_format, &settings.log)?;
    let stop = stop::on_signals(Readiness::new([]), Duration::ZERO)?;
    let keeping = tokio::task::spawn_blocking(move || {
        let driver: Arc<dyn ComputeModes> = Arc::new(Nvml::open(Options {
            library: settings.nvml_library.clone().into_os_string(),
            ..Options::default()
        })?);
        keeper::run(&settings, &driver, &stop);
        anyhow::Ok(())
    });
    keeping.await?
}

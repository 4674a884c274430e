//! The node agent's process: flags, logs, driver, client, then [`agent::run`].
//!
//! Fed by: the command line. Must not: decide anything.

use std::sync::Arc;
use std::time::Duration;

use aliquot_device_plugin::agent;
use aliquot_device_plugin::settings::Settings;
use aliquot_nvml::{Nvml, Options};
use aliquot_serve::{Readiness, stop, telemetry};
use anyhow::Context as _;
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
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

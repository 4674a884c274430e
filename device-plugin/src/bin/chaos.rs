//! `aliquot-device-plugin-chaos`: the node agent with fail points, for tests/e2e only; never
//! shipped.

use aliquot_device_plugin::agent;
use aliquot_device_plugin::settings::Settings;
use aliquot_serve::telemetry;
use anyhow::Context as _;
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    telemetry::init(settings.log_format, &settings.log)?;
    Box::pin(agent::start(settings))
        .await
        .context("the agent ended")
}

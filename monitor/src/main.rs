//! The monitor's process: flags, logs, then [`run::start`].

use aliquot_monitor::run;
use aliquot_monitor::settings::Settings;
use aliquot_serve::telemetry;
use anyhow::Context as _;
use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    telemetry::init(settings.log_format, &settings.log)?;
    run::start(settings).await.context("the monitor failed")
}

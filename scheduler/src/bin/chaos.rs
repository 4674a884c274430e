//! `aliquot-scheduler-chaos`: the scheduler with its fail points, for tests/chaos. It is never
//! shipped.

#![forbid(unsafe_code)]

use aliquot_scheduler::run::run;
use aliquot_scheduler::settings::Settings;
use aliquot_serve::telemetry;
use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let settings = Settings::parse();
    telemetry::init(settings.log_format, &settings.log)?;
    run(settings).await
}

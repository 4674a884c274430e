//! `aliquot-scheduler`: see the library for what it does.

#![forbid(unsafe_code)]
#[cfg(feature = "fail-points")]
compile_error!("fail-points are for aliquot-scheduler-chaos: cargo build --bin that");

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

//! The monitor's tasks, started and ended together.
//!
//! Fed by: the settings. Must not: decide anything; the tasks do.

use std::sync::Arc;
use std::time::Duration;

use aliquot_nvml::{Nvml, NvmlError, Options};
use aliquot_serve::{Readiness, admin, http};
use futures::FutureExt as _;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::seats::{Reader, Seats};
use crate::settings::Settings;

/// Between two looks at cards and processes.
pub const LOOK: Duration = Duration::from_millis(500);
/// The first look is done.
const LOOKED: &str = "looked";

/// Why the monitor cannot run.
#[derive(Debug, Error)]
pub enum RunError {
    /// The driver cannot be opened.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// The address is taken.
    #[error(transparent)]
    Listen(#[from] http::BindError),
    /// A blocking task ended early.
    #[error("a blocking task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Opens what is needed, and runs until a signal ends it.
pub async fn start(settings: Settings) -> Result<(), RunError> {
    let readiness = Readiness::new([LOOKED]);
    let stop = aliquot_serve::stop::on_signals(readiness.clone(), Duration::ZERO);
    let stop = stop.map_err(RunError::Signals)?;
    let library = settings.nvml_library.clone().into_os_string();
    let options = Options {
        library,
        ..Options::default()
    };
    let driver = spawn_blocking(move || Nvml::open(options)).await??;
    run(settings, Arc::new(driver), readiness, stop).await
}

/// Runs until `stop`.
pub async fn run(
    settings: Settings,
    _driver: Arc<Nvml>,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let tasks = TaskTracker::new();
    let listener = http::bind(settings.listen).await?;
    let router = admin::router(readiness.clone(), Arc::new(Registry::default()));
    let serving = http::serve(http::plain(listener), router, stop.clone(), http::DRAIN);
    tasks.spawn(serving.map(drop));
    let (seats_tx, _seats) = watch::channel(Arc::<Seats>::default());
    let reader = Reader::new(settings.state_dir.clone());
    tasks.spawn(looks(reader, seats_tx, readiness, stop));
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// One look after another, each on a blocking thread.
async fn looks(
    mut reader: Reader,
    seats_tx: watch::Sender<Arc<Seats>>,
    readiness: Readiness,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let looked = spawn_blocking(move || {
            let seats = reader.read();
            (reader, seats)
        });
        let Ok((same, seats)) = looked.await else {
            return;
        };
        reader = same;
        seats_tx.send_replace(seats);
        readiness.holds(LOOKED);
    }
}

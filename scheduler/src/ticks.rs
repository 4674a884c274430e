//! The ticks of a loop, which end with the program.

use std::time::Duration;

use tokio::time::Interval;
use tokio_util::sync::CancellationToken;

/// Ticks at an interval until the program stops.
#[derive(Debug)]
pub struct Ticks {
    interval: Interval,
    stop: CancellationToken,
}

impl Ticks {
    /// The first tick is at once.
    pub fn every(interval: Duration, stop: &CancellationToken) -> Self {
        Self {
            interval: tokio::time::interval(interval),
            stop: stop.clone(),
        }
    }

    /// Waits for the next tick; `false` at the end.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            _ = self.interval.tick() => true,
        }
    }
}

//! The ticks of a loop, which end with the program.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Ticks at an interval, the first at once. Those that were missed, as while the API server was slow,
/// are not made up for: it would get them all as soon as it answers.
pub fn ticks(interval: Duration) -> Interval {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

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
            interval: ticks(interval),
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

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn missed_ticks_are_not_made_up_for() {
        let interval = Duration::from_secs(1);
        let mut ticks = Ticks::every(interval, &CancellationToken::new());
        assert!(ticks.next().await);
        tokio::time::advance(interval * 60).await;
        assert!(ticks.next().await);
        let late = Instant::now();
        assert!(ticks.next().await);
        assert!(late.elapsed() >= interval, "{:?}", late.elapsed());
    }
}

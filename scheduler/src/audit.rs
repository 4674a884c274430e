//! Looks after what no event may ever tell: reservations whose pod vanished
//! between two lists, and books that differ from recomputed ones.
//!
//! Fed by: a clock, the books, the binder.
//! Must not: free a reservation on anything but "no such pod".

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bind::Binder;
use crate::books::Books;
use crate::metrics::Metrics;

/// How often.
const EVERY: Duration = Duration::from_secs(10);
/// A Binding that the watch has not shown after this long is asked for.
const OVERDUE: Duration = Duration::from_secs(10);

/// Runs until `stop`.
pub async fn run(
    books: Arc<Books>,
    binder: Arc<Binder>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        overdue(&books, &binder, Instant::now()).await;
        let differences = books.recompute();
        if differences.count() > 0 {
            metrics
                .self_check_differences
                .inc_by(differences.count() as u64);
            tracing::error!(
                ?differences,
                "books differed from recomputed ones, which are adopted"
            );
        }
    }
}

/// Frees settled reservations whose pod no longer exists.
pub async fn overdue(books: &Books, binder: &Binder, now: Instant) {
    for (uid, settled) in binder.settled() {
        if now.duration_since(settled.since) < OVERDUE {
            continue;
        }
        let pod = &settled.pod.name;
        let found = binder.get(&settled.pod).await;
        match found {
            Ok(None) => {
                tracing::info!(pod, "bound pod is gone, freeing its reservation");
                books.cancel(&uid);
            }
            Ok(Some(_)) => {
                tracing::warn!(pod, "bound pod is not in the watch yet");
            }
            Err(error) => {
                tracing::warn!(pod, error, "cannot look for bound pod");
            }
        }
    }
}

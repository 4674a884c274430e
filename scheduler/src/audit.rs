//! Checks what no event shows: reservations whose pod vanished between two lists, and a ledger that
//! differs from a recomputed one. A reservation is released only if its pod does not exist.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bind::Binder;
use crate::ledger_cache::LedgerCache;
use crate::metrics::Metrics;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// After this long an accepted Binding that the watch has not confirmed is checked.
const OVERDUE: Duration = Duration::from_secs(10);

/// Runs until `stop`.
pub async fn run(
    cache: Arc<LedgerCache>,
    binder: Arc<Binder>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        overdue(&cache, &binder, Instant::now()).await;
        let differences = cache.recompute();
        if differences.count() > 0 {
            metrics
                .self_check_differences
                .inc_by(differences.count() as u64);
            tracing::error!(
                ?differences,
                "ledger differed from the recomputed one, adopting the latter"
            );
        }
    }
}

/// Releases settled reservations whose pod no longer exists.
pub async fn overdue(cache: &LedgerCache, binder: &Binder, now: Instant) {
    for (uid, settled) in binder.settled() {
        if now.duration_since(settled.since) < OVERDUE {
            continue;
        }
        let pod = &settled.pod.name;
        let found = binder.get(&settled.pod).await;
        match found {
            Ok(None) => {
                tracing::info!(pod, "bound pod no longer exists, releasing its reservation");
                cache.cancel(&uid);
            }
            Ok(Some(_)) => {
                tracing::warn!(pod, "watch has not shown the bound pod yet");
            }
            Err(error) => {
                tracing::warn!(pod, error, "cannot get the bound pod");
            }
        }
    }
}

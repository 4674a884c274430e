//! The end of a process: signals become a token, and readiness goes first.
//!
//! Fed by: SIGTERM and SIGINT.
//! Must not: exit the process; whoever holds the token ends its own work.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

/// A token that is cancelled `linger` after the first SIGTERM or SIGINT, or at
/// once on the second. `/readyz` fails from the first on, so that a service can
/// send its clients elsewhere before the listener closes.
pub fn on_signals(readiness: Readiness, linger: Duration) -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        let mut signalled = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = signalled().await;
        tracing::info!(signal = name, linger = ?linger, "stopping");
        readiness.fails("running", "stopping");
        // Either way it is time to close: the linger is over or somebody insists.
        let _ = tokio::time::timeout(linger, signalled()).await;
        stop.cancel();
    });
    Ok(token)
}

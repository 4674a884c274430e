//! Graceful termination: signals cancel a token, after readiness has failed. The process
//! itself ends when the holders of the token do.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

/// A token that is cancelled `delay` after the first SIGTERM or SIGINT, or at once on the
/// second. `/readyz` fails from the first on, so that a Service can send its clients
/// elsewhere before the listener closes.
pub fn on_signals(readiness: Readiness, delay: Duration) -> io::Result<CancellationToken> {
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
        tracing::info!(signal = name, delay = ?delay, "stopping");
        readiness.fail("running", "stopping");
        // Either the delay is over or a second signal came.
        let _ = tokio::time::timeout(delay, signalled()).await;
        stop.cancel();
    });
    Ok(token)
}

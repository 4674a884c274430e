//! Serving a router on a listener until told to stop, with a drain deadline.
//!
//! Fed by: a plain TCP listener or the TLS listener of this crate.
//! Must not: wait for a client beyond the deadline.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long open requests may take after the stop, where a binary says nothing else.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Why a port could not be opened.
#[derive(Debug, Error)]
#[error("cannot listen on {addr}")]
pub struct BindError {
    addr: SocketAddr,
    source: io::Error,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every open request was answered.
    Drained,
    /// The drain deadline passed with connections still open.
    CutOff,
}

/// Opens a TCP port.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| BindError { addr, source })
}

/// A plain HTTP listener (HTTP/1.1 and h2c) without Nagle's delay.
pub fn plain(listener: TcpListener) -> impl Listener<Addr = SocketAddr> {
    listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    })
}

/// Serves until `stop` is cancelled, then accepts nothing more and waits up to
/// `drain` for open requests.
pub async fn serve<L>(
    listener: L,
    router: Router,
    stop: CancellationToken,
    drain: Duration,
) -> io::Result<Ended>
where
    L: Listener,
    L::Addr: Debug,
{
    let serving =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        ended = serving.into_future() => ended.map(|()| Ended::Drained),
        () = deadline => {
            tracing::warn!(?drain, "connections still open at the drain deadline");
            Ok(Ended::CutOff)
        }
    }
}

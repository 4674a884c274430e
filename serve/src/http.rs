//! Serves a router on a listener until it is stopped, with a drain deadline.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The default time for open requests after the stop.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Why a port could not be opened.
#[derive(Debug, Error)]
#[error("cannot listen on {addr}")]
pub struct ListenError {
    addr: SocketAddr,
    source: io::Error,
}

/// How serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every open request was answered.
    Drained,
    /// The drain deadline passed with connections still open.
    DeadlinePassed,
}

/// Opens a TCP port.
pub async fn bind(addr: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| ListenError { addr, source })
}

/// A plain HTTP listener (HTTP/1.1 and h2c) without Nagle's delay.
pub fn plain(listener: TcpListener) -> impl Listener<Addr = SocketAddr> {
    listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
    })
}

/// Serves until `stop` is cancelled, then accepts no more connections and waits up to
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
            Ok(Ended::DeadlinePassed)
        }
    }
}

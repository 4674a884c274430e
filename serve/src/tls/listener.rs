//! A listener for axum whose TLS handshakes run in tasks of their own: a silent client
//! costs one task until the deadline, and never blocks accepting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

type Connection = (TlsStream<TcpStream>, SocketAddr);

/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Accepts TCP connections and yields those that finished their handshake.
pub struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<Connection>>,
    deadline: Duration,
}

impl TlsListener {
    /// With the default deadline of 10 s for a handshake.
    pub fn new(tcp: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self {
            tcp,
            acceptor: TlsAcceptor::from(config),
            handshakes: JoinSet::new(),
            deadline: HANDSHAKE,
        }
    }

    /// Another deadline for a handshake.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> Connection {
        loop {
            tokio::select! {
                (stream, peer) = Listener::accept(&mut self.tcp) => {
                    let handshake = handshake(self.acceptor.clone(), stream, peer, self.deadline);
                    self.handshakes.spawn(handshake);
                }
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(Some(connection)) => return connection,
                    Ok(None) => {}
                    Err(error) => tracing::error!(%error, "handshake task failed"),
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
    deadline: Duration,
) -> Option<Connection> {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, %peer, "cannot set TCP_NODELAY");
    }
    match tokio::time::timeout(deadline, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some((stream, peer)),
        Ok(Err(error)) => {
            tracing::info!(%error, %peer, "TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::info!(?deadline, %peer, "TLS handshake took too long");
            None
        }
    }
}

//! What a flood of connections without a token costs a port of Aliquot's that is closed to all but
//! authorised accounts: connections that wait for their turn, and such that are made anew all the time.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use aliquot_serve::access_control::{AccessControl, Reviewed, serve};
use aliquot_style::figures::Figure;
use anyhow::{Context as _, Result};
use axum::Router;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const CLIENTS: u32 = 256;
/// Between two attempts of a client: 10,000 a second of all.
const INTERVAL: Duration = Duration::from_micros(25_600);
const MEASURED: Duration = Duration::from_secs(10);

/// The figures of both kinds of clients.
pub(crate) async fn measure() -> Result<Vec<Figure>> {
    Ok(vec![
        flood("waiting", Duration::from_mins(1)).await?,
        flood("connecting", Duration::from_millis(20)).await?,
    ])
}

/// Clients that wait so long for an answer before they connect again.
async fn flood(kind: &str, patience: Duration) -> Result<Figure> {
    let stop = CancellationToken::new();
    let (address, thread) = guarded(stop.clone())?;
    let attempts = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let attempts = Arc::clone(&attempts);
        clients.spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            loop {
                ticks.tick().await;
                attempts.fetch_add(1, Relaxed);
                // Refused, closed or out of patience: the next attempt follows.
                let _ = timeout(patience, attempt(address)).await;
            }
        });
    }
    let count = || f64::from(attempts.load(Relaxed));
    let mut periods = tokio::time::interval(MEASURED);
    periods.tick().await;
    // The first period is not measured.
    periods.tick().await;
    let (spent_before, before, begun) = (spent(&thread)?, count(), Instant::now());
    periods.tick().await;
    let elapsed = begun.elapsed().as_secs_f64();
    let (spent, attempts) = (
        spent(&thread)?.saturating_sub(spent_before),
        count() - before,
    );
    clients.shutdown().await;
    stop.cancel();
    Ok(Figure {
        name: format!("flood_core_percent_{kind}"),
        value: 100.0 * spent.as_secs_f64() / elapsed,
        unit: "%",
        baseline: 0.0,
        what: format!(
            "of a core for {:.0} attempts a second by {CLIENTS} {kind} clients without a token",
            attempts / elapsed
        ),
    })
}

async fn attempt(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(())
}

/// A port that nobody may use, served by a thread of its own; its address, and the thread in `/proc`.
fn guarded(stop: CancellationToken) -> Result<(SocketAddr, PathBuf)> {
    let nobody = |_, _| -> Reviewed { Box::pin(async { Err("nobody may".to_owned()) }) };
    let control = AccessControl::new(nobody, [])?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let (started, thread) = std::sync::mpsc::channel();
    std::thread::spawn(move || -> Result<()> {
        started.send(std::fs::read_link("/proc/thread-self")?)?;
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            serve(listener, Router::new(), Some(control), stop).await?;
            Ok(())
        })
    });
    Ok((address, thread.recv().context("a server")?))
}

/// The CPU time of a thread so far (`schedstat`, ns).
fn spent(thread: &std::path::Path) -> Result<Duration> {
    let text = std::fs::read_to_string(PathBuf::from("/proc").join(thread).join("schedstat"))?;
    let nanoseconds = text.split_whitespace().next().context("three numbers")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}

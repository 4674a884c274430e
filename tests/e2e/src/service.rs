//! A Service as kube-proxy implements it: every new connection goes to a replica that was ready at
//! the last poll, so a dead one remains in it until the next poll. A refused connection is not
//! retried at another replica, as with kube-proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::http;

/// Between two polls of a replica. The kubelet sees within a second that a container died.
const POLL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Replica {
    serves: SocketAddr,
    ready: AtomicBool,
}

/// A running Service; it ends when dropped.
#[derive(Debug)]
pub struct Service {
    replicas: Arc<Vec<Replica>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Service {
    /// Listens, and polls the replicas: where each serves, and where its `/readyz` is.
    pub async fn start(listen: SocketAddr, replicas: &[(SocketAddr, SocketAddr)]) -> Result<Self> {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("a Service at {listen}"))?;
        let all = replicas.iter().map(|(serves, _)| Replica {
            serves: *serves,
            ready: AtomicBool::new(false),
        });
        let all: Arc<Vec<Replica>> = Arc::new(all.collect());
        let mut tasks = vec![tokio::spawn(accept(listener, all.clone()))];
        for (index, (_, admin)) in replicas.iter().enumerate() {
            tasks.push(tokio::spawn(poll(all.clone(), index, *admin)));
        }
        Ok(Self {
            replicas: all,
            tasks,
        })
    }

    /// How many replicas are ready.
    pub fn ready(&self) -> usize {
        let all = self.replicas.iter();
        all.filter(|one| one.ready.load(Ordering::Relaxed)).count()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn poll(all: Arc<Vec<Replica>>, index: usize, admin: SocketAddr) {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = timeout(POLL, http::get(admin, "/readyz")).await;
        let ready = matches!(answer, Ok(Ok(_)));
        all[index].ready.store(ready, Ordering::Relaxed);
    }
}

async fn accept(listener: TcpListener, all: Arc<Vec<Replica>>) {
    while let Ok((mut from, _)) = listener.accept().await {
        let ready = all.iter().filter(|one| one.ready.load(Ordering::Relaxed));
        let ready: Vec<SocketAddr> = ready.map(|one| one.serves).collect();
        let Some(to) = fastrand::choice(ready) else {
            continue;
        };
        tokio::spawn(async move {
            let Ok(mut to) = TcpStream::connect(to).await else {
                return;
            };
            // Forwarding in the kernel delays nothing, either.
            let _both = (from.set_nodelay(true), to.set_nodelay(true));
            let _ended = copy_bidirectional(&mut from, &mut to).await;
        });
    }
}

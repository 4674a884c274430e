//! A Service as kube-proxy makes one: every new connection goes to a replica that was ready when
//! it was last looked at, so one that died is in it until the next look.
//!
//! Fed by: addresses of replicas, and their `/readyz`. Must not: try a second replica for a
//! connection that the first refused; kube-proxy does not.

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

/// Between two looks at a replica. The kubelet sees within a second that a container died.
const LOOK: Duration = Duration::from_secs(1);

/// One replica.
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
    /// Listens, and looks at the replicas: where each serves, and where its `/readyz` is.
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
            tasks.push(tokio::spawn(look(all.clone(), index, *admin)));
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

async fn look(all: Arc<Vec<Replica>>, index: usize, admin: SocketAddr) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = timeout(LOOK, http::get(admin, "/readyz")).await;
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

//! Two replicas, each a kube-scheduler and its extender, restarted as the kubelet restarts
//! containers. Each extender reaches the API server through a proxy that can lose responses. Only
//! kube-scheduler writes the Lease.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_cluster::until;
use aliquot_cluster::wait::{OrNotYet as _, PATIENCE, eventually};
use aliquot_cluster::{Part, Replica};
use aliquot_e2e::figures::print_line;
use aliquot_e2e::http;
use aliquot_e2e::proxy::Proxy;
use aliquot_e2e::stack::{Kind, NAMESPACE, Stack};
use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::places::{Place, Victims};

/// The Lease's name, as the chart's rights have it.
const LEASE: &str = "aliquot-scheduler";
/// Seconds that it lasts, that it is tried to renew it, and between two tries.
const TIMES: (u32, u32, u32) = (10, 8, 1);
/// A container that ran well is started again at once; it takes this long.
const RESTART: Duration = Duration::from_millis(500);
const EVERY: Duration = Duration::from_millis(50);
/// Names the file by which a fail-point is armed.
const CONTROL: &str = "ALIQUOT_FAIL_POINT_FILE";
/// The build with fail-points.
const PROGRAM: &str = "aliquot-scheduler-chaos";

/// One process of a replica.
enum ProcessState {
    Runs(Part),
    Ended(Instant),
    /// Killed, and not started again before it is released.
    Held,
}

/// One replica.
pub struct Pair {
    /// Its pod's name.
    pub name: &'static str,
    /// Where its extender listens.
    pub address: SocketAddr,
    /// The proxy between its extender and the API server.
    pub proxy: Proxy,
    control: PathBuf,
    extender: Mutex<ProcessState>,
    scheduler: Mutex<ProcessState>,
}

/// Both replicas.
pub struct Replicas {
    stack: Arc<Stack>,
    program: PathBuf,
    kubeconfig: PathBuf,
    pairs: Vec<Pair>,
    leases: Api<Lease>,
    /// Further arguments of each kube-scheduler.
    scheduler_args: Vec<String>,
}

impl Replicas {
    /// Starts both and waits until one of them leads.
    pub async fn start(
        stack: Arc<Stack>,
        stop: CancellationToken,
        scheduler_args: &[&str],
    ) -> Result<Arc<Self>> {
        let kubeconfig = stack.kubeconfig(Kind::Scheduler).await?;
        let program = stack.program(Kind::Scheduler).with_file_name(PROGRAM);
        ensure!(program.is_file(), "no {}: make build", program.display());
        let mut pairs = Vec::new();
        for (name, port) in [("replica-a", 0), ("replica-b", 9)] {
            pairs.push(Pair {
                name,
                address: stack.cluster.part_address(port),
                proxy: Proxy::start(&kubeconfig).await?,
                control: stack
                    .write(&format!("{name}.spent"), "")?
                    .with_extension("armed"),
                extender: Mutex::new(ProcessState::Ended(Instant::now())),
                scheduler: Mutex::new(ProcessState::Ended(Instant::now())),
            });
        }
        let replicas = Arc::new(Self {
            leases: Api::namespaced(stack.cluster.admin()?, NAMESPACE),
            stack,
            program,
            kubeconfig,
            pairs,
            scheduler_args: scheduler_args.iter().map(|arg| (*arg).to_owned()).collect(),
        });
        tokio::spawn(replicas.clone().keep_alive(stop));
        replicas.leader().await?;
        Ok(replicas)
    }

    /// Both.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// The other one.
    pub fn other(&self, pair: &Pair) -> Result<&Pair> {
        let other = self.pairs.iter().find(|other| other.name != pair.name);
        other.context("there are two")
    }

    /// Waits until a replica has the lease, is whole, and reports that it leads.
    pub async fn leader(&self) -> Result<&Pair> {
        self.leader_after("").await
    }

    /// The same; the lease's holder is another than this dead one.
    pub async fn leader_after(&self, dead: &str) -> Result<&Pair> {
        eventually(PATIENCE, "a replica that leads", || async {
            let holder = self.holder().await?;
            let mut pairs = self.pairs.iter();
            let pair = pairs.find(|pair| pair.is_named_in(&holder));
            let pair = pair.filter(|_| holder != dead);
            let pair = pair
                .with_context(|| format!("{holder:?} holds the lease"))
                .or_not_yet()?;
            pair.pids().or_not_yet()?;
            let leads = http::metric(pair.address, "aliquot_scheduler_leads", &[])
                .await
                .or_not_yet()?;
            until!(leads > 0.5, "{holder} does not lead yet");
            Ok(Some(pair))
        })
        .await
    }

    /// Waits until both replicas are whole and have listed.
    pub async fn whole(&self) -> Result<()> {
        eventually(PATIENCE, "two whole replicas", || async {
            for pair in &self.pairs {
                pair.pids().or_not_yet()?;
                http::get(pair.address, "/readyz").await.or_not_yet()?;
            }
            Ok(Some(()))
        })
        .await
    }

    /// The identity of the kube-scheduler that has the lease; nothing before the first one made it.
    pub async fn holder(&self) -> Result<String> {
        let lease = self.leases.get_opt(LEASE).await.context("the Lease")?;
        let spec = lease.and_then(|lease| lease.spec);
        Ok(spec.and_then(|s| s.holder_identity).unwrap_or_default())
    }

    async fn keep_alive(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            for pair in &self.pairs {
                let started = restart_if_due(&pair.extender, || self.start_extender(pair))
                    .and_then(|()| restart_if_due(&pair.scheduler, || self.start_scheduler(pair)));
                if let Err(error) = started {
                    print_line(&format!("{} not started: {error:#}", pair.name));
                }
            }
        }
    }

    fn start_extender(&self, pair: &Pair) -> Result<Part> {
        let listen = pair.address.to_string();
        let kubeconfig = pair.proxy.kubeconfig().to_string_lossy();
        let lease = format!("{NAMESPACE}/{LEASE}");
        let args = [
            ("--kubeconfig", &*kubeconfig),
            ("--listen", &listen),
            ("--scheduler-lease", &lease),
            ("--identity", pair.name),
            // The default is too long to wait for in each run.
            ("--evict-after", "3"),
        ];
        let args: Vec<&str> = args
            .iter()
            .flat_map(|(flag, value)| [*flag, value])
            .collect();
        let control = pair.control.to_string_lossy();
        let name = format!("extender-{}", pair.name);
        let env = [(CONTROL, &*control)];
        self.stack
            .cluster
            .start_part(&name, &self.program, &args, &env)
    }

    fn start_scheduler(&self, pair: &Pair) -> Result<Part> {
        self.stack.cluster.start_replica(Replica {
            name: pair.name,
            extender: pair.address,
            lease: (NAMESPACE, LEASE),
            times: TIMES,
            kubeconfig: &self.kubeconfig,
            args: &self.scheduler_args,
        })
    }
}

impl Pair {
    /// Whether this holder of the lease is its kube-scheduler, one of them.
    pub fn is_named_in(&self, holder: &str) -> bool {
        let rest = holder.strip_prefix(self.name);
        rest.is_some_and(|rest| rest.starts_with('_'))
    }

    /// The processes of extender and kube-scheduler, when both live.
    fn pids(&self) -> Result<(u32, u32)> {
        match (&*self.extender.lock(), &*self.scheduler.lock()) {
            (ProcessState::Runs(extender), ProcessState::Runs(scheduler)) => {
                extender.check()?;
                scheduler.check()?;
                Ok((extender.pid(), scheduler.pid()))
            }
            _ => bail!("a process of {} is not running", self.name),
        }
    }

    /// From now on the `passage`th passage of `place` kills these. Returns the processes that live
    /// now.
    pub fn arm(&self, place: Place, passage: u32, victims: Victims) -> Result<(u32, u32)> {
        let (extender, scheduler) = self.pids()?;
        let pids = match victims {
            Victims::Extender => extender.to_string(),
            Victims::KubeScheduler => scheduler.to_string(),
            Victims::Both => format!("{extender} {scheduler}"),
        };
        let fired = self.control.with_extension("fired");
        if fired.exists() {
            std::fs::remove_file(&fired)?;
        }
        let order = self.control.with_extension("order");
        std::fs::write(&order, format!("{} {passage} {pids}", place.name))?;
        std::fs::rename(order, &self.control)?;
        Ok((extender, scheduler))
    }

    /// Takes the order back, if it was not passed. Whether it was there.
    pub fn disarm(&self) -> bool {
        std::fs::remove_file(&self.control).is_ok()
    }

    /// Whether the armed place was passed and not all of these live any more.
    pub fn fired(&self, armed: (u32, u32)) -> bool {
        let fired = self.control.with_extension("fired").exists();
        fired && self.pids().ok() != Some(armed)
    }

    /// Kills both processes now; they stay down until they are released.
    pub async fn kill(&self) -> Result<()> {
        for process in [&self.scheduler, &self.extender] {
            let life = std::mem::replace(&mut *process.lock(), ProcessState::Held);
            if let ProcessState::Runs(part) = life {
                part.kill().await?;
            }
        }
        Ok(())
    }

    /// Lets killed processes be started again.
    pub fn release(&self) {
        for process in [&self.scheduler, &self.extender] {
            let mut life = process.lock();
            if matches!(*life, ProcessState::Held) {
                *life = ProcessState::Ended(Instant::now());
            }
        }
    }
}

/// Restarts a process that ended a while ago.
fn restart_if_due(
    process: &Mutex<ProcessState>,
    start: impl FnOnce() -> Result<Part>,
) -> Result<()> {
    let mut life = process.lock();
    match &*life {
        ProcessState::Runs(part) if part.check().is_err() => {
            *life = ProcessState::Ended(Instant::now());
        }
        ProcessState::Ended(at) if at.elapsed() >= RESTART => *life = ProcessState::Runs(start()?),
        ProcessState::Runs(_) | ProcessState::Ended(_) | ProcessState::Held => {}
    }
    Ok(())
}

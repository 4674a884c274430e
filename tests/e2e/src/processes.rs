//! All processes of a cluster with a node, Kubernetes' and ours: killed and started in any order,
//! and restarted as the kubelet and the host's init system do it, at most once a second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_cluster::Member;
use aliquot_cluster::not_yet;
use aliquot_cluster::wait::{OrNotYet as _, eventually};
use anyhow::{Result, bail};
use futures::future::join_all;

use crate::agent::NodeOptions;
use crate::http;
use crate::stack::{Kind, Stack};

/// Between two starts of a process that ends by itself.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a process may take to come up before the next one is started all the same.
const MOMENT: Duration = Duration::from_secs(2);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    /// Kubernetes' or the runtime.
    Cluster(Member),
    /// Ours.
    Ours(Kind),
}

impl Process {
    /// All of them, in the order of a machine's boot.
    pub fn all() -> Vec<Self> {
        let cluster = Member::ALL.map(Self::Cluster);
        let ours = Kind::ALL.map(Self::Ours);
        cluster.into_iter().chain(ours).collect()
    }
}

/// Restarts processes that end.
pub struct ProcessSupervisor<'a> {
    stack: &'a Stack,
    options: NodeOptions,
    /// The started processes, and since when.
    started: BTreeMap<Process, Instant>,
    /// Starts that were not the first.
    pub restarts: u32,
}

impl<'a> ProcessSupervisor<'a> {
    /// Nothing is started yet.
    pub fn new(stack: &'a Stack, options: NodeOptions) -> Self {
        Self {
            stack,
            options,
            started: BTreeMap::new(),
            restarts: 0,
        }
    }

    /// Kills one of them (-9).
    pub async fn end(&self, process: Process) -> Result<()> {
        match process {
            Process::Cluster(member) => self.stack.cluster.kill_member(member).await,
            Process::Ours(kind) => self.stack.kill(kind).await,
        }
    }

    /// Starts one, gives it a moment, and restarts those that ended meanwhile.
    pub async fn start(&mut self, process: Process) -> Result<()> {
        self.launch(process).await?;
        let until = Instant::now() + MOMENT;
        let mut ticks = tokio::time::interval(MOMENT / 20);
        while Instant::now() < until && !self.is_up(process).await {
            ticks.tick().await;
            self.restart_ended().await?;
        }
        Ok(())
    }

    /// Waits until all that were started are up at the same time.
    pub async fn all_up(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        let mut ticks = tokio::time::interval(MOMENT / 20);
        loop {
            ticks.tick().await;
            self.restart_ended().await?;
            let all: Vec<Process> = self.started.keys().copied().collect();
            let up = join_all(all.iter().map(|one| self.is_up(*one))).await;
            let down = all.iter().zip(up).filter(|(_, up)| !up);
            let down: Vec<Process> = down.map(|(one, _)| *one).collect();
            if down.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("{down:?} did not come up within {patience:?}");
            }
        }
    }

    async fn restart_ended(&mut self) -> Result<()> {
        let due = |(_, since): &(&Process, &Instant)| since.elapsed() > PAUSE;
        let due = self.started.iter().filter(due);
        let due: Vec<Process> = due.map(|(process, _)| *process).collect();
        for process in due {
            if self.launch(process).await? {
                self.restarts += 1;
            }
        }
        Ok(())
    }

    /// Starts it where it does not run.
    async fn launch(&mut self, process: Process) -> Result<bool> {
        let stack = self.stack;
        let away = match process {
            Process::Cluster(member) => stack.cluster.ensure_member(member)?,
            Process::Ours(kind) if stack.runs(kind).await => false,
            Process::Ours(kind) => {
                match kind {
                    Kind::Scheduler => {
                        let kubeconfig = stack.kubeconfig(kind).await?;
                        stack.launch_scheduler(&kubeconfig, &[]).await?;
                    }
                    Kind::Webhook => stack.launch_webhook(&[]).await?,
                    Kind::DevicePlugin => stack.start_device_plugin_unready(&self.options).await?,
                    Kind::Monitor => stack.launch_monitor().await?,
                }
                true
            }
        };
        if away || !self.started.contains_key(&process) {
            self.started.insert(process, Instant::now());
        }
        Ok(away)
    }

    async fn is_up(&self, process: Process) -> bool {
        match process {
            Process::Cluster(member) => self.stack.cluster.listens(member).await,
            Process::Ours(kind) => http::get(self.stack.address(kind), "/readyz").await.is_ok(),
        }
    }
}

/// Waits until the API server answers again and the node is ready.
pub async fn node_is_ready(stack: &Stack, patience: Duration) -> Result<()> {
    let jsonpath = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    let args = ["get", "node", crate::stack::NODE, "-o", jsonpath];
    eventually(patience, "the node to be ready", || async {
        let answer = stack.cluster.kubectl(&args).await?.success().or_not_yet()?;
        if answer != "True" {
            not_yet!("Ready is {answer:?}");
        }
        Ok(Some(()))
    })
    .await
}

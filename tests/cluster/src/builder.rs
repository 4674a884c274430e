//! The options of a cluster, and its start.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::binaries;
use crate::cluster::{Cluster, Options};
use crate::control_plane;
use crate::layout::{Layout, MARKER};
use crate::ports::Ports;
use crate::scheduler_config::SchedulerOptions;
use crate::watchdog::{DOWN, Logs, Watchdog};

/// The real node's name.
pub const NODE: &str = "node-1";

/// A cluster to be started.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub struct Builder {
    node: Option<String>,
    extender: bool,
    scheduler: bool,
    apiserver_args: Vec<String>,
    controller_manager_args: Vec<String>,
    scheduler_args: Vec<String>,
    chart_values: Vec<(String, Value)>,
    scheduler_rate: Option<(u32, u32)>,
    user_namespaces: bool,
    serves_pods: bool,
    state: Option<PathBuf>,
    detached: bool,
}

impl Cluster {
    /// etcd, kube-apiserver, kube-controller-manager and kube-scheduler; nodes are
    /// made up with [`Cluster::fake_node`].
    pub fn control_plane() -> Builder {
        Builder {
            node: None,
            extender: false,
            scheduler: true,
            apiserver_args: Vec::new(),
            controller_manager_args: Vec::new(),
            scheduler_args: Vec::new(),
            chart_values: Vec::new(),
            scheduler_rate: None,
            user_namespaces: false,
            serves_pods: false,
            state: None,
            detached: false,
        }
    }

    /// The same with a real node: containerd and the kubelet. Needs root.
    pub fn with_node() -> Builder {
        Builder {
            node: Some(NODE.to_owned()),
            ..Self::control_plane()
        }
    }

    /// Takes down the cluster in this folder, whoever started it; nothing happens
    /// where there is none.
    ///
    /// # Errors
    /// Something could not be ended.
    pub async fn stop_at(state: &Path) -> Result<()> {
        down(state, Logs::Remove).await
    }
}

impl Builder {
    /// kube-scheduler calls an extender at [`Cluster::extender_address`]: a port of
    /// this cluster's own, so that several can run side by side.
    #[must_use]
    pub fn extender(mut self) -> Self {
        self.extender = true;
        self
    }

    /// No kube-scheduler is started: tests start replicas, see [`crate::Replica`].
    #[must_use]
    pub fn without_scheduler(mut self) -> Self {
        self.scheduler = false;
        self
    }

    /// A further argument of kube-apiserver.
    #[must_use]
    pub fn apiserver_arg(mut self, arg: &str) -> Self {
        self.apiserver_args.push(arg.to_owned());
        self
    }

    /// A further argument of kube-controller-manager.
    #[must_use]
    pub fn controller_manager_arg(mut self, arg: &str) -> Self {
        self.controller_manager_args.push(arg.to_owned());
        self
    }

    /// A further argument of kube-scheduler.
    #[must_use]
    pub fn scheduler_arg(mut self, arg: &str) -> Self {
        self.scheduler_args.push(arg.to_owned());
        self
    }

    /// Another value for kube-scheduler's configuration than the chart's, by its
    /// path, such as `scheduler.cpuOnly`.
    #[must_use]
    pub fn chart_value(mut self, path: &str, value: Value) -> Self {
        self.chart_values.push((path.to_owned(), value));
        self
    }

    /// kube-scheduler's requests per second to the API server, and the burst.
    #[must_use]
    pub fn scheduler_rate(mut self, rate: u32, burst: u32) -> Self {
        self.scheduler_rate = Some((rate, burst));
        self
    }

    /// The node has a second runtime, [`crate::USERS`], for pods with `hostUsers: false`.
    #[must_use]
    pub fn user_namespaces(mut self) -> Self {
        self.user_namespaces = true;
        self
    }

    /// Pods reach the API server at the Service `kubernetes`, whose address this machine has while
    /// the cluster runs.
    #[must_use]
    pub fn serve_pods(mut self) -> Self {
        self.serves_pods = true;
        self
    }

    /// The state directory (default: a new one under /tmp); at most 60 bytes. A cluster that an
    /// interrupted run left there is taken down first.
    #[must_use]
    pub fn state(mut self, folder: &Path) -> Self {
        self.state = Some(folder.to_owned());
        self
    }

    /// The cluster outlives this process, until [`Cluster::stop_at`].
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.detached = true;
        self
    }

    /// Starts it and waits until it can be used.
    ///
    /// # Errors
    /// A step failed; whatever was started is ended again, the logs stay and the
    /// error names them.
    pub async fn start(self) -> Result<Cluster> {
        let binaries = binaries::folder().await?;
        let users = if self.user_namespaces {
            Some(binaries::runc().await?)
        } else {
            None
        };
        let layout = self.layout().await?;
        let (ports, lock) = Ports::choose(layout.root())?;
        layout.create()?;
        let watchdog = if self.detached {
            std::fs::write(layout.at("down.sh"), DOWN)?;
            None
        } else {
            Some(Watchdog::start(&layout)?)
        };
        let server = control_plane::api_url(ports, self.serves_pods);
        let node = self.node.as_deref().unwrap_or("none");
        certificates(&binaries, &layout, &server, node).await?;
        let extender = self.extender.then(|| format!("http://{}", ports.part(0)));
        let options = Options {
            node: self.node,
            serves_pods: self.serves_pods,
            users,
            apiserver_args: self.apiserver_args,
            controller_manager_args: self.controller_manager_args,
            scheduler: self.scheduler.then_some(SchedulerOptions {
                extender,
                values: self.chart_values,
                rate: self.scheduler_rate,
                args: self.scheduler_args,
            }),
        };
        let cluster = Cluster::assemble(layout.clone(), ports, options, binaries, watchdog).await?;
        if let Err(error) = Box::pin(cluster.bring_up(lock)).await {
            drop(cluster);
            if self.detached {
                down(layout.root(), Logs::Keep).await?;
            }
            return Err(error.context(format!("start a cluster (logs: {})", layout.text("log"))));
        }
        Ok(cluster)
    }

    async fn layout(&self) -> Result<Layout> {
        let Some(folder) = &self.state else {
            // A hook of a container with its own user namespace runs from below it.
            let open = std::fs::Permissions::from_mode(0o711);
            let folder = tempfile::Builder::new()
                .prefix("alq-")
                .permissions(open)
                .tempdir_in("/tmp")?;
            return Layout::new(&folder.keep());
        };
        let layout = Layout::new(folder)?;
        down(layout.root(), Logs::Remove).await?;
        std::fs::create_dir_all(layout.root())?;
        for entry in std::fs::read_dir(layout.root())? {
            let name = entry?.file_name();
            if name != "log" && name != "down.sh" {
                bail!(
                    "state folder {} holds {}; it must be empty or a cluster's",
                    layout.root().display(),
                    name.display()
                );
            }
        }
        Ok(layout)
    }
}

async fn down(state: &Path, logs: Logs) -> Result<()> {
    if !state.join(MARKER).exists() {
        return Ok(());
    }
    let output = tokio::process::Command::new("bash")
        .args(["-c", DOWN, "down.sh"])
        .arg(state)
        .arg(logs.word())
        .output()
        .await
        .context("run down.sh")?;
    if !output.status.success() {
        bail!(
            "something of the cluster in {} is left: {}",
            state.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

async fn certificates(binaries: &Path, layout: &Layout, server: &str, node: &str) -> Result<()> {
    let output = tokio::process::Command::new(binaries.join("clustertool"))
        .args(["certs", "-server", server, "-node", node, "-dir"])
        .arg(layout.at("pki"))
        .kill_on_drop(true)
        .output()
        .await
        .context("run clustertool certs")?;
    if !output.status.success() {
        bail!(
            "clustertool certs: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

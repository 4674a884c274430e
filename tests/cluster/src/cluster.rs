//! The running cluster as a value: its start, its places, its end.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::GetParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::Value;

use crate::daemons::{Daemon, Daemons};
use crate::layout::Layout;
use crate::machine;
use crate::members::Member;
use crate::ports::{Ports, Role};
use crate::process::Program;
use crate::scheduler_config::{self, SchedulerOptions};
use crate::wait::{OrNotYet as _, eventually};
use crate::watchdog::{Logs, Watchdog};

/// How long a component may take to come up on a busy machine.
pub(crate) const START: Duration = Duration::from_mins(4);

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) node: Option<String>,
    /// The API server has the Service's address.
    pub(crate) serves_pods: bool,
    /// The runc for pods with user namespaces of their own.
    pub(crate) users: Option<PathBuf>,
    /// Absent where no kube-scheduler runs from the start.
    pub(crate) scheduler: Option<SchedulerOptions>,
    pub(crate) apiserver_args: Vec<String>,
    pub(crate) controller_manager_args: Vec<String>,
}

/// A running cluster. It ends with this value: [`Cluster::stop`] is the end of a
/// success; a mere drop counts as a failure, and the logs stay. Tests with runtimes
/// of their own can share it: it has no connection.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) layout: Layout,
    pub(crate) ports: Ports,
    pub(crate) options: Options,
    pub(crate) binaries: PathBuf,
    pub(crate) daemons: Daemons,
    /// etcd's, so that the ports stay this cluster's while etcd is away.
    port_lock: Mutex<Option<File>>,
    config: kube::Config,
    watchdog: Option<Watchdog>,
}

impl Cluster {
    pub(crate) async fn assemble(
        layout: Layout,
        ports: Ports,
        options: Options,
        binaries: PathBuf,
        watchdog: Option<Watchdog>,
    ) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(layout.at("pki/admin.kubeconfig"))?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let daemons = Daemons::new(layout.clone());
        Ok(Self {
            layout,
            ports,
            options,
            binaries,
            daemons,
            port_lock: Mutex::default(),
            config,
            watchdog,
        })
    }

    /// Starts everything; etcd holds the lock on the ports from here on.
    pub(crate) async fn bring_up(&self, port_lock: File) -> Result<()> {
        match &self.options.node {
            None => Box::pin(self.start_control_plane(port_lock)).await,
            Some(node) => {
                let lock = machine::join_nodes()?;
                tokio::try_join!(
                    Box::pin(self.start_control_plane(port_lock)),
                    Box::pin(self.start_runtime(lock))
                )?;
                self.start_kubelet().await?;
                self.node_ready(node).await
            }
        }
    }

    async fn start_control_plane(&self, port_lock: File) -> Result<()> {
        *self.port_lock.lock() = Some(port_lock);
        self.launch(Member::Etcd)?;
        if self.options.serves_pods {
            let address = format!("{}/32", self.ports.service());
            std::fs::write(self.layout.at("run/service"), &address)?;
            let add = ["address", "replace", &address, "dev", "lo"];
            self.tool("ip".as_ref(), &add).await?.success()?;
        }
        self.start_apiserver().await?;
        self.launch(Member::ControllerManager)?;
        if let Some(options) = &self.options.scheduler {
            self.configure_scheduler(options)?;
            self.start_scheduler().await?;
        }
        self.default_service_account("default", Daemon::ControllerManager)
            .await
    }

    pub(crate) async fn default_service_account(&self, namespace: &str, by: Daemon) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin()?, namespace);
        let what = format!("the default service account of namespace {namespace}");
        eventually(START, &what, || async {
            self.daemons.check(by)?;
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        Ok(())
    }

    async fn start_apiserver(&self) -> Result<()> {
        self.launch(Member::ApiServer)?;
        let client = self.admin()?;
        eventually(START, "kube-apiserver's /readyz", || async {
            self.daemons.check(Daemon::Etcd)?;
            self.daemons.check(Daemon::ApiServer)?;
            let request = Request::new("").get("readyz", &GetParams::default())?;
            Ok(Some(client.request_text(request).await.or_not_yet()?))
        })
        .await?;
        Ok(())
    }

    /// Starts kube-scheduler (again), its queue and cache new.
    ///
    /// # Errors
    /// It runs already, or does not come up.
    pub async fn start_scheduler(&self) -> Result<()> {
        self.launch(Member::Scheduler)?;
        self.listening(Daemon::Scheduler, Role::Scheduler).await
    }

    /// Kills kube-scheduler and starts it again, its queue and cache new.
    ///
    /// # Errors
    /// It was not running, or does not come up again.
    pub async fn restart_scheduler(&self) -> Result<()> {
        self.daemons.kill(Daemon::Scheduler).await?;
        self.start_scheduler().await
    }

    /// [`Cluster::restart_scheduler`] with these values of the chart beside those that it was
    /// made with; without any as it was.
    ///
    /// # Errors
    /// As [`Cluster::restart_scheduler`], or the chart has no such value.
    pub async fn restart_scheduler_with(&self, values: &[(&str, Value)]) -> Result<()> {
        let options = self.options.scheduler.as_ref();
        let mut options = options.context("no kube-scheduler")?.clone();
        let values = values.iter();
        options
            .values
            .extend(values.map(|(path, value)| ((*path).to_owned(), value.clone())));
        self.configure_scheduler(&options)?;
        self.restart_scheduler().await
    }

    /// [`Cluster::restart_scheduler`] with this configuration.
    ///
    /// # Errors
    /// As [`Cluster::restart_scheduler`].
    pub async fn restart_scheduler_as(&self, config: &Value) -> Result<()> {
        std::fs::write(self.layout.at("scheduler.yaml"), config.to_string())?;
        self.restart_scheduler().await
    }

    fn configure_scheduler(&self, options: &SchedulerOptions) -> Result<()> {
        let kubeconfig = self.layout.text("pki/scheduler.kubeconfig");
        let config = scheduler_config::configuration(&kubeconfig, options)?;
        let path = self.layout.at("scheduler.yaml");
        Ok(std::fs::write(path, config.to_string())?)
    }

    /// The process id of one of the cluster's own processes, named as its log:
    /// `etcd`, `apiserver`, `scheduler` and so on.
    ///
    /// # Errors
    /// It is not running.
    pub fn pid(&self, name: &str) -> Result<u32> {
        self.daemons.pid(name)
    }

    /// Waits until the daemon listens on its port.
    pub(crate) async fn listening(&self, daemon: Daemon, role: Role) -> Result<()> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.ports.port(role)));
        let what = format!("{} to listen on {address}", daemon.name());
        eventually(START, &what, || async {
            self.daemons.check(daemon)?;
            Ok(Some(
                tokio::net::TcpStream::connect(address).await.or_not_yet()?,
            ))
        })
        .await?;
        Ok(())
    }

    /// The lock on the ports, for etcd to hold as well.
    pub(crate) fn port_lock(&self) -> Result<Option<File>> {
        let lock = self.port_lock.lock();
        Ok(lock.as_ref().map(File::try_clone).transpose()?)
    }

    pub(crate) fn kubebox(&self, args: Vec<String>) -> Program {
        Program::new(self.binaries.join("kubebox"), args)
    }

    /// A new client with all rights, for the runtime that calls.
    ///
    /// # Errors
    /// The TLS set-up failed.
    pub fn admin(&self) -> Result<Client> {
        Client::try_from(self.config.clone()).context("make a client")
    }

    /// Ends the cluster and removes its folder.
    ///
    /// # Errors
    /// Something is left; the logs stay then.
    pub async fn stop(mut self) -> Result<()> {
        let watchdog = self.watchdog.take();
        ensure!(
            watchdog.is_some(),
            "a detached cluster is stopped by Cluster::stop_at({})",
            self.layout.root().display()
        );
        if let Some(watchdog) = watchdog {
            tokio::task::spawn_blocking(|| watchdog.finish(Logs::Remove)).await??;
        }
        self.daemons.reap();
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            let ended = watchdog.finish(Logs::Keep);
            self.daemons.reap();
            report(&self.layout, ended);
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "a failed test run must report where its logs are"
)]
fn report(layout: &Layout, ended: Result<()>) {
    if let Err(error) = ended {
        eprintln!("cluster not taken down cleanly: {error:#}");
    }
    eprintln!("cluster logs are in {}", layout.text("log"));
}

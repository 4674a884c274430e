//! The cluster's processes one by one: killed, and started without waiting for each other, as after
//! a power failure. The caller chooses the order.

use anyhow::{Context as _, Result};
use tokio::net::{TcpStream, UnixStream};

use crate::cluster::Cluster;
use crate::control_plane;
use crate::daemons::Daemon;
use crate::ports::Role;
use crate::process::Program;

/// Gives the API server a hosts file of its own, in which the node's name resolves
/// to loopback, where the kubelet listens (`kubectl logs` and `exec` need it).
const WITH_HOSTS: &str = r#"mount --bind "$1" /etc/hosts && shift && exec "$@""#;

/// A process of the cluster that can end and come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// With its data on disk.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// The runtime; containers run on without it.
    Containerd,
    /// The kubelet; containers run on without it.
    Kubelet,
}

impl Member {
    /// All of a cluster with a node.
    pub const ALL: [Self; 6] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Containerd,
        Self::Kubelet,
    ];

    fn daemon(self) -> Daemon {
        match self {
            Self::Etcd => Daemon::Etcd,
            Self::ApiServer => Daemon::ApiServer,
            Self::ControllerManager => Daemon::ControllerManager,
            Self::Scheduler => Daemon::Scheduler,
            Self::Containerd => Daemon::Containerd,
            Self::Kubelet => Daemon::Kubelet,
        }
    }
}

impl Cluster {
    /// Kills it (-9); everything else runs on.
    ///
    /// # Errors
    /// It was not running.
    pub async fn kill_member(&self, member: Member) -> Result<()> {
        self.daemons.kill(member.daemon()).await
    }

    /// Starts it where it does not run, and waits for nothing. Whether it had to be started.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn ensure_member(&self, member: Member) -> Result<bool> {
        let away = !self.daemons.runs(member.daemon())?;
        if away {
            self.launch(member)?;
        }
        Ok(away)
    }

    /// Whether it accepts connections.
    pub async fn listens(&self, member: Member) -> bool {
        let role = match member {
            Member::Etcd => Role::Etcd,
            Member::ApiServer => {
                let address = control_plane::api_address(self.ports, self.options.serves_pods);
                return TcpStream::connect(address).await.is_ok();
            }
            Member::ControllerManager => Role::ControllerManager,
            Member::Scheduler => Role::Scheduler,
            Member::Kubelet => Role::KubeletHealth,
            Member::Containerd => {
                return UnixStream::connect(self.containerd_socket()).await.is_ok();
            }
        };
        let address = ("127.0.0.1", self.ports.port(role));
        TcpStream::connect(address).await.is_ok()
    }

    /// Starts it, configured by its files, and waits for nothing.
    pub(crate) fn launch(&self, member: Member) -> Result<()> {
        let program = match member {
            Member::Etcd => {
                let mut etcd = self.kubebox(control_plane::etcd(&self.layout, self.ports));
                etcd.lock = self.port_lock()?;
                etcd
            }
            Member::ApiServer => self.apiserver()?,
            Member::ControllerManager => {
                let (node, extra) = (
                    self.options.node.is_some(),
                    &self.options.controller_manager_args,
                );
                self.kubebox(control_plane::controller_manager(
                    &self.layout,
                    self.ports,
                    node,
                    extra,
                ))
            }
            Member::Scheduler => {
                let options = self.options.scheduler.as_ref();
                let extra = options.map_or_else(Vec::new, |options| options.args.clone());
                self.kubebox(control_plane::scheduler(&self.layout, self.ports, &extra))
            }
            Member::Containerd => {
                let config = self.layout.text("containerd/config.toml");
                let args = vec!["--config".into(), config];
                self.inside(&self.binaries.join("containerd"), args)?
            }
            Member::Kubelet => self.kubelet()?,
        };
        self.daemons.start(member.daemon(), program)
    }

    fn apiserver(&self) -> Result<Program> {
        let node = self.options.node.as_deref();
        let extra = &self.options.apiserver_args;
        let for_pods = self.options.serves_pods;
        let args =
            control_plane::apiserver(&self.layout, self.ports, node.is_some(), for_pods, extra);
        let mut program = self.kubebox(args);
        if let Some(node) = node {
            std::fs::write(
                self.layout.at("hosts"),
                format!("127.0.0.1 localhost {node}\n"),
            )?;
            let mut args: Vec<String> = [
                "-m",
                "--propagation",
                "private",
                "sh",
                "-c",
                WITH_HOSTS,
                "sh",
            ]
            .map(Into::into)
            .into();
            args.push(self.layout.text("hosts"));
            args.push(program.path.to_string_lossy().into_owned());
            args.append(&mut program.args);
            program = Program::new("unshare", args);
        }
        Ok(program)
    }

    fn kubelet(&self) -> Result<Program> {
        let node = self.options.node.as_deref();
        let node = node.context("this cluster has no node")?;
        let args = vec![
            "kubelet".into(),
            format!("--config={}", self.layout.text("kubelet.yaml")),
            format!(
                "--kubeconfig={}",
                self.layout.text("pki/kubelet.kubeconfig")
            ),
            format!("--hostname-override={node}"),
            format!("--cert-dir={}", self.layout.text("run/kubelet-pki")),
        ];
        self.inside(&self.binaries.join("kubebox"), args)
    }
}

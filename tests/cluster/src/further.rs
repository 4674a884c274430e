//! Nodes beside the first one: each with its own mount namespace, containerd and kubelet, on the
//! same machine.
//!
//! Their processes are parts, and their files lie in a directory `n1` or `n2` of the state
//! directory with the first node's layout; `down.sh` ends them with the cluster.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::{Cluster, START};
use crate::layout::Layout;
use crate::machine;
use crate::node::MAKE_MOUNTS;
use crate::node_files;
use crate::parts::Part;
use crate::ports::Role;
use crate::wait::eventually;

/// A node beside the first one; it ends with the cluster.
#[derive(Debug)]
pub struct FurtherNode {
    name: String,
    layout: Layout,
    /// Mounts, containerd, kubelet.
    _parts: [Part; 3],
}

impl FurtherNode {
    /// Its Node object's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As [`Cluster::kubelet_dir`].
    pub fn kubelet_dir(&self) -> PathBuf {
        self.layout.at("kubelet")
    }

    /// As [`Cluster::cdi_dir`].
    pub fn cdi_dir(&self) -> PathBuf {
        self.layout.at("cdi")
    }
}

impl Cluster {
    /// Starts the second (`n` = 1) or the third (2) node of a cluster with a node, and
    /// waits until it is ready.
    ///
    /// # Errors
    /// There is no first node or no such place, or a step failed.
    pub async fn further_node(&self, name: &str, n: u16) -> Result<FurtherNode> {
        ensure!(self.options.node.is_some(), "there is no first node");
        let role = match n {
            1 => Role::SecondKubelet,
            2 => Role::ThirdKubelet,
            _ => anyhow::bail!("node {n}: a cluster has places 1 and 2 beside the first node"),
        };
        let place = format!("n{n}");
        let layout = Layout::new(&self.layout.at(&place))?;
        layout.create()?;
        std::os::unix::fs::symlink("../pki", layout.at("pki"))?;
        let cgroup = format!("{}/{place}", self.cgroup());
        machine::make_cgroups(&cgroup)?;

        let mounts = self.make_further_mounts(&layout, &place).await?;
        let inside = |name: &str, program: &Path, args: &[&str]| {
            let (pid, program) = (mounts.pid().to_string(), program.to_string_lossy());
            let mut all = vec!["-t", &pid, "-m", "--", &*program];
            all.extend_from_slice(args);
            self.start_part(&format!("{name}-{place}"), "nsenter".as_ref(), &all, &[])
        };

        let cni = node_files::cni(&layout, self.ports, n).to_string();
        std::fs::write(layout.at("cni/10-local.conflist"), cni)?;
        let config = node_files::containerd(&layout, &self.binaries.to_string_lossy(), None);
        std::fs::write(layout.at("containerd/config.toml"), config)?;
        let config = layout.text("containerd/config.toml");
        let program = self.binaries.join("containerd");
        let containerd = inside("containerd", &program, &["--config", &config])?;
        let socket = layout.at("containerd/c.sock");
        eventually(START, "containerd's socket", || async {
            containerd.check()?;
            Ok(Some(tokio::net::UnixStream::connect(&socket).await?))
        })
        .await?;
        self.hand_on_busybox(&socket.to_string_lossy()).await?;

        self.resolve(name)?;
        let port = self.ports.port(role);
        let config = node_files::kubelet(&layout, (port, 0), &cgroup).to_string();
        std::fs::write(layout.at("kubelet.yaml"), config)?;
        let admin = std::fs::read_to_string(self.kubeconfig())?;
        let acting = node_files::as_kubelet(&admin, name).context("the admin has no user")?;
        std::fs::write(layout.at("kubelet.kubeconfig"), acting)?;
        let args = [
            "kubelet",
            &format!("--config={}", layout.text("kubelet.yaml")),
            &format!("--kubeconfig={}", layout.text("kubelet.kubeconfig")),
            &format!("--hostname-override={name}"),
            &format!("--cert-dir={}", layout.text("run/kubelet-pki")),
        ];
        let kubelet = inside("kubelet", &self.binaries.join("kubebox"), &args)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually(START, "a further kubelet to listen", || async {
            kubelet.check()?;
            Ok(Some(tokio::net::TcpStream::connect(address).await?))
        })
        .await?;
        self.node_ready(name).await?;
        Ok(FurtherNode {
            name: name.to_owned(),
            layout,
            _parts: [mounts, containerd, kubelet],
        })
    }

    async fn make_further_mounts(&self, layout: &Layout, place: &str) -> Result<Part> {
        let root = layout.root().to_string_lossy();
        let args = ["-m", "--propagation", "private", "sh", "-c", MAKE_MOUNTS];
        let mut args = args.to_vec();
        args.extend(["sh", &*root]);
        let name = format!("mounts-{place}");
        let mounts = self.start_part(&name, "unshare".as_ref(), &args, &[])?;
        eventually(START, "a further mount namespace", || async {
            mounts.check()?;
            Ok(layout.at("run/mounted").exists().then_some(()))
        })
        .await?;
        Ok(mounts)
    }

    /// The API server finds the kubelet by the node's name, on loopback; it reads the
    /// file again when it has changed.
    fn resolve(&self, name: &str) -> Result<()> {
        let path = self.layout.at("hosts");
        let hosts = std::fs::read_to_string(&path)?;
        let line = hosts.trim_end();
        // In place: the API server has this very file mounted.
        Ok(std::fs::write(&path, format!("{line} {name}\n"))?)
    }
}

//! The node: mount namespace, containerd, kubelet.
//! `down.sh` finds all of it through `run/node`.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::cluster::{Cluster, START};
use crate::daemons::Daemon;
use crate::machine;
use crate::members::Member;
use crate::node_files;
use crate::not_yet;
use crate::ports::Role;
use crate::process::Program;
use crate::wait::{OrNotYet as _, eventually};

/// The kubelet's device plugin folder is a constant below /var/lib/kubelet, so the
/// node gets a mount namespace with the state's folder there. Every mount of pods
/// and containers is made inside and goes with it. containerd's root is a tmpfs: the
/// state folder may lie on an overlay, on which overlayfs cannot be stacked. Of a pod with a user
/// namespace, runc bind-mounts the device nodes, so that a node for such pods ($2) has its own
/// /dev with those of two GPUs.
const MAKE_MOUNTS: &str = r#"set -e
for d in /var/lib/kubelet /run/containerd /var/lib/cni /var/log/containers; do
  [ -d "$d" ] || { mkdir -p "$d"; echo "$d" >>/tmp/aliquot-cluster/made; }
done
mount --bind "$1/kubelet" /var/lib/kubelet
for d in /run/containerd /var/lib/cni /var/log/containers "$1/containerd/root"; do
  mount -t tmpfs aliquot-cluster "$d"
done
if [ -n "${2:-}" ]; then
  mkdir "$1/dev"
  mount -t tmpfs aliquot-cluster "$1/dev"
  mkdir "$1/dev/upper" "$1/dev/work" "$1/dev/all"
  layers="lowerdir=/dev,upperdir=$1/dev/upper,workdir=$1/dev/work"
  mount -t overlay aliquot-cluster -o "$layers" "$1/dev/all"
  for d in pts shm mqueue hugepages; do
    ! mountpoint -q "/dev/$d" || mount --rbind "/dev/$d" "$1/dev/all/$d"
  done
  mount --rbind "$1/dev/all" /dev
  while read -r name major minor; do
    [ -e "/dev/$name" ] || mknod -m 666 "/dev/$name" c "$major" "$minor"
  done <<NODES
nvidia0 195 0
nvidia1 195 1
nvidiactl 195 255
nvidia-uvm 508 0
nvidia-uvm-tools 508 1
NODES
fi
mount --make-rshared /
: >"$1/run/mounted"
exec sleep 2147483647"#;

impl Cluster {
    /// The node's own cgroup, below the root of each hierarchy.
    pub(crate) fn cgroup(&self) -> String {
        let name = self.layout.root().file_name().unwrap_or_default();
        format!("aliquot-{}", name.display())
    }

    /// Mount namespace, cgroup, containerd, the two images.
    pub(crate) async fn start_runtime(&self, lock: File) -> Result<()> {
        let subnet = self.ports.subnet();
        std::fs::write(
            self.layout.at("run/node"),
            format!("{} {subnet}\n", self.cgroup()),
        )?;
        let mut holder = Program::new("sleep", ["2147483647"]);
        holder.lock = Some(lock);
        self.daemons.start(Daemon::NodeLock, holder)?;
        self.make_mounts().await?;
        machine::make_cgroups(&self.cgroup())?;
        let cni = node_files::cni(&self.layout, self.ports).to_string();
        std::fs::write(self.layout.at("cni/10-local.conflist"), cni)?;
        let config = node_files::containerd(
            &self.layout,
            &self.binaries.to_string_lossy(),
            self.options.users.as_deref(),
        );
        std::fs::write(self.layout.at("containerd/config.toml"), config)?;
        self.start_containerd().await?;
        self.import_busybox().await
    }

    async fn make_mounts(&self) -> Result<()> {
        let args = [
            "-m",
            "--propagation",
            "private",
            "sh",
            "-c",
            MAKE_MOUNTS,
            "sh",
        ];
        let mut program = Program::new("unshare", args);
        program
            .args
            .push(self.layout.root().to_string_lossy().into_owned());
        if self.options.users.is_some() {
            program.args.push("users".to_owned());
        }
        self.daemons.start(Daemon::Mounts, program)?;
        eventually(START, "the node's mount namespace", || async {
            self.daemons.check(Daemon::Mounts)?;
            Ok(self.layout.at("run/mounted").exists().then_some(()))
        })
        .await
    }

    /// A program inside the node's mount namespace.
    pub(crate) fn inside(&self, path: &Path, args: Vec<String>) -> Result<Program> {
        let pid = self.daemons.pid(Daemon::Mounts.name())?.to_string();
        let mut all = vec!["-t".into(), pid, "-m".into(), "--".into()];
        all.push(path.to_string_lossy().into_owned());
        all.extend(args);
        Ok(Program::new("nsenter", all))
    }

    async fn start_containerd(&self) -> Result<()> {
        self.launch(Member::Containerd)?;
        eventually(START, "containerd's socket", || async {
            self.daemons.check(Daemon::Containerd)?;
            Ok(Some(
                tokio::net::UnixStream::connect(self.containerd_socket())
                    .await
                    .or_not_yet()?,
            ))
        })
        .await?;
        Ok(())
    }

    /// Starts the kubelet (again) and waits until it answers.
    ///
    /// # Errors
    /// There is no node, the kubelet runs already, or it does not come up.
    pub async fn start_kubelet(&self) -> Result<()> {
        let ports = [Role::Kubelet, Role::KubeletHealth].map(|role| self.ports.port(role));
        let config = node_files::kubelet(&self.layout, ports.into(), &self.cgroup());
        std::fs::write(self.kubelet_config(), config.to_string())?;
        self.launch(Member::Kubelet)?;
        self.listening(Daemon::Kubelet, Role::KubeletHealth).await
    }

    /// The kubelet's configuration file.
    pub fn kubelet_config(&self) -> std::path::PathBuf {
        self.layout.at("kubelet.yaml")
    }

    /// Kills the kubelet (-9); containers run on.
    ///
    /// # Errors
    /// It was not running.
    pub async fn stop_kubelet(&self) -> Result<()> {
        self.daemons.kill(Daemon::Kubelet).await
    }

    /// [`Cluster::stop_kubelet`] and [`Cluster::start_kubelet`].
    ///
    /// # Errors
    /// It was not running, or does not come up again.
    pub async fn restart_kubelet(&self) -> Result<()> {
        self.stop_kubelet().await?;
        self.start_kubelet().await
    }

    pub(crate) async fn node_ready(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin()?);
        eventually(START, &format!("node {name} to be Ready"), || async {
            self.daemons.check(Daemon::Kubelet)?;
            let status = nodes
                .get(name)
                .await
                .or_not_yet()?
                .status
                .unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            match conditions.iter().find(|c| c.type_ == "Ready") {
                Some(ready) if ready.status == "True" => Ok(Some(())),
                Some(ready) => not_yet!("{}", ready.message.as_deref().unwrap_or("not ready")),
                None => not_yet!("no Ready condition"),
            }
        })
        .await
    }
}

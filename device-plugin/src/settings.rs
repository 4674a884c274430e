//! The agent's flags, each also an environment variable, and the paths that follow from them. Read
//! only at start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use aliquot_core::Scaling;
use aliquot_node_state::checkpoint;
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::XidActions;
use aliquot_profiles::Defaults;
use clap::Parser;

use crate::allocation::environment::NodeRules;
use crate::allocation::tenant_rights::NamespaceRights;
use crate::gpus::device_failures::FailurePodPolicy;
use crate::health::gpus::FailureHandling;
use crate::kubelet::topology;
use crate::paths::{DriverRoot, HOST, Paths};
use crate::selinux::Label;

/// The node agent of Aliquot: publishes and shares one node's GPUs
#[derive(Clone, Debug, Parser)]
#[command(version, about)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Settings {
    /// Kubeconfig of the API server; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the Node object that this agent serves
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The kubelet's root directory
    #[arg(long, env = "ALIQUOT_KUBELET_DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Directory for our CDI specs; the container runtime must read it
    #[arg(long, env = "ALIQUOT_CDI_DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Directory in this container with NVIDIA's nvidia-ctk and nvidia-cdi-hook, which the agent
    /// installs in --exec-dir and by which it generates NVIDIA's CDI spec
    #[arg(
        long,
        env = "ALIQUOT_TOOLKIT",
        default_value = "/usr/local/lib/aliquot"
    )]
    pub toolkit: PathBuf,
    /// containerd's configuration file, where it is not at its default path
    #[arg(long, env = "ALIQUOT_RUNTIME_CONFIG")]
    pub runtime_config: Option<PathBuf>,
    /// The host's root directory as this process sees it; / for an agent that runs outside a container
    #[arg(long, env = "ALIQUOT_HOST_ROOT", default_value = HOST)]
    pub host_root: PathBuf,
    /// Directory where the driver lists the device nodes of MIG instances, as the host has it:
    /// NVIDIA's runtime shows containers only those that existed when they started
    #[arg(
        long,
        env = "ALIQUOT_MIG_CAPABILITIES_DIR",
        default_value = "/proc/1/root/proc/driver/nvidia/capabilities"
    )]
    pub mig_capabilities_dir: PathBuf,
    /// File in which the kernel lists device drivers with their major numbers
    #[arg(long, env = "ALIQUOT_PROC_DEVICES", default_value = "/proc/devices")]
    pub proc_devices: PathBuf,
    /// Directory for accepted allocations and container directories; must survive restarts of the
    /// agent
    #[arg(long, env = "ALIQUOT_STATE_DIR", default_value = "/var/lib/aliquot")]
    pub state_dir: PathBuf,
    /// Directory for the programs that the host runs for containers, under the same path there; it
    /// must not be mounted noexec. Without it --state-dir
    #[arg(long, env = "ALIQUOT_EXEC_DIR")]
    pub exec_dir: Option<PathBuf>,
    /// NVML library to load
    #[arg(
        long,
        env = "ALIQUOT_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1"
    )]
    pub nvml_library: PathBuf,
    /// Root directory of the driver's files in this container; a library without a path is searched
    /// below it
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// The same directory on the host, which CDI specs name
    #[arg(long, env = "ALIQUOT_HOST_DRIVER_ROOT", default_value = "/")]
    pub host_driver_root: PathBuf,
    /// libvgpu.so, which enforces each container's limits; without it nothing is limited
    #[arg(long, env = "ALIQUOT_LIMITER_LIBRARY")]
    pub limiter_library: Option<PathBuf>,
    /// MiB of a GPU that the driver takes for each process that uses it, charged to its container;
    /// without it an estimate for the GPU
    #[arg(long, env = "ALIQUOT_CONTEXT_MEMORY",
          value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub context_memory: Option<u64>,
    /// `SELinux` label of files that containers use: auto (`container_file_t`, where files have
    /// labels), none, or a label
    #[arg(long, env = "ALIQUOT_SELINUX_LABEL", default_value = "auto")]
    pub selinux_label: Label,
    /// Replicas of each GPU: the most containers that share it at the same time
    #[arg(long, env = "ALIQUOT_DEVICE_SPLIT_COUNT", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub device_split_count: u32,
    /// Memory that each GPU advertises, as a multiple of its own
    #[arg(long, env = "ALIQUOT_DEVICE_MEMORY_SCALING", default_value = "1")]
    pub device_memory_scaling: Scaling,
    /// MiB of host memory that may back each GPU that advertises more memory than it has; without
    /// it as much as the GPU advertises
    #[arg(long, env = "ALIQUOT_HOST_MEMORY_RESERVE",
          value_parser = clap::value_parser!(u64).range(..=16_777_216))]
    pub host_memory_reserve: Option<u64>,
    /// Switch compute limits off for every container on this node
    #[arg(long, env = "ALIQUOT_DISABLE_CORE_LIMIT", default_value_t = false, action = clap::ArgAction::Set)]
    pub disable_core_limit: bool,
    /// Kill processes of containers above their memory limit, not only report them, unless a pod
    /// chooses by `ACTIVE_OOM_KILLER`
    #[arg(long, env = "ALIQUOT_OOM_KILLER", default_value_t = false, action = clap::ArgAction::Set)]
    pub oom_killer: bool,
    /// Which of their own limits pods may set
    #[command(flatten)]
    pub namespace_rights: NamespaceRights,
    /// Publish the memory that processes outside every share hold, so that no pod is promised it; for
    /// nodes where the monitor runs
    #[arg(long, env = "ALIQUOT_PUBLISH_UNMANAGED", default_value_t = false, action = clap::ArgAction::Set)]
    pub publish_unmanaged: bool,
    /// Extended resource under which replicas are advertised
    #[arg(long, env = "ALIQUOT_RESOURCE_NAME", default_value = "nvidia.com/gpu")]
    pub resource_name: String,
    /// File, or directory of a mounted `ConfigMap`, with the profiles that define how each node's
    /// GPUs are shared; without it every GPU has the mode `vgpu`
    #[arg(long, env = "ALIQUOT_PROFILES_CONFIG")]
    pub profiles_config: Option<PathBuf>,
    /// Actions for XIDs that differ from NVIDIA's catalogue: `<xid>=<action>,…`, with the XID
    /// `unknown` for all others; actions: ignore, restart-application, reset-gpu, drain-node
    #[arg(
        long,
        env = "ALIQUOT_XID_ACTIONS",
        default_value = "",
        hide_default_value = true
    )]
    pub xid_actions: XidActions,
    /// What happens to the pods on a GPU that is out of service
    #[arg(long, env = "ALIQUOT_SICK_PODS", value_enum, default_value_t = FailurePodPolicy::Keep)]
    pub sick_pods: FailurePodPolicy,
    /// The kubelet's Topology Manager policy; `auto`: as in its configuration file
    #[arg(long, env = "ALIQUOT_TOPOLOGY_POLICY", value_enum, default_value_t = topology::TopologyPolicy::Auto)]
    pub topology_policy: topology::TopologyPolicy,
    /// The kubelet's configuration file and directories of drop-ins, of which a later one overrides an
    /// earlier one; without them `config.yaml` in its root directory. A path that this container does
    /// not have is one on the host
    #[arg(long, env = "ALIQUOT_KUBELET_CONFIG", value_delimiter = ',')]
    pub kubelet_config: Vec<PathBuf>,
    /// Publish GPU memory and compute as capacity of the node
    #[arg(long, env = "ALIQUOT_NODE_CAPACITY", default_value_t = false, action = clap::ArgAction::Set)]
    pub node_capacity: bool,
    /// Name of the resource for memory in MiB, for --node-capacity
    #[arg(
        long,
        env = "ALIQUOT_RESOURCE_MEM",
        default_value = "nvidia.com/gpumem"
    )]
    pub resource_mem: String,
    /// Name of the resource for compute in percent, for --node-capacity
    #[arg(
        long,
        env = "ALIQUOT_RESOURCE_CORES",
        default_value = "nvidia.com/gpucores"
    )]
    pub resource_cores: String,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "ALIQUOT_LISTEN", default_value = "0.0.0.0:9394")]
    pub listen: SocketAddr,
    /// Serve --listen with TLS, and /metrics only to accounts that Kubernetes authenticates and
    /// authorizes
    #[arg(long, env = "ALIQUOT_AUTHENTICATE", default_value_t = false, action = clap::ArgAction::Set)]
    pub authenticate: bool,
    /// Seconds between two housekeeping runs: unused files, lost checkpoints, orphaned pods
    #[arg(long, env = "ALIQUOT_HOUSEKEEPING_SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub housekeeping_seconds: u64,
    /// Seconds between two checks that containers see the MIG instances in their allocation
    #[arg(long, env = "ALIQUOT_AUDIT_SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub audit_seconds: u64,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_device_plugin=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    /// The defaults for what a profile leaves out.
    pub fn defaults(&self) -> Defaults {
        Defaults {
            split: self.device_split_count,
            memory_scaling: self.device_memory_scaling,
        }
    }

    /// What every container on this node inherits.
    pub fn node_rules(&self) -> NodeRules {
        NodeRules {
            oom_killer: self.oom_killer,
            ..NodeRules::new(!self.disable_core_limit)
        }
    }

    pub fn health_policy(&self) -> FailureHandling {
        FailureHandling {
            actions: self.xid_actions.clone(),
            pods: self.sick_pods,
        }
    }

    /// The kubelet's configuration: files and directories of drop-ins, in the order in which they
    /// override each other.
    pub fn kubelet_config(&self) -> Vec<PathBuf> {
        let usual = [self.kubelet_dir.join("config.yaml")];
        let paths = match self.kubelet_config.as_slice() {
            [] => usual.as_slice(),
            given => given,
        };
        paths
            .iter()
            .map(|path| self.here_or_on_host(path))
            .collect()
    }

    /// Where programs are that the host runs.
    pub fn exec_dir(&self) -> &Path {
        self.exec_dir.as_deref().unwrap_or(&self.state_dir)
    }

    pub fn paths(&self) -> Paths {
        let state = StateDirectory(&self.state_dir);
        let plugins = self.kubelet_dir.join("device-plugins");
        Paths {
            checkpoint: plugins.join(checkpoint::FILE),
            plugins,
            cdi: self.cdi_dir.clone(),
            driver_spec: self.state_dir.join("nvidia-cdi/nvidia.json"),
            host_root: self.host_root.clone(),
            capabilities: self.mig_capabilities_dir.clone(),
            proc_devices: self.proc_devices.clone(),
            driver_root: self.driver_root.clone().map(|here| DriverRoot {
                here,
                host: self.host_driver_root.clone(),
            }),
            accepted: state.accepted(),
            layout: self.state_dir.join("layout.json"),
            uncorrected: state.uncorrected(),
            unmeasured: state.unmeasured(),
            unmanaged: self.publish_unmanaged.then(|| state.unmanaged()),
            container_directories: state.container_directories(),
            limiter: self.state_dir.join("limiter"),
            programs: self.exec_dir().join("limiter"),
            toolkit: self.exec_dir().join("toolkit"),
            mps: state.mps(),
        }
    }

    /// The path in this container, or on the host where this container has none.
    fn here_or_on_host(&self, path: &Path) -> PathBuf {
        if path.exists() {
            return path.to_owned();
        }
        self.host_root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn kills_only_where_administrator_or_pod_chose_it() {
        for (flags, variable, expected) in [
            (&[][..], None, false),
            (&[], Some("true"), true),
            (&["--oom-killer", "true"], None, true),
            (&["--oom-killer", "true"], Some("false"), false),
        ] {
            let line = ["agent", "--node-name", "n1"].iter().chain(flags);
            let settings = Settings::try_parse_from(line).expect("good flags");
            let variable = variable.map(|value| ("ACTIVE_OOM_KILLER".to_owned(), value.to_owned()));
            let environment = BTreeMap::from_iter(variable);
            let found = settings.node_rules().effective_limits(&environment, false);
            assert_eq!(found.oom_killer, expected, "{flags:?} {environment:?}");
        }
    }
}

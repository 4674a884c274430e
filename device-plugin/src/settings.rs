//! The agent's flags, each also an environment variable, and the paths that follow from them. Read
//! only at start.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use aliquot_core::Scaling;
use aliquot_node_state::checkpoint;
use aliquot_node_state::state::StateDirectory;
use aliquot_profiles::Defaults;
use clap::{Parser, ValueEnum};

use crate::allocation::environment::NodeRules;
use crate::allocation::tenant_rights::NamespaceRights;
use crate::gpus::device_failures::FailurePodPolicy;
use crate::gpus::xid::XidActions;
use crate::health::gpus::FailureHandling;
use crate::kubelet::answer::DeviceListStrategy;
use crate::kubelet::topology;
use crate::paths::{DriverRoot, HOST, Paths, SpecFolders};
use crate::selinux::Label;

/// The kubelet's configuration where it is not in its root directory: files, and directories of
/// drop-ins, of which a later one overrides an earlier one.
const CONFIGURATIONS: [&[&str]; 8] = [
    // EKS, GKE, AKS.
    &[
        "/etc/kubernetes/kubelet/config.json",
        "/etc/kubernetes/kubelet/config.json.d",
    ],
    &["/home/kubernetes/kubelet-config.yaml"],
    &["/etc/default/kubeletconfig.json"],
    // k3s, RKE2, yaml, Talos.
    &["/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"],
    &["/var/lib/rancher/rke2/agent/etc/kubelet.conf.d"],
    &["/run/yaml/kubelet/config.yaml"],
    &["/etc/kubernetes/kubelet.yaml"],
    // OpenShift. With kubeadm this is a kubeconfig, beside a file in the root directory.
    &[
        "/etc/kubernetes/kubelet.conf",
        "/etc/openshift/kubelet.conf.d",
    ],
];
/// Drop-ins of kubeadm's file, at the path of Kubernetes' documentation.
const DROP_INS: &str = "/etc/kubernetes/kubelet.conf.d";

/// Who writes the feature labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LabelPolicy {
    /// The agent, but NVIDIA's names only where no gpu-feature-discovery runs.
    #[default]
    Auto,
    /// The agent, overwriting existing labels.
    On,
    /// Not the agent; it removes those that it wrote.
    Off,
}

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
    /// Directories where NVIDIA's CDI specs may be, besides --cdi-dir, which takes precedence over
    /// them, and a later one over an earlier one
    #[arg(
        long,
        env = "ALIQUOT_NVIDIA_CDI_DIRS",
        value_delimiter = ',',
        default_value = "/etc/cdi"
    )]
    pub nvidia_cdi_dirs: Vec<PathBuf>,
    /// NVIDIA's program nvidia-ctk on the host, with which the agent generates NVIDIA's CDI spec;
    /// without it the agent searches it in the folders of PATH and in GPU Operator's
    #[arg(long, env = "ALIQUOT_NVIDIA_CTK")]
    pub nvidia_ctk: Option<PathBuf>,
    /// Directory in this container with nvidia-ctk and nvidia-cdi-hook, which the agent installs in
    /// --state-dir where the host has none
    #[arg(long, env = "ALIQUOT_BUNDLED_TOOLKIT")]
    pub bundled_toolkit: Option<PathBuf>,
    /// The container runtime's configuration file, where it is not at its default path
    #[arg(long, env = "ALIQUOT_RUNTIME_CONFIG")]
    pub runtime_config: Option<PathBuf>,
    /// The `runtimeClassName` that the webhook sets on pods with a share
    #[arg(long, env = "ALIQUOT_RUNTIME_CLASS")]
    pub runtime_class: Option<String>,
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
    /// How containers get their GPUs: by CDI, or, where the runtime lacks it, by the environment that
    /// NVIDIA's container runtime reads
    #[arg(long, env = "ALIQUOT_DEVICE_LIST", value_enum, default_value_t = DeviceListStrategy::Cdi)]
    pub device_list: DeviceListStrategy,
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
    /// Whether to write feature labels to the node; `auto`: yes, but NVIDIA's names only where no
    /// gpu-feature-discovery runs
    #[arg(long, env = "ALIQUOT_FEATURE_LABELS", value_enum, default_value_t = LabelPolicy::Auto)]
    pub feature_labels: LabelPolicy,
    /// The kubelet's Topology Manager policy; `auto`: as in its configuration file
    #[arg(long, env = "ALIQUOT_TOPOLOGY_POLICY", value_enum, default_value_t = topology::TopologyPolicy::Auto)]
    pub topology_policy: topology::TopologyPolicy,
    /// The kubelet's configuration file, or its directory of drop-ins; without it `config.yaml` in its
    /// root directory, in this container or on the host, or the place where the node's distribution
    /// has it, with its drop-ins
    #[arg(long, env = "ALIQUOT_KUBELET_CONFIG")]
    pub kubelet_config: Option<PathBuf>,
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
    /// Seconds between two housekeeping runs: unused files, lost checkpoints, lingering pods
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

    /// How errors of GPUs are handled.
    pub fn health_policy(&self) -> FailureHandling {
        FailureHandling {
            actions: self.xid_actions.clone(),
            pods: self.sick_pods,
        }
    }

    /// The kubelet's configuration: files and directories of drop-ins, in the order in which they
    /// override each other.
    pub fn kubelet_config(&self) -> Vec<PathBuf> {
        if let Some(path) = &self.kubelet_config {
            return vec![self.here_or_on_host(path)];
        }
        kubelet_config_below(&self.host_root, &self.kubelet_dir)
    }

    /// Where programs are that the host runs.
    pub fn exec_dir(&self) -> &Path {
        self.exec_dir.as_deref().unwrap_or(&self.state_dir)
    }

    /// The paths that follow from the directories.
    pub fn paths(&self) -> Paths {
        let state = StateDirectory(&self.state_dir);
        let plugins = self.kubelet_dir.join("device-plugins");
        let directories = self.nvidia_cdi_dirs.iter();
        let mut directories: Vec<PathBuf> =
            directories.map(|path| self.here_or_on_host(path)).collect();
        directories.push(self.cdi_dir.clone());
        Paths {
            checkpoint: plugins.join(checkpoint::FILE),
            plugins,
            cdi: self.cdi_dir.clone(),
            nvidia_cdi: SpecFolders {
                generated: self.state_dir.join("nvidia-cdi"),
                directories,
                host_root: self.host_root.clone(),
            },
            capabilities: self.mig_capabilities_dir.clone(),
            proc_devices: self.proc_devices.clone(),
            driver_root: self.driver_root.clone().map(|here| DriverRoot {
                here,
                host: self.host_driver_root.clone(),
            }),
            accepted: state.accepted(),
            layout: self.state_dir.join("cards.json"),
            uncorrected: state.uncorrected(),
            unmeasured: state.unmeasured(),
            container_directories: state.container_directories(),
            preallocated: self.state_dir.join("spare"),
            limiter: self.state_dir.join("limiter"),
            programs: self.exec_dir().join("limiter"),
            mps: state.mps(),
        }
    }

    /// The path in this container, or on the host where this container has none.
    fn here_or_on_host(&self, path: &Path) -> PathBuf {
        if path.exists() {
            return path.to_owned();
        }
        below(&self.host_root, path)
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The kubelet's configuration in its root directory, or else at the first of the other places that
/// exists on the host.
fn kubelet_config_below(host: &Path, kubelet_dir: &Path) -> Vec<PathBuf> {
    let own = kubelet_dir.join("config.yaml");
    let drop_ins = below(host, Path::new(DROP_INS));
    let usual = [own.clone(), below(host, &own)].map(|file| vec![file, drop_ins.clone()]);
    let elsewhere = CONFIGURATIONS.iter().map(|paths| {
        let paths = paths.iter().map(|path| below(host, Path::new(path)));
        paths.collect()
    });
    let mut all = usual.into_iter().chain(elsewhere);
    all.find(|paths: &Vec<PathBuf>| paths[0].exists())
        .unwrap_or_else(|| vec![own])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn searches_own_cdi_directory_for_nvidia_spec() {
        let line = ["agent", "--node-name", "n1", "--cdi-dir", "/c"];
        let settings = Settings::try_parse_from(line).expect("good flags");
        let paths = settings.paths();
        let [first, last] = paths.nvidia_cdi.directories.as_slice() else {
            panic!("{:?}", paths.nvidia_cdi);
        };
        // On the host, where this machine has none.
        assert!(first.ends_with("etc/cdi"), "{first:?}");
        assert_eq!(last, Path::new("/c"));
        let checkpoint = "device-plugins/kubelet_internal_checkpoint";
        assert!(paths.checkpoint.ends_with(checkpoint));
    }

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

    fn put(host: &Path, path: &str) {
        let path = below(host, Path::new(path));
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(&path, "").expect("written");
    }

    #[test]
    fn finds_kubelet_configuration_of_each_distribution() {
        let kubelet = Path::new("/nonexistent/kubelet");
        let yaml = "/etc/kubernetes/kubelet.yaml";
        let json = "/etc/kubernetes/kubelet/config.json";
        let json_drop_ins = "/etc/kubernetes/kubelet/config.json.d";
        let rke2 = "/var/lib/rancher/rke2/agent/etc/kubelet.conf.d";
        let own = "/nonexistent/kubelet/config.yaml";
        let drop_ins = "/etc/kubernetes/kubelet.conf.d";
        for (existing, found) in [
            (json.to_owned(), &[json, json_drop_ins][..]),
            (format!("{rke2}/00-rke2-defaults.conf"), &[rke2]),
            (yaml.to_owned(), &[yaml]),
            (own.to_owned(), &[own, drop_ins]),
        ] {
            let host = tempfile::tempdir().expect("tempdir");
            // kubeadm's kubeconfig, which is no configuration.
            put(host.path(), "/etc/kubernetes/kubelet.conf");
            put(host.path(), &existing);
            let found = found.iter().map(|path| below(host.path(), Path::new(path)));
            let expected: Vec<PathBuf> = found.collect();
            assert_eq!(kubelet_config_below(host.path(), kubelet), expected);
        }
        let host = tempfile::tempdir().expect("tempdir");
        let found = kubelet_config_below(host.path(), kubelet);
        assert_eq!(found, [kubelet.join("config.yaml")]);
    }
}

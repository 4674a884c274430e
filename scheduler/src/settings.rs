//! The scheduler's flags, each also an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use aliquot_core::score::Policies;
use aliquot_core::{GpuPolicy, Policy};
use aliquot_k8s::flags::RequestFlags;
use aliquot_serve::telemetry::LogFormat;
use clap::{ArgAction, Parser};

use crate::leader::LeaseName;
use crate::node_types::NodeTypes;

/// Scheduler extender of Aliquot: filters and ranks nodes by their GPUs and
/// binds pods together with their allocation.
#[derive(Clone, Debug, Parser)]
#[command(version)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Settings {
    /// Kubeconfig; the pod's service account when absent.
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the extender, health and metrics.
    #[arg(long, env = "ALIQUOT_LISTEN", default_value = "0.0.0.0:9395")]
    pub listen: SocketAddr,
    /// Additional address for queries (/ledger, /explain, /top), health and metrics, so that
    /// --listen may be a loopback address that only kube-scheduler reaches.
    #[arg(long, env = "ALIQUOT_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
    /// Serve --admin-listen with TLS, and answer only accounts that Kubernetes authenticates and
    /// authorizes: true or false. /healthz, /readyz and the page without its data stay open.
    #[arg(long, env = "ALIQUOT_AUTHENTICATE", default_value_t = false, action = ArgAction::Set)]
    pub authenticate: bool,
    /// Directory with tls.crt, tls.key and ca.crt: --listen then uses TLS and accepts only clients
    /// with a certificate issued by ca.crt. For a kube-scheduler that is not in the same pod.
    #[arg(long, env = "ALIQUOT_TLS_DIR")]
    pub tls_dir: Option<PathBuf>,
    /// How nodes are scored: fragmentation, binpack or spread.
    #[arg(long, env = "ALIQUOT_NODE_POLICY", default_value = "fragmentation")]
    pub node_policy: Policy,
    /// How GPUs of a node are scored: fragmentation, binpack, spread, numa, mutex, topology, or
    /// several separated by commas.
    #[arg(long, env = "ALIQUOT_GPU_POLICY", default_value = "fragmentation")]
    pub gpu_policy: GpuPolicy,
    /// Maximum number of nodes that filter returns for a pod without preferences of its own. With
    /// 1 the best node wins, and kube-scheduler neither scores nor ranks it. Set more, or 0 for
    /// all, where another extender, or a plugin that the shipped profile disables, must be able
    /// to choose.
    #[arg(long, env = "ALIQUOT_SHORTLIST", default_value_t = 1)]
    pub shortlist: usize,
    /// Lease of the kube-scheduler beside this extender, as namespace/name; not set for a single
    /// replica, which always binds.
    #[arg(long, env = "ALIQUOT_SCHEDULER_LEASE", requires = "identity")]
    pub scheduler_lease: Option<LeaseName>,
    /// Identity of that kube-scheduler up to its `_`: the name of this pod.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Write `hami.io/vgpu-devices-allocated` too, for dashboards that read it
    /// (`compat.dashboards`).
    #[arg(long, env = "ALIQUOT_HAMI_ANNOTATIONS")]
    pub hami_annotations: bool,
    /// Seconds after which a pod that its node refused to start is evicted; with the default it is
    /// gone within 30.
    #[arg(long, env = "ALIQUOT_EVICT_AFTER", default_value_t = 20)]
    pub evict_after: u64,
    /// Seconds between two resizes of a pod that are decided; 0 for no pause. Each costs writes and
    /// events, and whoever may write the pod may ask.
    #[arg(long, env = "ALIQUOT_RESIZE_INTERVAL", default_value_t = 10)]
    pub resize_interval: u64,
    /// Whether pods of lower priority are evicted for a pending pod: true or false.
    #[arg(long, env = "ALIQUOT_PREEMPT", default_value_t = true, action = ArgAction::Set)]
    pub preempt: bool,
    /// Types of nodes that an autoscaler may add, as a JSON list (`scheduler.autoscaler`): placeholders
    /// then state the need of GPUs of pending pods in whole GPUs. Not set: the need is not stated.
    #[arg(long, env = "ALIQUOT_NODE_TYPES", requires = "namespace")]
    pub node_types: Option<NodeTypes>,
    /// Namespace of this pod, for placeholders, and to ask the nodes' monitors for the cluster page.
    #[arg(long, env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// The admission policies and their bindings as the chart wrote them, a JSON file; they are
    /// compared with those in the cluster.
    #[arg(long, env = "ALIQUOT_ADMISSION_POLICIES")]
    pub admission_policies: Option<PathBuf>,
    /// Uid of this pod: placeholders end with it.
    #[arg(long, env = "POD_UID", requires = "identity")]
    pub pod_uid: Option<String>,
    /// Log format: text or json.
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter, in the syntax of `RUST_LOG`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
    /// Names and defaults.
    #[command(flatten)]
    pub request: RequestFlags,
}

impl Settings {
    /// The policies of pods that choose none.
    pub fn policies(&self) -> Policies {
        Policies {
            node: self.node_policy,
            gpu: self.gpu_policy,
            ..Policies::default()
        }
    }
}

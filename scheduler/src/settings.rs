//! The scheduler's flags.
//!
//! Fed by: the command line, or the environment under the same names.
//! Must not: hold a value that is not a flag.

use std::net::SocketAddr;
use std::path::PathBuf;

use aliquot_core::fit::Policies;
use aliquot_core::request::{BareGpu, Resource};
use aliquot_core::{Defaults, Mib, Percent, Policy, ResourceNames};
use aliquot_k8s::pod;
use aliquot_serve::telemetry::LogFormat;
use clap::Parser;

use crate::leader::LeaseName;

/// Scheduler extender of Aliquot: filters and ranks nodes by their GPUs and
/// binds pods together with what they were given.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Settings {
    /// Kubeconfig; the pod's service account when absent.
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the extender, health and metrics.
    #[arg(long, env = "ALIQUOT_LISTEN", default_value = "0.0.0.0:9395")]
    pub listen: SocketAddr,
    /// Which node is better: binpack or spread.
    #[arg(long, env = "ALIQUOT_NODE_POLICY", default_value = "binpack")]
    pub node_policy: Policy,
    /// Which card of a node is better: binpack or spread.
    #[arg(long, env = "ALIQUOT_GPU_POLICY", default_value = "spread")]
    pub gpu_policy: Policy,
    /// Most nodes that filter answers.
    #[arg(long, env = "ALIQUOT_SHORTLIST", default_value_t = 64)]
    pub shortlist: usize,
    /// Lease of the kube-scheduler beside this extender, as namespace/name;
    /// absent for a single replica, which always binds.
    #[arg(long, env = "ALIQUOT_SCHEDULER_LEASE", requires = "identity")]
    pub scheduler_lease: Option<LeaseName>,
    /// Identity of that kube-scheduler up to its `_`: the name of this pod.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Seconds after which a pod that its node refused to start is evicted.
    #[arg(long, env = "ALIQUOT_EVICT_AFTER", default_value_t = 30)]
    pub evict_after: u64,
    /// Log lines: text or json.
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged, in the language of `RUST_LOG`.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
    /// Names and defaults.
    #[command(flatten)]
    pub request: Request,
}

/// What the resources are called and what is filled in.
#[derive(Clone, Debug, clap::Args)]
pub struct Request {
    /// Name of the count resource.
    #[arg(long, default_value = "nvidia.com/gpu")]
    pub resource_name: String,
    /// Name of the memory resource, MiB.
    #[arg(long, default_value = "nvidia.com/gpumem")]
    pub resource_mem: String,
    /// Name of the memory resource, percent.
    #[arg(long, default_value = "nvidia.com/gpumem-percentage")]
    pub resource_mem_percentage: String,
    /// Name of the compute resource.
    #[arg(long, default_value = "nvidia.com/gpucores")]
    pub resource_cores: String,
    /// Name of the priority resource.
    #[arg(long, default_value = "nvidia.com/priority")]
    pub resource_priority: String,
    /// MiB for a container without memory; 0 for the whole card.
    #[arg(long, default_value_t = 5000)]
    pub default_mem: u64,
    /// Percent for a container without compute.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub default_cores: u32,
    /// Cards for a container that asks for memory or compute only; 0 for none.
    #[arg(long, default_value_t = 1)]
    pub default_gpu_num: u32,
    /// What a bare count means: seed (the defaults above) or whole (a whole card).
    #[arg(long, default_value = "seed", value_parser = ["seed", "whole"])]
    pub bare_gpu: String,
}

impl Request {
    /// The same as values.
    pub fn settings(&self) -> pod::Settings {
        pod::Settings {
            names: ResourceNames::with([
                (Resource::Gpu, self.resource_name.clone()),
                (Resource::Memory, self.resource_mem.clone()),
                (
                    Resource::MemoryPercentage,
                    self.resource_mem_percentage.clone(),
                ),
                (Resource::Cores, self.resource_cores.clone()),
                (Resource::Priority, self.resource_priority.clone()),
            ]),
            defaults: Defaults {
                count: self.default_gpu_num,
                memory: Mib(self.default_mem),
                cores: Percent(self.default_cores),
                bare_gpu: match self.bare_gpu.as_str() {
                    "whole" => BareGpu::Whole,
                    _ => BareGpu::Seed,
                },
            },
        }
    }
}

impl Settings {
    /// The policies for pods that choose none.
    pub fn policies(&self) -> Policies {
        Policies {
            node: self.node_policy,
            gpu: self.gpu_policy,
        }
    }
}

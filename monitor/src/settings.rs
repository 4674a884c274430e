//! The monitor's flags, each also an environment variable.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// How long borrowers have to free memory that is called back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grace {
    pub default: Duration,
    pub by_namespace: BTreeMap<String, Duration>,
}

impl Grace {
    pub(crate) fn of(&self, namespace: &str) -> Duration {
        let own = self.by_namespace.get(namespace);
        own.copied().unwrap_or(self.default)
    }

    pub(crate) fn longest(&self) -> Duration {
        let all = self.by_namespace.values().copied();
        all.fold(self.default, Duration::max)
    }
}

/// The monitor of Aliquot: measures and enforces the use of one node's GPUs.
#[derive(Clone, Debug, Parser)]
#[command(version, about)]
pub struct Settings {
    /// Kubeconfig of the API server; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the Node object whose GPUs these are
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The node agent's state directory, with accepted allocations and container directories
    #[arg(long, env = "ALIQUOT_STATE_DIR", default_value = "/var/lib/aliquot")]
    pub state_dir: PathBuf,
    /// NVML library to load
    #[arg(
        long,
        env = "ALIQUOT_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1"
    )]
    pub nvml_library: PathBuf,
    /// Root of the driver's files, as mounted here; a library without a path is searched below it
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// MiB that each process may use beyond what the limiter counts for it, before the OOM killer
    /// holds it against the container's memory limit: what the driver allocates by itself
    #[arg(long, env = "ALIQUOT_OOM_TOLERANCE", default_value_t = 512,
          value_parser = clap::value_parser!(u64).range(0..=65_536))]
    pub oom_tolerance: u64,
    /// Percent of any ten seconds for which containers of priority 1 may have to wait for those of
    /// priority 0 on the same GPU; 100: without a cap
    #[arg(long, env = "ALIQUOT_PRIORITY_CAP", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(0..=100))]
    pub priority_cap: u64,
    /// Seconds that containers have to free memory beyond their request when it is called back
    #[arg(long, env = "ALIQUOT_BURST_GRACE_SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub burst_grace_seconds: u64,
    /// The same for the containers of a namespace, as NAMESPACE=SECONDS
    #[arg(long, env = "ALIQUOT_BURST_GRACE_SECONDS_IN", value_delimiter = ',', value_parser = grace_in)]
    pub burst_grace_seconds_in: Vec<(String, u64)>,
    /// Also export metrics under the names of HAMi's monitor
    #[arg(long, env = "ALIQUOT_COMPAT_METRICS", default_value_t = false, action = clap::ArgAction::Set)]
    pub compat_metrics: bool,
    /// Address for /healthz, /readyz, /metrics and /usage
    #[arg(long, env = "ALIQUOT_MONITOR_LISTEN", default_value = "0.0.0.0:9396")]
    pub listen: SocketAddr,
    /// Serve --listen with TLS, and all but health only to accounts that Kubernetes authenticates and
    /// authorizes
    #[arg(long, env = "ALIQUOT_AUTHENTICATE", default_value_t = false, action = clap::ArgAction::Set)]
    pub authenticate: bool,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_monitor=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    pub fn grace(&self) -> Grace {
        let in_namespaces = self.burst_grace_seconds_in.iter();
        let by_namespace = in_namespaces
            .map(|(namespace, seconds)| (namespace.clone(), Duration::from_secs(*seconds)));
        Grace {
            default: Duration::from_secs(self.burst_grace_seconds),
            by_namespace: by_namespace.collect(),
        }
    }
}

fn grace_in(text: &str) -> Result<(String, u64), String> {
    let seconds = |seconds: &str| seconds.parse().ok().filter(|seconds| *seconds <= 3600);
    let read = text.split_once('=').and_then(|(namespace, text)| {
        let namespace = Some(namespace.trim()).filter(|name| !name.is_empty())?;
        Some((namespace.to_owned(), seconds(text.trim())?))
    });
    read.ok_or_else(|| format!("{text:?}; expected: NAMESPACE=SECONDS, 0 to 3600"))
}

//! The monitor's flags, each also an environment variable.
//!
//! Fed by: the command line. Must not: be read anywhere but at start.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::metrics::Family;

/// What becomes of a process on a GPU that nobody accounts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnUnmanaged {
    /// It is told and charged.
    #[default]
    Report,
    /// It is ended, too.
    Kill,
    /// Its pod is evicted, too.
    Evict,
}

/// The monitor of Aliquot: measures, charges and ends on one node's GPUs.
#[derive(Clone, Debug, Parser)]
#[command(version, about)]
pub struct Settings {
    /// Kubeconfig of the API server; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of the Node object whose GPUs these are
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The node agent's directory of accepted shares and seats
    #[arg(long, env = "ALIQUOT_STATE_DIR", default_value = "/var/lib/aliquot")]
    pub state_dir: PathBuf,
    /// NVML library to load
    #[arg(
        long,
        env = "ALIQUOT_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1"
    )]
    pub nvml_library: PathBuf,
    /// Where the driver's files are, seen from here; a library without a path is looked for below it
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// What becomes of a process on a GPU that belongs to no share, or that avoids the library
    /// which its share is held by
    #[arg(long, env = "ALIQUOT_ON_UNMANAGED", value_enum, default_value_t = OnUnmanaged::Report)]
    pub on_unmanaged: OnUnmanaged,
    /// Namespaces whose unmanaged processes are only reported
    #[arg(
        long,
        env = "ALIQUOT_SPARED_NAMESPACES",
        value_delimiter = ',',
        default_value = "kube-system"
    )]
    pub spared_namespaces: Vec<String>,
    /// MiB for each process of a container that it may pass its memory limit by before the OOM
    /// killer looks: what the driver takes beside what the library was told
    #[arg(long, env = "ALIQUOT_OOM_TOLERANCE", default_value_t = 128,
          value_parser = clap::value_parser!(u64).range(0..=65_536))]
    pub oom_tolerance: u64,
    /// Also show the metrics under the names that HAMi's monitor has
    #[arg(long, env = "ALIQUOT_COMPAT_METRICS", default_value_t = false, action = clap::ArgAction::Set)]
    pub compat_metrics: bool,
    /// Also show figures of GPUs under the names that dcgm-exporter has
    #[arg(long, env = "ALIQUOT_DCGM_METRICS", default_value_t = false, action = clap::ArgAction::Set)]
    pub dcgm_metrics: bool,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "ALIQUOT_MONITOR_LISTEN", default_value = "0.0.0.0:9396")]
    pub listen: SocketAddr,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_monitor=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

impl Settings {
    /// The names under which metrics are shown.
    pub fn families(&self) -> Vec<Family> {
        let all = [
            (true, Family::Own),
            (self.compat_metrics, Family::Hami),
            (self.dcgm_metrics, Family::Dcgm),
        ];
        let shown = all.into_iter().filter(|(wanted, _)| *wanted);
        shown.map(|(_, family)| family).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_out_of_range_are_refused_with_the_accepted_form() {
        let check = |flags: &[&str], expected: &str| {
            let line = ["monitor", "--node-name", "n1"].iter().chain(flags);
            match Settings::try_parse_from(line) {
                Ok(_) => assert_eq!(expected, "", "{flags:?} was taken"),
                Err(error) => assert!(error.to_string().contains(expected), "{error}"),
            }
        };
        check(&[], "");
        check(&["--on-unmanaged", "kill"], "");
        check(&["--on-unmanaged", "ignore"], "report, kill, evict");
        check(&["--oom-tolerance", "65537"], "0..=65536");
        check(&["--log-format", "xml"], "json, text");
    }
}

//! kube-scheduler as one of several replicas, with leader election, its own extender and its own
//! name. Each is started as a part, so that it can be killed alone.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::cluster::Cluster;
use crate::control_plane;
use crate::parts::Part;
use crate::scheduler_config::{self, SchedulerOptions};

/// kube-scheduler's identity in the Lease is its host's name, `_`, and a number of
/// its own, so each replica gets a host name, as it has in a pod.
const WITH_HOSTNAME: &str = r#"hostname "$1" && shift && exec "$@""#;

/// One kube-scheduler of several.
#[derive(Debug, Clone, Copy)]
pub struct Replica<'a> {
    /// Its host name: of its lease identity all up to the `_`.
    pub name: &'a str,
    /// Its own extender.
    pub extender: SocketAddr,
    /// Namespace and name of the Lease.
    pub lease: (&'a str, &'a str),
    /// Seconds: how long the Lease lasts, how long it is tried to renew it, and
    /// how often.
    pub times: (u32, u32, u32),
    /// The service account whose rights it has.
    pub kubeconfig: &'a Path,
    /// Further arguments.
    pub args: &'a [String],
}

impl Cluster {
    /// Starts (again) the kube-scheduler of this replica. Needs root.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_replica(&self, replica: Replica<'_>) -> Result<Part> {
        let kubeconfig = replica.kubeconfig.to_string_lossy();
        let options = SchedulerOptions {
            extender: Some(format!("http://{}", replica.extender)),
            ..SchedulerOptions::default()
        };
        let mut config = scheduler_config::configuration(&kubeconfig, &options)?;
        let (lasts, renew, retry) = replica.times;
        config["leaderElection"] = json!({
            "leaderElect": true,
            "resourceNamespace": replica.lease.0,
            "resourceName": replica.lease.1,
            "leaseDuration": format!("{lasts}s"),
            "renewDeadline": format!("{renew}s"),
            "retryPeriod": format!("{retry}s"),
        });
        let path = self.layout.at(&format!("{}.yaml", replica.name));
        std::fs::write(&path, config.to_string())?;
        let program = self.kubebox(control_plane::replica(&path, replica.args));
        let program_path = program.path.to_string_lossy();
        let mut args = vec!["--uts", "sh", "-c", WITH_HOSTNAME, "sh", replica.name];
        args.push(&program_path);
        args.extend(program.args.iter().map(String::as_str));
        let name = format!("kube-scheduler-{}", replica.name);
        self.start_part(&name, Path::new("unshare"), &args, &[])
    }
}

//! The flags, each also an environment variable, and what they mean as values.
//!
//! Fed by: the command line. Must not: have a flag that does nothing.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use aliquot_k8s::flags::{FlagError, RequestFlags};
use aliquot_serve::telemetry::LogFormat;
use axum::http::Uri;
use clap::{ArgAction, Parser};
use jiff::SignedDuration;
use thiserror::Error;

use crate::certificates::Lifetimes;
use crate::configuration::Target;
use crate::handler;
use crate::settings::{Settings, VisibleDevices};

/// Reviews pods that ask for a share of a GPU: refuses what cannot be meant,
/// fills in what is missing, and sends them to the scheduler.
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-webhook", version)]
pub struct Args {
    /// Kubeconfig file; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Where reviews, /healthz, /readyz and /metrics are served over TLS
    #[arg(long, env = "ALIQUOT_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Where /healthz, /readyz and /metrics are served without TLS as well
    #[arg(long, env = "ALIQUOT_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
    /// The Service by which the API server reaches this webhook
    #[arg(long, env = "ALIQUOT_SERVICE", default_value = "aliquot-webhook")]
    pub service: String,
    /// A fixed address instead of the Service, such as <https://127.0.0.1:8443/mutate>
    #[arg(long, env = "ALIQUOT_URL", conflicts_with = "service")]
    pub url: Option<String>,
    /// The namespace of this product; its pods never wait for this webhook
    #[arg(long, env = "POD_NAMESPACE", default_value = "aliquot-system")]
    pub namespace: String,

    /// The scheduler that pods with a share are sent to
    #[arg(
        long,
        env = "ALIQUOT_SCHEDULER_NAME",
        default_value = "aliquot-scheduler"
    )]
    pub scheduler_name: String,
    /// Schedulers whose pods are taken over; of pods of any other only the environment is judged
    #[arg(long, env = "ALIQUOT_REPLACE_SCHEDULER", value_delimiter = ',', num_args = 0..,
        default_value = "default-scheduler,hami-scheduler")]
    pub replace_scheduler: Vec<String>,
    /// `runtimeClassName` for pods with a share that name none
    #[arg(long, env = "ALIQUOT_RUNTIME_CLASS")]
    pub runtime_class: Option<String>,
    /// Runtime classes of NVIDIA's runtime: a container in them that asks for no GPU sees none,
    /// whatever its image sets (repeatable)
    #[arg(long, env = "ALIQUOT_NVIDIA_RUNTIME_CLASS", value_delimiter = ',', num_args = 0..,
        default_value = "nvidia,nvidia-cdi,nvidia-legacy,nvidia-experimental")]
    pub nvidia_runtime_class: Vec<String>,
    /// Namespaces where a pod with a share may be privileged and the like (repeatable)
    #[arg(long, env = "ALIQUOT_ESCAPE_ALLOW_NAMESPACE", value_delimiter = ',')]
    pub escape_allow_namespace: Vec<String>,
    /// Resources of which a container may have one share only: asking for more is
    /// refused here instead of by the scheduler (repeatable)
    #[arg(long, env = "ALIQUOT_STRICT_RESOURCES", value_delimiter = ',')]
    pub strict_resources: Vec<String>,
    /// What becomes of `NVIDIA_VISIBLE_DEVICES` in a pod's environment: uuids become a
    /// pin (rewrite), the pod is refused (deny), or it is left (allow)
    #[arg(
        long,
        env = "ALIQUOT_VISIBLE_DEVICES",
        value_enum,
        default_value = "rewrite"
    )]
    pub visible_devices: VisibleDevices,
    /// Host directories of the node agent, closed to pods with a share (repeatable)
    #[arg(
        long,
        env = "ALIQUOT_AGENT_PATH",
        value_delimiter = ',',
        default_value = "/run/aliquot,/var/lib/aliquot"
    )]
    pub agent_path: Vec<String>,

    /// Names and defaults.
    #[command(flatten)]
    pub request: RequestFlags,

    /// Life of a certificate authority, such as 8760h; the next is made after two thirds
    #[arg(long, env = "ALIQUOT_CA_LIFETIME", default_value = "8760h")]
    pub ca_lifetime: SignedDuration,
    /// Life of the server certificate, such as 720h; the next is made after two thirds
    #[arg(long, env = "ALIQUOT_LEAF_LIFETIME", default_value = "720h")]
    pub leaf_lifetime: SignedDuration,

    /// Folder with tls.crt, tls.key and ca.crt that somebody else makes and renews, such as
    /// cert-manager; without it the webhook makes its own
    #[arg(long, env = "ALIQUOT_CERTIFICATES_DIR")]
    pub certificates_dir: Option<PathBuf>,
    /// Whether the label aliquot.dev/webhook or hami.io/webhook with the value ignore on a pod
    /// itself keeps it from being reviewed; on a namespace it always does
    #[arg(long, env = "ALIQUOT_PODS_MAY_IGNORE", default_value_t = true, action = ArgAction::Set)]
    pub pods_may_ignore: bool,

    /// How long to serve on after SIGTERM, not ready, so that a Service can look elsewhere
    #[arg(long, env = "ALIQUOT_LINGER", default_value = "0s")]
    pub linger: SignedDuration,
    /// text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged, in the language of `RUST_LOG`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log_filter: String,
}

/// A flag's value that cannot be meant.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ArgsError {
    /// Not an address that the API server could call.
    #[error("--url {value:?}; accepted: https://HOST:PORT{}", handler::PATH)]
    Url {
        /// As it came.
        value: String,
    },
    /// A resource name that cannot be meant.
    #[error(transparent)]
    Request(#[from] FlagError),
    /// Too short to be rotated.
    #[error("{flag} {value:#}; accepted: at least {SHORTEST:#}")]
    Lifetime {
        /// Which flag.
        flag: &'static str,
        /// As it came.
        value: SignedDuration,
    },
}

/// Certificates say whole seconds, and two thirds of a life must be some of them.
const SHORTEST: SignedDuration = SignedDuration::from_secs(3);

impl Args {
    /// How the API server reaches us.
    pub fn target(&self) -> Result<Target, ArgsError> {
        let Some(url) = &self.url else {
            return Ok(Target::Service {
                name: self.service.clone(),
                namespace: self.namespace.clone(),
            });
        };
        let refused = || ArgsError::Url { value: url.clone() };
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let host = uri
            .host()
            .ok_or_else(refused)?
            .trim_matches(['[', ']'])
            .to_owned();
        if uri.scheme_str() != Some("https") || uri.path() != handler::PATH || uri.query().is_some()
        {
            return Err(refused());
        }
        Ok(Target::Url {
            url: url.clone(),
            host,
        })
    }

    /// How long certificates live.
    pub fn lifetimes(&self) -> Result<Lifetimes, ArgsError> {
        let (authority, leaf) = (self.ca_lifetime, self.leaf_lifetime);
        for (flag, value) in [("--ca-lifetime", authority), ("--leaf-lifetime", leaf)] {
            if value < SHORTEST {
                return Err(ArgsError::Lifetime { flag, value });
            }
        }
        Ok(Lifetimes { authority, leaf })
    }

    /// How long to serve on after the first signal.
    pub fn linger(&self) -> Duration {
        self.linger.unsigned_abs()
    }

    /// What reviews depend on.
    pub fn settings(&self) -> Result<Settings, ArgsError> {
        let request = self.request.settings()?;
        Ok(Settings {
            names: request.names,
            extra: request.extra,
            strict: self.strict_resources.clone(),
            visible_devices: self.visible_devices,
            defaults: request.defaults,
            scheduler_name: self.scheduler_name.clone(),
            replaced_schedulers: self.replace_scheduler.iter().cloned().collect(),
            runtime_class: self.runtime_class.clone().filter(|class| !class.is_empty()),
            nvidia_runtime_classes: {
                let named = self.nvidia_runtime_class.iter();
                named.filter(|class| !class.is_empty()).cloned().collect()
            },
            escape_allowed: self.escape_allow_namespace.iter().cloned().collect(),
            agent_paths: self.agent_path.clone(),
            pods_may_ignore: self.pods_may_ignore,
        })
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;

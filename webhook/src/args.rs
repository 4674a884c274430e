//! The flags, each also an environment variable, and their values.

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
use crate::reconciler::ReconcilerSettings;
use crate::server;
use crate::settings::{RequestForm, Settings, VisibleDevices};

/// Reviews pods that request a share of a GPU: refuses invalid requests, fills in
/// missing values, and assigns the pods to the scheduler.
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-webhook", version)]
pub struct Args {
    /// Kubeconfig file; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Address for reviews, /healthz and /readyz over TLS
    #[arg(long, env = "ALIQUOT_LISTEN", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "ALIQUOT_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
    /// Serve --admin-listen with TLS, and /metrics only to accounts that Kubernetes authenticates
    /// and authorizes
    #[arg(long, env = "ALIQUOT_AUTHENTICATE", default_value_t = false, action = ArgAction::Set)]
    pub authenticate: bool,
    /// The Service by which the API server reaches this webhook
    #[arg(long, env = "ALIQUOT_SERVICE", default_value = "aliquot-webhook")]
    pub service: String,
    /// A fixed URL instead of the Service, such as <https://127.0.0.1:8443/mutate>
    #[arg(long, env = "ALIQUOT_URL", conflicts_with = "service")]
    pub url: Option<String>,
    /// The namespace of Aliquot; its pods are never sent to this webhook
    #[arg(long, env = "POD_NAMESPACE", default_value = "aliquot-system")]
    pub namespace: String,

    /// Schedulers whose pods are taken over; pods of others are only checked for ways to bypass the
    /// scheduler
    #[arg(long, env = "ALIQUOT_REPLACE_SCHEDULER", value_delimiter = ',', num_args = 0..,
        default_value = "default-scheduler,hami-scheduler")]
    pub replace_scheduler: Vec<String>,
    /// `runtimeClassName` for pods with a share that set none
    #[arg(long, env = "ALIQUOT_RUNTIME_CLASS")]
    pub runtime_class: Option<String>,
    /// Runtime classes of NVIDIA's runtime: a container in them that requests no GPU sees none,
    /// whatever its image sets (repeatable)
    #[arg(long, env = "ALIQUOT_NVIDIA_RUNTIME_CLASS", value_delimiter = ',', num_args = 0..,
        default_value = "nvidia,nvidia-cdi,nvidia-legacy,nvidia-experimental")]
    pub nvidia_runtime_class: Vec<String>,
    /// Namespaces where a pod with a share may use privileges that bypass the share (repeatable)
    #[arg(long, env = "ALIQUOT_ESCAPE_ALLOW_NAMESPACE", value_delimiter = ',')]
    pub escape_allow_namespace: Vec<String>,
    /// Resources of which a container may have one share only: a request for more is
    /// refused here instead of by the scheduler (repeatable)
    #[arg(long, env = "ALIQUOT_STRICT_RESOURCES", value_delimiter = ',')]
    pub strict_resources: Vec<String>,
    /// Policy for `NVIDIA_VISIBLE_DEVICES` in a pod's environment: UUIDs become a pin (rewrite),
    /// the pod is refused (deny), or the variable is left (allow)
    #[arg(
        long,
        env = "ALIQUOT_VISIBLE_DEVICES",
        value_enum,
        default_value = "rewrite"
    )]
    pub visible_devices: VisibleDevices,
    /// Where admitted pods have the amounts of their requests: in their containers' resources, or in
    /// the annotation aliquot.dev/request; the label aliquot.dev/request-as of a namespace overrides
    /// it for its pods
    #[arg(
        long,
        env = "ALIQUOT_REQUEST_AS",
        value_enum,
        default_value = "resources"
    )]
    pub request_as: RequestForm,
    /// Whether app containers with a request in the annotation retain the priority as a resource,
    /// so that an autoscaler does not take the count for whole GPUs
    #[arg(long, env = "ALIQUOT_RETAIN_PRIORITY", default_value_t = false, action = ArgAction::Set)]
    pub retain_priority: bool,
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

    /// Lifetime of a certificate authority, such as 8760h; the next is created after two thirds
    #[arg(long, env = "ALIQUOT_CA_LIFETIME", default_value = "8760h")]
    pub ca_lifetime: SignedDuration,
    /// Lifetime of the serving certificate, such as 720h; the next is issued after two thirds
    #[arg(long, env = "ALIQUOT_CERTIFICATE_LIFETIME", default_value = "720h")]
    pub certificate_lifetime: SignedDuration,

    /// Directory with tls.crt, tls.key and ca.crt that something else creates and renews, such as
    /// cert-manager; without it the webhook issues its own
    #[arg(long, env = "ALIQUOT_CERTIFICATES_DIR")]
    pub certificates_dir: Option<PathBuf>,

    /// How long to keep serving after SIGTERM, not ready, until the Service has removed the
    /// endpoint
    #[arg(long, env = "ALIQUOT_SHUTDOWN_DELAY", default_value = "0s")]
    pub shutdown_delay: SignedDuration,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter, in the syntax of `RUST_LOG`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log_filter: String,
}

/// A flag's invalid value.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum ArgsError {
    #[error(
        "--url {value:?} is invalid; expected: https://HOST:PORT{}",
        server::MUTATE_PATH
    )]
    Url { value: String },
    #[error(transparent)]
    Request(#[from] FlagError),
    #[error("{flag} {value:#} is too short; expected: at least {SHORTEST:#}")]
    Lifetime {
        flag: &'static str,
        value: SignedDuration,
    },
}

/// Certificates have whole seconds, and two thirds of a lifetime must be at least one.
const SHORTEST: SignedDuration = SignedDuration::from_secs(3);

impl Args {
    /// The names and addresses by which the API server reaches the webhook.
    pub fn names(&self) -> Result<Vec<String>, ArgsError> {
        let Some(url) = &self.url else {
            let name = format!("{}.{}", self.service, self.namespace);
            let full = format!("{name}.svc.cluster.local");
            return Ok(vec![format!("{name}.svc"), name, full]);
        };
        let refused = || ArgsError::Url { value: url.clone() };
        let uri: Uri = url.parse().map_err(|_| refused())?;
        let host = uri
            .host()
            .ok_or_else(refused)?
            .trim_matches(['[', ']'])
            .to_owned();
        if uri.scheme_str() != Some("https")
            || uri.path() != server::MUTATE_PATH
            || uri.query().is_some()
        {
            return Err(refused());
        }
        Ok(vec![host])
    }

    /// How long certificates live.
    pub fn lifetimes(&self) -> Result<Lifetimes, ArgsError> {
        let (ca, serving) = (self.ca_lifetime, self.certificate_lifetime);
        for (flag, value) in [("--ca-lifetime", ca), ("--certificate-lifetime", serving)] {
            if value < SHORTEST {
                return Err(ArgsError::Lifetime { flag, value });
            }
        }
        Ok(Lifetimes { ca, serving })
    }

    /// How long to keep serving after the first signal.
    pub fn shutdown_delay(&self) -> Duration {
        self.shutdown_delay.unsigned_abs()
    }

    /// What to reconcile.
    pub fn reconciler(&self) -> Result<ReconcilerSettings, ArgsError> {
        Ok(ReconcilerSettings {
            namespace: self.namespace.clone(),
            names: self.names()?,
            lifetimes: self.lifetimes()?,
            mounted: self.certificates_dir.clone(),
        })
    }

    /// The settings of reviews.
    pub fn settings(&self) -> Result<Settings, ArgsError> {
        let request = self.request.settings()?;
        Ok(Settings {
            request_as: self.request_as,
            retain_priority: self.retain_priority,
            names: request.names,
            extra: request.extra,
            strict: self.strict_resources.clone(),
            visible_devices: self.visible_devices,
            defaults: request.defaults,
            scheduler_name: request.scheduler_name,
            replaced_schedulers: self.replace_scheduler.iter().cloned().collect(),
            runtime_class: self.runtime_class.clone().filter(|class| !class.is_empty()),
            nvidia_runtime_classes: {
                let named = self.nvidia_runtime_class.iter();
                named.filter(|class| !class.is_empty()).cloned().collect()
            },
            escape_allowed: self.escape_allow_namespace.iter().cloned().collect(),
            agent_paths: self.agent_path.clone(),
        })
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;

//! The client that every binary uses, with its timeouts.
//!
//! Fed by: a kubeconfig's path, or the pod's service account when there is none.
//! Must not: fall through silently; which source was used is logged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Longest silence on a connection. A watch is renewed every
/// [`crate::watch::RENEWAL`], so that a dead peer is noticed within this.
const SILENCE: Duration = Duration::from_secs(75);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The file cannot be read or is not a kubeconfig.
    #[error("cannot read kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What kube found.
        source: kube::config::KubeconfigError,
    },
    /// Not in a pod, or its service account is not mounted.
    #[error("no --kubeconfig given and no service account found")]
    InCluster {
        /// What kube found.
        source: kube::config::InClusterError,
    },
    /// The TLS or HTTP client cannot be made.
    #[error("cannot make a Kubernetes client")]
    Client {
        /// What kube found.
        source: kube::Error,
    },
}

/// Makes the client from `kubeconfig`, or from the pod's service account.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, ClientError> {
    let mut config = match kubeconfig {
        Some(path) => {
            let named = |source| ClientError::Kubeconfig {
                path: path.to_owned(),
                source,
            };
            let file = Kubeconfig::read_from(path).map_err(named)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(named)?
        }
        None => Config::incluster().map_err(|source| ClientError::InCluster { source })?,
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    config.write_timeout = Some(SILENCE);
    let source = kubeconfig.map_or_else(
        || "service account".to_owned(),
        |path| path.display().to_string(),
    );
    tracing::info!(server = %config.cluster_url, source, "Kubernetes client");
    Client::try_from(config).map_err(|source| ClientError::Client { source })
}

//! The Kubernetes client of every program, with its timeouts. Logs which source of
//! credentials it uses.

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

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("cannot read kubeconfig {path}")]
    Kubeconfig {
        path: PathBuf,
        source: kube::config::KubeconfigError,
    },
    #[error("no --kubeconfig given and no service account found")]
    InCluster {
        source: kube::config::InClusterError,
    },
    #[error("cannot make a Kubernetes client")]
    Client { source: kube::Error },
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
    set_timeouts(&mut config);
    let source = kubeconfig.map_or_else(
        || "service account".to_owned(),
        |path| path.display().to_string(),
    );
    tracing::info!(server = %config.cluster_url, source, "Kubernetes client");
    Client::try_from(config).map_err(|source| ClientError::Client { source })
}

/// Sets timeouts and switches off kube's own retries, which would hide an API server that
/// answers 503 for minutes, so that a watch would not become stale.
fn set_timeouts(config: &mut Config) {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(SILENCE);
    config.write_timeout = Some(SILENCE);
    config.default_retry = false;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// kube's own retries would ask sixteen times, with pauses of up to 80 s.
    #[tokio::test]
    async fn asks_unavailable_server_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 4096];
            let mut requests = 0;
            while connection.read(&mut bytes).await.unwrap() > 0 {
                requests += 1;
                let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
            requests
        });
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        set_timeouts(&mut config);
        let client = Client::try_from(config).unwrap();
        let answer = client.apiserver_version().await;
        assert!(
            matches!(&answer, Err(kube::Error::Api(status)) if status.code == 503),
            "{answer:?}"
        );
        drop(client);
        assert_eq!(server.await.unwrap(), 1);
    }
}

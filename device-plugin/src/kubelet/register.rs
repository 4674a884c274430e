//! Our socket in the kubelet's directory: served first, then registered, and both again whenever
//! the kubelet restarted or our socket is gone. Both sockets are looked at again and again. A kubelet
//! that is away is no error.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server, Uri};
use tower::service_fn;

use crate::files::{self, Identity};
use crate::kubelet::plugin::{CallHandlers, Plugin, options};
use crate::kubelet::proto::VERSION;
use crate::kubelet::proto::v1beta1::RegisterRequest;
use crate::kubelet::proto::v1beta1::device_plugin_server::DevicePluginServer;
use crate::kubelet::proto::v1beta1::registration_client::RegistrationClient;
use crate::metrics::count;

/// The file name of the socket of one registration. Each has its own: the kubelet (1.37) refuses a
/// registration whose socket it still counts as connected, and that socket for ever after.
fn socket(resource: &str, registration: u16) -> String {
    format!("{}-{registration:04x}.sock", prefix(resource))
}

/// Whether a file of the kubelet's directory is a socket of ours for this resource, of whichever
/// registration.
fn is_socket(resource: &str, file: &str) -> bool {
    let registration = file
        .strip_prefix(&prefix(resource))
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(".sock"));
    registration.is_some_and(|number| number.len() == 4 && u16::from_str_radix(number, 16).is_ok())
}

fn prefix(resource: &str) -> String {
    let name = resource.strip_prefix("nvidia.com/").unwrap_or(resource);
    format!("aliquot-{}", name.replace('/', "_"))
}

pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Longest wait for the kubelet's answer to a registration.
const DEADLINE: Duration = Duration::from_secs(5);
/// Pause after a failed registration: doubles from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Between two looks at the sockets: a restarted kubelet fails the pods that it admits before we
/// register.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Error)]
pub enum RegisterError {
    #[error("cannot serve {}: {source}", path.display())]
    Serve {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot inspect the kubelet's socket {}: {source}", path.display())]
    Inspect {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot connect to the kubelet at {}: {}", path.display(), cause(source))]
    Connect {
        path: PathBuf,
        source: tonic::transport::Error,
    },
    #[error("the kubelet refused the registration: {0}")]
    Refused(#[from] Box<tonic::Status>),
    #[error("the kubelet did not answer the registration within 5 s")]
    Timeout,
}

/// The innermost cause: tonic's own text is "transport error", whatever happened.
fn cause<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    error.source().map_or(error, cause)
}

/// Keeps the plugin of a resource registered until `stop`. Calls `state` with `None` when it is,
/// and with the reason when it is not.
pub async fn keep_registered(
    directory: PathBuf,
    resource: String,
    handlers: Arc<CallHandlers>,
    state: impl Fn(Option<String>),
    stop: CancellationToken,
) {
    let kubelet = directory.join(KUBELET_SOCKET);
    let mut pause = RETRY.0;
    let mut current: Option<Registered> = None;
    loop {
        let found = files::identity(&kubelet);
        let seen = found.as_ref().ok().copied();
        let stands = |one: &Registered| seen == Some(one.kubelet) && one.has_socket();
        current = current.filter(stands);
        let mut failed = false;
        if let Err(error) = &found {
            state(Some(why_away(error)));
        } else if current.is_none() {
            state(Some("not registered with the kubelet".to_owned()));
            match register(&directory, &resource, &handlers, &stop).await {
                Ok(registered) => {
                    tracing::info!(resource, "registered with the kubelet");
                    count(&handlers.metrics.register, "done");
                    state(None);
                    current = Some(registered);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot register with the kubelet; retrying");
                    count(&handlers.metrics.register, "failed");
                    state(Some(error.to_string()));
                    failed = true;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed(&kubelet, seen, current.as_ref()) => {}
            () = tokio::time::sleep(pause), if failed => {}
        }
        pause = if failed && identity(&kubelet) == seen {
            (pause * 2).min(RETRY.1)
        } else {
            RETRY.0
        };
    }
}

/// Ends when the kubelet's socket is not the one that was `seen`, or ours is gone.
async fn changed(kubelet: &Path, seen: Option<Identity>, registered: Option<&Registered>) {
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    while identity(kubelet) == seen && registered.is_none_or(Registered::has_socket) {
        polls.tick().await;
    }
}

/// One registration; its server ends when this is dropped.
struct Registered {
    socket: PathBuf,
    kubelet: Identity,
    ours: Identity,
    stop: CancellationToken,
}

impl Registered {
    fn has_socket(&self) -> bool {
        identity(&self.socket) == Some(self.ours)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn identity(path: &Path) -> Option<Identity> {
    files::identity(path).ok()
}

/// Why there is no kubelet to register with.
fn why_away(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::NotFound {
        return "the kubelet is not running: no kubelet.sock".to_owned();
    }
    format!("cannot inspect kubelet.sock: {error}")
}

async fn register(
    directory: &Path,
    resource: &str,
    handlers: &Arc<CallHandlers>,
    stop: &CancellationToken,
) -> Result<Registered, RegisterError> {
    let stop = stop.child_token();
    let guard = stop.clone().drop_guard();
    let endpoint = socket(resource, fastrand::u16(..));
    let socket = directory.join(&endpoint);
    let failed = |source| RegisterError::Serve {
        path: socket.clone(),
        source,
    };
    remove_sockets(directory, resource).map_err(failed)?;
    let plugin = Plugin::new(resource, Arc::clone(handlers), stop.clone());
    serve(&socket, plugin, stop.clone()).map_err(failed)?;
    let kubelet = directory.join(KUBELET_SOCKET);
    // Read before the call: if either changes meanwhile, we register again.
    let ours = files::identity(&socket).map_err(failed)?;
    let theirs = files::identity(&kubelet).map_err(|source| RegisterError::Inspect {
        path: kubelet.clone(),
        source,
    })?;
    tokio::time::timeout(DEADLINE, call(&kubelet, resource, endpoint))
        .await
        .map_err(|_| RegisterError::Timeout)??;
    guard.disarm();
    Ok(Registered {
        socket,
        kubelet: theirs,
        ours,
        stop,
    })
}

fn remove_sockets(directory: &Path, resource: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if is_socket(resource, &entry.file_name().to_string_lossy()) {
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Serves on a fresh socket until `stop`.
fn serve(socket: &Path, plugin: Plugin, stop: CancellationToken) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let serving = Server::builder()
        .add_service(DevicePluginServer::new(plugin))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned());
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the device plugin's socket failed; registering again");
        }
    });
    Ok(())
}

async fn call(kubelet: &Path, resource: &str, endpoint: String) -> Result<(), RegisterError> {
    let channel = connect(kubelet)
        .await
        .map_err(|source| RegisterError::Connect {
            path: kubelet.to_owned(),
            source,
        })?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint,
        resource_name: resource.to_owned(),
        options: Some(options()),
    };
    RegistrationClient::new(channel)
        .register(request)
        .await
        .map_err(Box::new)?;
    Ok(())
}

/// A gRPC channel over a unix socket; the host of the URI is not used.
pub(crate) async fn connect(
    socket: &Path,
) -> Result<tonic::transport::Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move {
            let stream = UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(DEADLINE);
    endpoint.connect_with_connector(connector).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_each_resource_and_registration_its_own_socket() {
        let check = |resource: &str, registration: u16, expected: &str| {
            assert_eq!(socket(resource, registration), expected);
            assert!(is_socket(resource, expected), "{expected}");
        };
        check("nvidia.com/gpu", 0, "aliquot-gpu-0000.sock");
        check("nvidia.com/gpu", 0xbeef, "aliquot-gpu-beef.sock");
        let mig = "aliquot-mig-1g.5gb.me-0001.sock";
        check("nvidia.com/mig-1g.5gb.me", 1, mig);
        check("example.com/gpu", 1, "aliquot-example.com_gpu-0001.sock");
        for other in [mig, "aliquot-gpu-a-0001.sock", "aliquot-gpu.sock.d"] {
            assert!(!is_socket("nvidia.com/gpu", other), "{other}");
        }
        assert!(!is_socket("nvidia.com/mig-1g.5gb", mig));
    }

    #[tokio::test]
    async fn says_why_the_kubelet_cannot_be_reached() {
        let dir = tempfile::tempdir().expect("tempdir");
        let socket = dir.path().join(KUBELET_SOCKET);
        drop(UnixListener::bind(&socket).expect("bound"));
        let failed = call(&socket, "nvidia.com/gpu", String::new()).await;
        let failed = failed.expect_err("nobody listens").to_string();
        let refused = ": Connection refused (os error 111)";
        assert!(failed.ends_with(refused), "{failed}");
    }

    #[test]
    fn says_why_the_kubelets_socket_cannot_be_seen() {
        use std::io::{Error, ErrorKind};
        let nowhere = files::identity(Path::new("/nonexistent/kubelet.sock"));
        let nowhere = nowhere.expect_err("none");
        assert!(why_away(&nowhere).contains("not running"));
        // EPERM.
        let denied = Error::from_raw_os_error(1);
        assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
        assert!(why_away(&denied).contains("Operation not permitted"));
    }
}

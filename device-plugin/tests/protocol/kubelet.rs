//! A fake kubelet in a temporary directory: its registration socket, its checkpoint file, and a
//! client of the plugin that registered. It knows nothing of the agent but the protocol.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use api::device_plugin_client::DevicePluginClient;
use api::registration_server::{Registration, RegistrationServer};
use base64::Engine as _;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Longest wait for anything.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);

struct Register(mpsc::UnboundedSender<api::RegisterRequest>);

#[tonic::async_trait]
impl Registration for Register {
    async fn register(
        &self,
        request: Request<api::RegisterRequest>,
    ) -> Result<Response<api::Empty>, Status> {
        let sent = self.0.send(request.into_inner());
        sent.expect("the test receives");
        Ok(Response::new(api::Empty {}))
    }
}

pub(crate) struct Kubelet {
    plugins: PathBuf,
    registrations: mpsc::UnboundedReceiver<api::RegisterRequest>,
    entries: Vec<Value>,
    _stop: DropGuard,
}

impl Kubelet {
    /// Starts as the real one does: every socket in the directory is removed.
    pub(crate) fn start(plugins: &Path) -> Self {
        std::fs::create_dir_all(plugins).expect("made");
        for entry in std::fs::read_dir(plugins).expect("listed") {
            let path = entry.expect("entry").path();
            if path.extension().is_some_and(|ending| ending == "sock") {
                std::fs::remove_file(path).expect("removed");
            }
        }
        let listener = UnixListener::bind(plugins.join("kubelet.sock")).expect("bound");
        let (request_tx, registrations) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let (listener, until) = (
            UnixListenerStream::new(listener),
            stop.clone().cancelled_owned(),
        );
        let service = RegistrationServer::new(Register(request_tx));
        let server = Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming_shutdown(listener, until));
        Self {
            plugins: plugins.to_owned(),
            registrations,
            entries: Vec::new(),
            _stop: stop.drop_guard(),
        }
    }

    pub(crate) async fn registration(&mut self) -> api::RegisterRequest {
        let next = tokio::time::timeout(DEADLINE, self.registrations.recv());
        next.await.expect("registered in time").expect("served")
    }

    /// Connects to the next plugin that registers.
    pub(crate) async fn plugin(&mut self) -> DevicePluginClient<Channel> {
        let request = self.registration().await;
        self.connect(request).await
    }

    pub(crate) async fn connect(
        &self,
        request: api::RegisterRequest,
    ) -> DevicePluginClient<Channel> {
        let socket = self.plugins.join(request.endpoint);
        let connector = tower::service_fn(move |_| {
            let stream = UnixStream::connect(socket.clone());
            async move { Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream.await?)) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connector).await;
        DevicePluginClient::new(channel.expect("served before registered"))
    }

    /// Allocates for a container and writes the checkpoint, as at admission.
    /// Returns the CDI name in the answer.
    pub(crate) async fn admit(
        &mut self,
        plugin: &mut DevicePluginClient<Channel>,
        pod: &str,
        container: &str,
        ids: &[&str],
    ) -> String {
        let resource = "nvidia.com/gpu";
        self.admit_under(resource, plugin, pod, container, ids)
            .await
    }

    /// The same of a resource.
    pub(crate) async fn admit_under(
        &mut self,
        resource: &str,
        plugin: &mut DevicePluginClient<Channel>,
        pod: &str,
        container: &str,
        ids: &[&str],
    ) -> String {
        let devices_ids = ids.iter().map(|&id| id.to_owned()).collect();
        let container_requests = vec![api::ContainerAllocateRequest { devices_ids }];
        let answer = plugin.allocate(api::AllocateRequest { container_requests });
        let answer = answer.await.expect("allocated").into_inner();
        let answer = &answer.container_responses[0];
        let name = answer.cdi_devices[0].name.clone();
        let response = base64::engine::general_purpose::STANDARD.encode(answer.encode_to_vec());
        self.entries.push(json!({
            "PodUID": pod, "ContainerName": container, "ResourceName": resource,
            "DeviceIDs": {"-1": ids}, "AllocResp": response,
        }));
        self.write_checkpoint();
        name
    }

    /// Removes a pod's devices from the checkpoint.
    pub(crate) fn forget(&mut self, pod: &str) {
        self.entries.retain(|entry| entry["PodUID"] != pod);
        self.write_checkpoint();
    }

    fn write_checkpoint(&self) {
        let file = json!({
            "Data": {"PodDeviceEntries": self.entries, "RegisteredDevices": {}},
            "Checksum": 1,
        });
        let path = self.plugins.join("kubelet_internal_checkpoint");
        std::fs::write(path, file.to_string()).expect("written");
    }
}

/// Calls `PreStartContainer`; the error's text when it is refused.
pub(crate) async fn prestart(
    plugin: &mut DevicePluginClient<Channel>,
    ids: &[&str],
) -> Result<(), String> {
    let devices_ids = ids.iter().map(|&id| id.to_owned()).collect();
    let request = api::PreStartContainerRequest { devices_ids };
    let answer = plugin.pre_start_container(request).await;
    answer
        .map(drop)
        .map_err(|status| status.message().to_owned())
}

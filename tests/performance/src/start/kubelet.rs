//! The kubelet's side of the device plugin API: registration, checkpoint, and a client of the
//! plugin that registered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_device_plugin::kubelet::proto::v1beta1 as protocol;
use anyhow::{Context as _, Result};
use base64::Engine as _;
use prost::Message as _;
use protocol::registration_server::{Registration, RegistrationServer};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::{Plugin, RESOURCE};

struct Register(mpsc::UnboundedSender<protocol::RegisterRequest>);

#[tonic::async_trait]
impl Registration for Register {
    async fn register(
        &self,
        request: Request<protocol::RegisterRequest>,
    ) -> Result<Response<protocol::Empty>, Status> {
        let sent = self.0.send(request.into_inner());
        sent.map_err(|_| Status::unavailable("the benchmark has ended"))?;
        Ok(Response::new(protocol::Empty {}))
    }
}

pub(super) struct Kubelet {
    plugins: PathBuf,
    registrations: mpsc::UnboundedReceiver<protocol::RegisterRequest>,
    entries: Vec<Value>,
}

impl Kubelet {
    pub(super) fn start(plugins: &Path) -> Result<Self> {
        let listener = UnixListener::bind(plugins.join("kubelet.sock"))?;
        let (request_tx, registrations) = mpsc::unbounded_channel();
        let serving = Server::builder()
            .add_service(RegistrationServer::new(Register(request_tx)))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(serving);
        Ok(Self {
            plugins: plugins.to_owned(),
            registrations,
            entries: Vec::new(),
        })
    }

    /// A client of the plugin for whole GPUs.
    pub(super) async fn plugin(&mut self, patience: Duration) -> Result<Plugin> {
        let socket = loop {
            let request = tokio::time::timeout(patience, self.registrations.recv()).await;
            let request = request.context("no registration in time")?;
            let request = request.context("the registration ended")?;
            if request.resource_name == RESOURCE {
                break self.plugins.join(request.endpoint);
            }
        };
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move {
                let stream = UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(Plugin::new(channel))
    }

    /// Records that container `main` of this pod has this device id, with this response.
    pub(super) fn record(
        &mut self,
        pod: &str,
        device_id: &str,
        answer: &protocol::ContainerAllocateResponse,
    ) {
        let answer = base64::engine::general_purpose::STANDARD.encode(answer.encode_to_vec());
        self.entries.push(json!({
            "PodUID": pod, "ContainerName": "main", "ResourceName": RESOURCE,
            "DeviceIDs": {"-1": [device_id]}, "AllocResp": answer,
        }));
    }

    /// Writes it as the kubelet does: by rename.
    pub(super) fn write_checkpoint(&self) -> Result<()> {
        let file = json!({"Data": {"PodDeviceEntries": self.entries, "RegisteredDevices": {}},
                          "Checksum": 1});
        let path = self.plugins.join("kubelet_internal_checkpoint");
        let temporary = self.plugins.join(".checkpoint.tmp");
        std::fs::write(&temporary, file.to_string())?;
        Ok(std::fs::rename(temporary, path)?)
    }
}

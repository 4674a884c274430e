//! The kubelet's `PodResources` API: which container has which device ids, by the kubelet's own account.

use aliquot_cluster::Cluster;
use anyhow::Result;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

pub use v1::{AllocatableResourcesRequest, ContainerDevices, ListPodResourcesRequest};

#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
mod v1 {
    tonic::include_proto!("v1");
}

/// A client of the API.
pub type Client = v1::pod_resources_lister_client::PodResourcesListerClient<Channel>;

/// A client of this cluster's kubelet.
pub async fn client(cluster: &Cluster) -> Result<Client> {
    let socket = cluster.kubelet_dir().join("pod-resources/kubelet.sock");
    let connector = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The host of the URI is not used.
    let endpoint = Endpoint::from_static("http://localhost");
    Ok(Client::new(
        endpoint.connect_with_connector(connector).await?,
    ))
}

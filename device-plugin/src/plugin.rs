//! The device plugin service: decodes a call, asks the deciding part, encodes.
//!
//! Fed by: the kubelet over our socket.
//! Must not: decide; call the API server in Allocate.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::inventory::Published;
use crate::metrics::{Metrics, count};
use crate::prestart::{PreStart, PreStartError, Started};
use crate::proto::HEALTHY;
use crate::proto::v1beta1 as api;
use crate::proto::v1beta1::device_plugin_server::DevicePlugin;
use crate::seat::{Ids, Name};
use crate::steer;
use crate::units::seats;

/// How long a request for a preference waits for the pod that it is about: the
/// kubelet's watch may be ahead of ours. Admission of other pods waits with it.
const PATIENCE: Duration = Duration::from_millis(300);

/// The service of one resource. Clones share everything.
#[derive(Clone)]
pub struct Plugin {
    resource: Arc<str>,
    prestart: Arc<PreStart>,
    metrics: Metrics,
    /// Ends the streams of one registration.
    stop: CancellationToken,
}

/// What the kubelet is told about us, at registration and when it asks.
pub fn options() -> api::DevicePluginOptions {
    api::DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    }
}

impl Plugin {
    /// A service whose streams end with `stop`.
    pub fn new(
        resource: &str,
        prestart: Arc<PreStart>,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Self {
        Self {
            resource: resource.into(),
            prestart,
            metrics,
            stop,
        }
    }

    async fn prefer(
        &self,
        request: &api::ContainerPreferredAllocationRequest,
    ) -> Result<api::ContainerPreferredAllocationResponse, Status> {
        let size = usize::try_from(request.allocation_size)
            .map_err(|_| Status::invalid_argument("allocation_size is negative"))?;
        let wanted = self.wanted(size).await;
        let outcome = if wanted.is_some() {
            "steered"
        } else {
            "unsteered"
        };
        count(&self.metrics.steer, outcome);
        Ok(api::ContainerPreferredAllocationResponse {
            device_i_ds: steer::prefer(
                &request.available_device_i_ds,
                &request.must_include_device_i_ds,
                size,
                &wanted.unwrap_or_default(),
            ),
        })
    }

    /// The cards of the container that is next, waiting a little for it.
    async fn wanted(&self, size: usize) -> Option<Vec<steer::Wanted>> {
        let until = Instant::now() + PATIENCE;
        let mut changes = self.prestart.pods.subscribe();
        loop {
            let this = Arc::clone(&self.prestart);
            let entries = match spawn_blocking(move || this.entries()).await.ok()? {
                Ok(entries) => entries,
                Err(error) => {
                    tracing::warn!(%error, "cannot steer");
                    return None;
                }
            };
            let pods = self.prestart.pods.in_order();
            let found = steer::oldest_unserved(&pods, &entries, &self.resource, size);
            if found.is_some() {
                return found;
            }
            timeout_at(until, changes.changed()).await.ok()?.ok()?;
        }
    }
}

/// Seat lists of a resource as they change, the current one first.
fn seat_lists(
    published: &Published,
    resource: Arc<str>,
) -> impl Stream<Item = Vec<api::Device>> + use<> {
    let nodes = WatchStream::new(published.subscribe());
    let lists = nodes.map(move |node| seats(&node, &resource));
    let mut last: Option<Vec<api::Device>> = None;
    lists.filter(move |list| {
        let changed = last.as_ref() != Some(list);
        if changed {
            last = Some(list.clone());
        }
        std::future::ready(changed)
    })
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = BoxStream<'static, Result<api::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let resource = Arc::clone(&self.resource);
        let lists = seat_lists(&self.prestart.published, Arc::clone(&resource));
        let answers = lists.map(move |devices| {
            let healthy = devices.iter().filter(|seat| seat.health == HEALTHY);
            let (seats, healthy) = (devices.len(), healthy.count());
            tracing::info!(%resource, seats, healthy, "seats shown to the kubelet");
            Ok(api::ListAndWatchResponse { devices })
        });
        let answers = answers.take_until(self.stop.clone().cancelled_owned());
        Ok(Response::new(answers.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        let mut answer = api::PreferredAllocationResponse::default();
        for container in &request.get_ref().container_requests {
            answer
                .container_responses
                .push(self.prefer(container).await?);
        }
        Ok(Response::new(answer))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let began = std::time::Instant::now();
        let mut answer = api::AllocateResponse::default();
        self.prestart.chosen().await;
        for container in request.into_inner().container_requests {
            let ids: Ids = container.devices_ids.into_iter().collect();
            let name = Name::new(&ids, fastrand::u64(..)).ok_or_else(|| {
                let text = format!("seats {ids:?}; accepted: ids of the form <GPU uuid>::<n>");
                Status::invalid_argument(text)
            })?;
            tracing::info!(seats = ?ids, %name, "allocate");
            self.metrics.allocate.inc();
            let given = self.prestart.hand_over(&name, &ids);
            answer.container_responses.push(given);
        }
        self.metrics.seconds.since("allocate", began);
        Ok(Response::new(answer))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        let ids: Ids = request.into_inner().devices_ids.into_iter().collect();
        let began = std::time::Instant::now();
        let result = self.prestart.start(&self.resource, ids.clone()).await;
        self.metrics.seconds.since("prestart", began);
        let outcome = match &result {
            Ok(Started::Accepted) => "accepted",
            Ok(Started::Served) => "served",
            Ok(Started::Untouched) => "untouched",
            Err(PreStartError::Refused(_)) => "refused",
            Err(_) => "failed",
        };
        count(&self.metrics.prestart, outcome);
        match result {
            Ok(_) => {
                tracing::info!(seats = ?ids, outcome, "container may start");
                Ok(Response::new(api::PreStartContainerResponse {}))
            }
            Err(error) => {
                tracing::warn!(seats = ?ids, outcome, %error, "container may not start");
                let text = format!("aliquot: {error}");
                Err(match error {
                    PreStartError::Refused(_) => Status::failed_precondition(text),
                    _ => Status::unavailable(text),
                })
            }
        }
    }
}

//! The device plugin service: decodes the kubelet's calls and encodes the answers. Decisions are
//! made elsewhere, and Allocate never calls the API server.

use std::sync::Arc;
use std::time::Duration;

use aliquot_node_state::allocate_answer::{NVIDIA_VISIBLE, VOID};
use aliquot_node_state::device_id::{AnswerName, DeviceIds};
use futures::Stream;
use futures::stream::{BoxStream, StreamExt};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::allocation::node_allocations::NodeAllocations;
use crate::allocation::start::{ContainerStarter, StartError, Started};
use crate::gpus::inventory::NodePublisher;
use crate::kubelet::device_list::plugin_devices;
use crate::kubelet::preferred_allocation;
use crate::kubelet::proto::HEALTHY;
use crate::kubelet::proto::v1beta1 as api;
use crate::kubelet::proto::v1beta1::device_plugin_server::DevicePlugin;
use crate::kubelet::resource_owner::AdvertisedLists;
use crate::metrics::{Metrics, count};

/// How long `GetPreferredAllocation` waits for the pod that it is about: the kubelet's watch may be
/// ahead of ours. The kubelet admits no other pod meanwhile.
const PATIENCE: Duration = Duration::from_millis(300);

/// What serves the calls, whatever their resource.
pub struct CallHandlers {
    pub starter: Arc<ContainerStarter>,
    pub advertised: AdvertisedLists,
    pub metrics: Metrics,
}

/// The service of one resource. Clones share everything.
#[derive(Clone)]
pub struct Plugin {
    resource: Arc<str>,
    handlers: Arc<CallHandlers>,
    /// Ends the streams of one registration.
    stop: CancellationToken,
}

/// The options of the plugin, for registration and `GetDevicePluginOptions`.
pub fn options() -> api::DevicePluginOptions {
    api::DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    }
}

impl Plugin {
    /// A service whose streams end with `stop`.
    pub fn new(resource: &str, handlers: Arc<CallHandlers>, stop: CancellationToken) -> Self {
        Self {
            resource: resource.into(),
            handlers,
            stop,
        }
    }

    fn allocations(&self) -> &Arc<NodeAllocations> {
        &self.handlers.starter.allocations
    }

    async fn prefer(
        &self,
        request: &api::ContainerPreferredAllocationRequest,
    ) -> Result<api::ContainerPreferredAllocationResponse, Status> {
        let size = usize::try_from(request.allocation_size)
            .map_err(|_| Status::invalid_argument("allocation_size is negative"))?;
        let preferred = self.preferred_devices(size).await;
        let outcome = if preferred.is_some() {
            "steered"
        } else {
            "unsteered"
        };
        count(&self.handlers.metrics.steer, outcome);
        Ok(api::ContainerPreferredAllocationResponse {
            device_i_ds: preferred_allocation::preferred_ids(
                &request.available_device_i_ds,
                &request.must_include_device_i_ds,
                size,
                &preferred.unwrap_or_default(),
            ),
        })
    }

    /// The devices of the container that the kubelet allocates next, waiting a little for its pod.
    async fn preferred_devices(
        &self,
        size: usize,
    ) -> Option<Vec<preferred_allocation::GrantedDevice>> {
        let until = Instant::now() + PATIENCE;
        let mut changes = self.allocations().pods.subscribe();
        loop {
            let known = Arc::clone(self.allocations());
            let entries = match spawn_blocking(move || known.entries()).await.ok()? {
                Ok(entries) => entries,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the device checkpoint; the kubelet chooses device ids without a preference");
                    return None;
                }
            };
            let pods = self.allocations().pods.in_order();
            let found =
                preferred_allocation::next_waiting_grant(&pods, &entries, &self.resource, size);
            if found.is_some() {
                return found;
            }
            timeout_at(until, changes.changed()).await.ok()?.ok()?;
        }
    }
}

/// The device lists of a resource as they change, the current one first.
fn device_lists(
    published: &NodePublisher,
    resource: Arc<str>,
) -> impl Stream<Item = Vec<api::Device>> + use<> {
    let nodes = WatchStream::new(published.subscribe());
    let lists = nodes.map(move |node| plugin_devices(&node, &resource));
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
        let lists = device_lists(&self.allocations().published, Arc::clone(&resource));
        let advertised = self.handlers.advertised.clone();
        advertised.open(&resource);
        let answers = lists.map(move |devices| {
            advertised.record(&resource, &devices);
            let healthy = devices.iter().filter(|device| device.health == HEALTHY);
            let (replicas, healthy) = (devices.len(), healthy.count());
            tracing::info!(%resource, replicas, healthy, "advertised replicas to the kubelet");
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
        for container in request.into_inner().container_requests {
            let ids: DeviceIds = container.devices_ids.into_iter().collect();
            let name = AnswerName::new(&ids, fastrand::u64(..)).ok_or_else(|| {
                let text = format!("device ids {ids:?}; expected: ids of the form <GPU uuid>::<n>");
                Status::invalid_argument(text)
            })?;
            tracing::info!(device_ids = ?ids, %name, "answered Allocate");
            self.handlers.metrics.allocate.inc();
            // Its spec is written when the pod is known.
            let cdi_devices = vec![api::CdiDevice {
                name: name.qualified(),
            }];
            // Below a runtime that ignores CDI, NVIDIA's would open the GPUs that the image asks for.
            let envs = [(NVIDIA_VISIBLE.to_owned(), VOID.to_owned())].into();
            answer
                .container_responses
                .push(api::ContainerAllocateResponse { envs, cdi_devices });
        }
        self.handlers.metrics.seconds.since("allocate", began);
        Ok(Response::new(answer))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        let ids: DeviceIds = request.into_inner().devices_ids.into_iter().collect();
        let began = std::time::Instant::now();
        let CallHandlers {
            starter, metrics, ..
        } = &*self.handlers;
        let result = starter.start(&self.resource, ids.clone()).await;
        metrics.seconds.since("prestart", began);
        let outcome = match &result {
            Ok(Started::Accepted) => "accepted",
            Ok(Started::Served) => "served",
            Ok(Started::Untouched) => "untouched",
            Err(StartError::Refused(_)) => "refused",
            Err(_) => "failed",
        };
        count(&metrics.prestart, outcome);
        match result {
            Ok(_) => {
                tracing::info!(device_ids = ?ids, outcome, "container may start");
                Ok(Response::new(api::PreStartContainerResponse {}))
            }
            Err(error) => {
                tracing::warn!(device_ids = ?ids, outcome, %error, "container may not start");
                let text = format!("aliquot: {error}");
                Err(match error {
                    StartError::Refused(_) => Status::failed_precondition(text),
                    _ => Status::unavailable(text),
                })
            }
        }
    }
}

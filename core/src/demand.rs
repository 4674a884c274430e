//! What a pod asks for: its containers in order, each with its shares.

use std::borrow::Cow;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::gpu_policy::GpuPolicy;
use crate::id::Namespace;
use crate::inventory::Gpu;
use crate::mig;
use crate::node::{HostResources, Requests};
use crate::reason::Reason;
use crate::replicas::{self, Replicas};
use crate::request::GpuRequest;
use crate::rules::DeviceRules;
use crate::score::Policy;

/// When a container runs, by Kubernetes' rules (KEP-753 for sidecars).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A plain init container: runs to its end before the next one starts.
    Init,
    /// An init container with `restartPolicy: Always`: runs on until the pod ends.
    Sidecar,
    /// An app container.
    App,
}

/// One container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerDemand {
    /// The container's name, unique in the pod.
    pub name: String,
    /// When it runs.
    pub stage: Stage,
    /// Its shares, each under another resource; empty for a container without a GPU.
    pub requests: Vec<GpuRequest>,
}

/// A whole pod's demand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The pod's namespace, for reservations.
    pub namespace: Namespace,
    /// The resources that it asks under: first the cluster's main resource, such as
    /// `nvidia.com/gpu`, then others that its containers name.
    pub resources: Vec<Arc<str>>,
    /// Init containers and sidecars in spec order, then app containers.
    pub containers: Vec<ContainerDemand>,
    /// CPU and memory of the whole pod, by Kubernetes' effective rule.
    pub host: HostResources,
    /// 0 is high, 1 is low.
    pub priority: u8,
    /// The pod's own choice of node policy, if any.
    pub node_policy: Option<Policy>,
    /// The pod's own choice of GPU policy, if any.
    pub gpu_policy: Option<GpuPolicy>,
    /// Its requirements on devices besides capacity.
    pub rules: DeviceRules,
}

impl Demand {
    /// The demand as far as it matters to these nodes: namespaces without any reservation
    /// are all alike.
    pub fn shape(&self, cluster: &Cluster) -> Cow<'_, Self> {
        if self.namespace.as_str().is_empty() || cluster.reserves_for(&self.namespace) {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self {
            namespace: "".into(),
            ..self.clone()
        })
    }

    /// Whether any container asks for a share.
    pub fn requests_gpu(&self) -> bool {
        self.containers.iter().any(|c| !c.requests.is_empty())
    }

    /// The name of the resource that this is requested under.
    pub fn resource(&self, request: &GpuRequest) -> &str {
        let name = self.resources.get(usize::from(request.resource));
        name.map_or("", |name| name)
    }

    /// The replicas that it requests under the resource with this index.
    pub(crate) fn replicas_under(&self, resource: usize) -> u32 {
        let containers = self.containers.iter().map(|container| {
            let requests = container.requests.iter();
            let own = requests.filter(|request| usize::from(request.resource) == resource);
            let own = own.fold(0_u32, |sum, request| sum.saturating_add(request.count));
            (container.stage, own)
        });
        replicas::effective(containers)
    }

    /// The replicas that it requests of the kubelet.
    pub fn replicas(&self) -> Replicas {
        let resources = self.resources.iter().enumerate();
        resources
            .map(|(place, resource)| (resource.clone(), self.replicas_under(place)))
            .collect()
    }

    /// What it requests of a node besides shares of devices.
    pub fn requests(&self) -> Requests {
        Requests {
            host: self.host,
            replicas: self.replicas(),
        }
    }

    /// Whether this container's shares are all on one device.
    pub(crate) fn uses_single_device(&self, container: usize) -> bool {
        match self.containers[container].requests.as_slice() {
            [request] => request.count == 1 || self.rules.same_device,
            _ => false,
        }
    }

    /// Refuses a device that is reserved for other namespaces.
    pub(crate) fn refused_by_reservation(&self, gpu: &Gpu) -> Option<Reason> {
        let reserved = !gpu.reserved.is_empty() && !gpu.reserved.contains(&self.namespace);
        reserved.then_some(Reason::CardReserved)
    }

    /// Whether any container asks for MIG instances.
    pub fn requests_mig_instances(&self) -> bool {
        let mut names = self.resources.iter();
        names.any(|name| name.starts_with(mig::RESOURCES))
    }

    /// The stage of each container, for [`crate::usage::effective`].
    pub fn stages(&self) -> impl Iterator<Item = (&str, Stage)> {
        self.containers.iter().map(|c| (c.name.as_str(), c.stage))
    }
}

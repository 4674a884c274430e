//! What a pod asks for: its containers in order, each with its shares.

use std::sync::Arc;

use crate::id::Namespace;
use crate::mig;
use crate::policy::{GpuPolicy, Policy};
use crate::replicas::{self, Replicas};
use crate::request::GpuRequest;
use crate::rules::{DeviceRules, ModelRules};
use crate::units::HostResources;
use crate::usage::Stage;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerDemand {
    /// The container's name, unique in the pod.
    pub name: String,
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
    /// Whether any container asks for a share.
    pub fn requests_gpu(&self) -> bool {
        self.containers.iter().any(|c| !c.requests.is_empty())
    }

    /// The name of the resource that this is requested under.
    pub fn resource(&self, request: &GpuRequest) -> &str {
        let name = self.resources.get(usize::from(request.resource));
        name.map_or("", |name| name)
    }

    /// The replicas that it requests of the kubelet under each of its resources.
    pub(crate) fn replicas_by_resource(&self) -> impl Iterator<Item = (&Arc<str>, u32)> {
        let under = move |resource: usize| {
            let containers = self.containers.iter().map(|container| {
                let requests = container.requests.iter();
                let own = requests.filter(|request| usize::from(request.resource) == resource);
                let count = own.fold(0_u32, |sum, request| sum.saturating_add(request.count));
                (container.stage, count)
            });
            replicas::effective(containers)
        };
        let resources = self.resources.iter().enumerate();
        resources.map(move |(place, resource)| (resource, under(place)))
    }

    /// The replicas that it requests of the kubelet.
    pub fn replicas(&self) -> Replicas {
        let resources = self.replicas_by_resource();
        resources
            .map(|(resource, count)| (resource.clone(), count))
            .collect()
    }

    /// What it requests of a node besides shares of devices.
    pub fn requests(&self) -> Requests {
        Requests {
            host: self.host,
            replicas: self.replicas(),
            models: self.rules.models(),
        }
    }

    /// Whether this container's shares are all on one device.
    pub(crate) fn uses_single_device(&self, container: usize) -> bool {
        match self.containers[container].requests.as_slice() {
            [request] => request.count == 1 || self.rules.same_device,
            _ => false,
        }
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

/// What pods request of a node besides shares of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub host: HostResources,
    pub replicas: Replicas,
    /// The models that the pod accepts, if not all; a sum of several pods has none.
    pub models: Option<Arc<ModelRules>>,
}

impl Requests {
    pub fn plus(&mut self, others: &Self) {
        self.host = self.host.plus(others.host);
        self.replicas.plus(&others.replicas);
    }
}

impl From<HostResources> for Requests {
    /// Requests no replicas.
    fn from(host: HostResources) -> Self {
        Self {
            host,
            ..Self::default()
        }
    }
}

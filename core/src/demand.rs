//! What a pod asks for: its containers in their order, each with its share.
//!
//! Fed by: `aliquot-k8s`, from a pod's spec and annotations.
//! Must not: place anything; that is [`crate::fit`].

use std::borrow::Cow;
use std::sync::Arc;

use crate::card_policy::CardPolicy;
use crate::cluster::Cluster;
use crate::id::Namespace;
use crate::inventory::Gpu;
use crate::mig;
use crate::node::{Compute, Requests};
use crate::reason::Reason;
use crate::request::Ask;
use crate::rules::Rules;
use crate::score::Policy;
use crate::seats::{self, Seats};

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
    /// Its shares, each under another resource; none for a container without a GPU.
    pub asks: Vec<Ask>,
}

/// A whole pod's demand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The pod's namespace: some cards are kept for some of them.
    pub namespace: Namespace,
    /// The resources that it asks under: first the cluster's name of the usual one,
    /// such as `nvidia.com/gpu`, then others that its containers name.
    pub resources: Vec<Arc<str>>,
    /// Init containers and sidecars in spec order, then app containers.
    pub containers: Vec<ContainerDemand>,
    /// CPU and memory that the whole pod requests, by Kubernetes' effective rule.
    pub host: Compute,
    /// 0 high, 1 low.
    pub priority: u8,
    /// The pod's own choice of node policy, if any.
    pub node_policy: Option<Policy>,
    /// The pod's own choice of card policy, if any.
    pub gpu_policy: Option<CardPolicy>,
    /// What it demands of cards besides room.
    pub rules: Rules,
}

impl Demand {
    /// What of it matters to these nodes: a namespace that nothing is kept for is like
    /// any other.
    pub fn shape(&self, cluster: &Cluster) -> Cow<'_, Self> {
        if self.namespace.as_str().is_empty() || cluster.keeps_for(&self.namespace) {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self {
            namespace: "".into(),
            ..self.clone()
        })
    }

    /// Any container asks for a share.
    pub fn asks(&self) -> bool {
        self.containers.iter().any(|c| !c.asks.is_empty())
    }

    /// The name of the resource that this is asked under.
    pub fn resource(&self, ask: &Ask) -> &str {
        let name = self.resources.get(usize::from(ask.resource));
        name.map_or("", |name| name)
    }

    /// How many seats it requests under one of its resources, by place.
    pub(crate) fn seats_under(&self, resource: usize) -> u32 {
        let containers = self.containers.iter().map(|container| {
            let asks = container.asks.iter();
            let own = asks.filter(|ask| usize::from(ask.resource) == resource);
            let own = own.fold(0_u32, |sum, ask| sum.saturating_add(ask.count));
            (container.stage, own)
        });
        seats::effective(containers)
    }

    /// The seats that it requests of a kubelet.
    pub fn seats(&self) -> Seats {
        let resources = self.resources.iter().enumerate();
        resources
            .map(|(place, resource)| (resource.clone(), self.seats_under(place)))
            .collect()
    }

    /// What it requests of a node besides shares of cards.
    pub fn requests(&self) -> Requests {
        Requests {
            host: self.host,
            seats: self.seats(),
        }
    }

    /// This container asks for shares of one unit and no more.
    pub(crate) fn wants_one_unit(&self, container: usize) -> bool {
        match self.containers[container].asks.as_slice() {
            [ask] => ask.count == 1 || self.rules.same_unit,
            _ => false,
        }
    }

    /// Why the pod may have nothing of this unit, which is kept for others.
    pub(crate) fn kept_from(&self, gpu: &Gpu) -> Option<Reason> {
        let kept = !gpu.reserved.is_empty() && !gpu.reserved.contains(&self.namespace);
        kept.then_some(Reason::CardReserved)
    }

    /// Some container asks for instances of cards.
    pub fn wants_instances(&self) -> bool {
        let mut names = self.resources.iter();
        names.any(|name| name.starts_with(mig::RESOURCES))
    }

    /// The stage of each container, for [`crate::usage::effective`].
    pub fn stages(&self) -> impl Iterator<Item = (&str, Stage)> {
        self.containers.iter().map(|c| (c.name.as_str(), c.stage))
    }
}

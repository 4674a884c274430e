//! Which GPUs are missing for pending pods: the need that an autoscaler cannot count by itself,
//! because it takes a share for a whole GPU, or for something that no node has.
//!
//! Pods are placed by [`crate::fit`], the largest first: on the nodes that there are, then on GPUs
//! that could be added. New GPUs are counted one by one, not by node, so that the autoscaler may
//! choose the size of a node; a pod that needs several at once gets them together.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::{Cluster, NodeSet};
use crate::decide;
use crate::demand::Demand;
use crate::fit;
use crate::inventory::{Gpu, Inventory, Mode};
use crate::node::{DeviceState, NodePublication, NodeState};
use crate::quota::{Headroom, QuotaAmount};
use crate::refusal::Reason;
use crate::request::{MAX_GPU_MIB, Memory};
use crate::score::Policies;
use crate::units::{HostResources, Mib};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeType {
    pub gpus: u32,
    /// NVML's product name of each.
    pub model: String,
    /// Memory of each that may be allocated.
    pub memory: Mib,
    /// Replicas of each (`deviceSplitCount`).
    pub replicas: u32,
    /// The resource that they are advertised under.
    pub resource: String,
    /// CPU and memory of the node that pods may request.
    pub host: HostResources,
}

impl NodeType {
    pub fn node(&self, gpus: u32) -> NodeState {
        let gpu = |index: u32| {
            // The comma: no pod's list of devices can name it, as it can name no GPU that is to come.
            let uuid = format!("new,{index}").into();
            Gpu {
                replicas: self.replicas,
                resource: self.resource.clone(),
                ..Gpu::vgpu(uuid, index, self.model.clone(), self.memory)
            }
        };
        let inventory = Inventory::new((0..gpus).map(gpu).collect());
        let published = NodePublication {
            inventory: Some(Arc::new(inventory)),
            allocatable: self.host,
            ..NodePublication::default()
        };
        NodeState::new(&published, &[], HostResources::default())
    }

    /// Whether a node is like a new one with this many GPUs, or more, and nobody uses its GPUs.
    fn is_like(&self, node: &NodeState, gpus: u32) -> bool {
        let is_new = |(model, device): (&str, &DeviceState)| {
            model == self.model
                && (device.mode, device.closed, device.unmanaged) == (Mode::Vgpu, None, Mib(0))
                && device.allocated.pods == 0
        };
        node.closed.is_none()
            && node.devices.len() >= gpus as usize
            && node.resources.iter().all(|known| **known == *self.resource)
            && node.models().all(is_new)
    }
}

/// A pod that kube-scheduler reports as unschedulable.
#[derive(Clone, Debug)]
pub struct UnschedulablePod<'a> {
    pub demand: &'a Demand,
    /// `spec.priority`.
    pub priority: i32,
    /// Its group: pods of different groups share no new GPU.
    pub group: usize,
    /// The nodes of its last filter call; `None` if kube-scheduler ruled out every node by itself.
    pub offered: Option<&'a NodeSet>,
    /// The nodes that joined, or returned, since it was first seen as unschedulable.
    pub joined: &'a NodeSet,
}

impl UnschedulablePod<'_> {
    /// Whether kube-scheduler would place it on the node in this slot if its GPUs suffice.
    fn is_offered(&self, slot: usize) -> bool {
        match self.offered {
            Some(offered) => offered.contains(slot),
            None => self.joined.contains(slot),
        }
    }
}

/// What pods and the autoscaler may use.
#[derive(Debug)]
pub struct Supply<'a> {
    pub cluster: &'a Cluster,
    /// The types of nodes that the autoscaler may add.
    pub types: &'a [NodeType],
    /// For each group, the indices of the types that its pods may use, in order of preference.
    pub groups: &'a [Vec<usize>],
    /// What the quotas leave, by namespace.
    pub headrooms: HashMap<&'a str, Headroom>,
    /// For pods that choose none.
    pub policies: &'a Policies,
}

/// GPUs of one node that have to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingGpus {
    /// The group of the pods that need them.
    pub group: usize,
    /// An index in the types.
    pub node_type: usize,
    /// How many, on one node.
    pub gpus: u32,
    /// CPU that these pods request together, in thousandths.
    pub cpu: u64,
    /// Host memory that they request together, in MiB.
    pub memory: u64,
}

/// The GPUs that are missing for these pods. A pod that its namespace's quotas refuse, or that no
/// new GPU would help, needs none. In the latter case a node joined since it was first refused, and
/// either it fits there, and kube-scheduler does not offer the node, or it fits there not even while
/// nobody uses the GPUs, as by their NUMA nodes: another one would end the same way.
pub fn missing_gpus(pods: &[UnschedulablePod<'_>], supply: Supply<'_>) -> Vec<MissingGpus> {
    let mut order: Vec<_> = pods.iter().collect();
    order.sort_by_cached_key(|pod| (Reverse(pod.priority), Reverse(size(pod.demand)), pod.group));
    let mut packing = Packing {
        supply,
        changed: HashMap::new(),
        added: Vec::new(),
        open: HashMap::new(),
    };
    for pod in order {
        packing.place(pod);
    }
    let missing = packing.added.iter().map(|node| MissingGpus {
        group: node.group,
        node_type: node.node_type,
        gpus: node.gpus,
        cpu: node.state.host.requested.cpu.0,
        memory: node.state.host.requested.memory.0,
    });
    missing.collect()
}

/// Devices, memory and compute that a pod asks for at most, so that large pods come first.
fn size(demand: &Demand) -> (u32, u64, u32) {
    let requests = demand.containers.iter().flat_map(|c| &c.requests);
    requests.fold((0, 0, 0), |(count, memory, cores), request| {
        let one = match request.memory {
            Memory::Mib(memory) => memory.0,
            Memory::Share(part) => Mib(MAX_GPU_MIB).share(part).0,
        };
        (
            count.max(request.count),
            memory.max(one),
            cores.max(request.cores.0),
        )
    })
}

/// A new node with as many GPUs as its pods need.
struct AddedNode {
    group: usize,
    node_type: usize,
    gpus: u32,
    state: NodeState,
}

/// Where pods of one shape may still fit. Capacity only shrinks while pods are placed, so where a
/// shape does not fit once, it never will.
struct OpenNodes {
    slots: Vec<usize>,
    added: Vec<usize>,
    /// Added nodes from here on were not tried.
    next: usize,
}

struct Packing<'a> {
    supply: Supply<'a>,
    /// Nodes that differ from the cluster's.
    changed: HashMap<usize, NodeState>,
    added: Vec<AddedNode>,
    open: HashMap<Cow<'a, Demand>, OpenNodes>,
}

impl<'a> Packing<'a> {
    fn place(&mut self, pod: &UnschedulablePod<'a>) {
        let shape = decide::shape(pod.demand, self.supply.cluster);
        let slots = || self.supply.cluster.iter().map(|(slot, _, _)| slot);
        let mut open = self.open.remove(&shape).unwrap_or_else(|| OpenNodes {
            slots: slots().collect(),
            added: Vec::new(),
            next: 0,
        });
        if !self.place_on_existing(pod, &mut open.slots) {
            self.place_on_added(pod, &mut open);
        }
        self.open.insert(shape, open);
    }

    /// Whether the pod needs no new GPU: because it was placed on a node, or because a new node
    /// would not help it.
    fn place_on_existing(&mut self, pod: &UnschedulablePod<'a>, slots: &mut Vec<usize>) -> bool {
        let (mut at, mut is_helpless) = (0, false);
        while let Some(&slot) = slots.get(at) {
            let changed = self.changed.get(&slot);
            let state = changed.or_else(|| self.supply.cluster.at(slot).map(AsRef::as_ref));
            let placed = state.and_then(|state| placed(state, pod.demand, self.supply.policies));
            let Some((state, amount)) = placed else {
                slots.remove(at);
                continue;
            };
            if !self.allows(pod, amount) {
                return true;
            }
            if pod.is_offered(slot) {
                self.take(pod, amount);
                self.changed.insert(slot, state);
                return true;
            }
            is_helpless |= pod.joined.contains(slot);
            at += 1;
        }
        is_helpless
    }

    fn place_on_added(&mut self, pod: &UnschedulablePod<'a>, open: &mut OpenNodes) {
        open.added.extend(open.next..self.added.len());
        open.next = self.added.len();
        let mut at = 0;
        while let Some(&index) = open.added.get(at) {
            let node = &self.added[index];
            if node.group != pod.group {
                at += 1;
                continue;
            }
            let Some((state, amount)) = placed(&node.state, pod.demand, self.supply.policies)
            else {
                open.added.remove(at);
                continue;
            };
            if self.allows(pod, amount) {
                self.take(pod, amount);
                self.added[index].state = state;
            }
            return;
        }
        let types = self.supply.groups.get(pod.group).into_iter().flatten();
        let mut sizes = types.flat_map(|&index| {
            let node_type = self.supply.types.get(index);
            node_type
                .into_iter()
                .flat_map(move |found| (1..=found.gpus).map(move |gpus| (index, found, gpus)))
        });
        let new = sizes.find_map(|(node_type, found, gpus)| {
            let placed = placed(&found.node(gpus), pod.demand, self.supply.policies)?;
            let helps = !self.is_in_vain(pod, found, gpus);
            helps.then_some((node_type, gpus, placed))
        });
        if let Some((node_type, gpus, (state, amount))) = new
            && self.allows(pod, amount)
        {
            self.take(pod, amount);
            self.added.push(AddedNode {
                group: pod.group,
                node_type,
                gpus,
                state,
            });
        }
    }

    /// Whether a node like a new one joined for the pod, and its GPUs cannot take the pod although
    /// nobody uses them: those of another one could not either.
    fn is_in_vain(&self, pod: &UnschedulablePod<'_>, node_type: &NodeType, gpus: u32) -> bool {
        let nodes = self.supply.cluster.iter();
        let mut joined = nodes.filter(|(slot, ..)| pod.joined.contains(*slot));
        joined.any(|(.., node)| {
            node_type.is_like(node, gpus)
                && fit::fit(node, pod.demand, self.supply.policies)
                    // Its kubelet may offer the replicas a moment later.
                    .is_err_and(|why| why.count(Reason::NodeInsufficientReplicas) == 0)
        })
    }

    fn allows(&self, pod: &UnschedulablePod<'_>, amount: QuotaAmount) -> bool {
        let left = self.supply.headrooms.get(pod.demand.namespace.as_str());
        left.is_none_or(|left| left.allows(amount))
    }

    fn take(&mut self, pod: &UnschedulablePod<'_>, amount: QuotaAmount) {
        let namespace = pod.demand.namespace.as_str();
        if let Some(left) = self.supply.headrooms.get_mut(namespace) {
            left.take(amount);
        }
    }
}

/// The node with the pod on it, and what the pod counts for quotas; `None` if it does not fit.
fn placed(
    node: &NodeState,
    demand: &Demand,
    policies: &Policies,
) -> Option<(NodeState, QuotaAmount)> {
    if !node.host.free().covers(demand.host) {
        return None;
    }
    let fit = fit::fit(node, demand, policies).ok()?;
    let mut state = node.with(&fit.uses, &fit.instances, &demand.replicas());
    state.host.requested = state.host.requested.plus(demand.host);
    Some((state, fit.amount()))
}

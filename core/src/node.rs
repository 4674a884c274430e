//! A node in the ledger: its devices in a compact form, the replicas that its kubelet
//! counts, and the CPU and memory that kube-scheduler counts.
//!
//!
//! [`crate::ledger`] makes a new state at every change; an existing state never changes.

use std::sync::Arc;

use crate::devices::LedgerDevices;
use crate::dynamic_mig::DynamicMigState;
use crate::id::{GpuUuid, Namespace, PodUid};
use crate::inventory::{Inventory, Mode, TopologyScope};
use crate::ledger::AllocatedUse;
use crate::mig::Instance;
use crate::mig::published::Mig;
use crate::reason::Reason;
use crate::replicas::{NodeReplicas, Replicas};
use crate::units::{Mib, MilliCpu, Percent};
use crate::usage::DeviceUse;

/// The kubelet's Topology Manager policies under which a container's devices must be on one
/// NUMA node.
const ONE_NUMA: [&str; 2] = ["restricted", "single-numa-node"];

/// Which devices must be on one NUMA node together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Align {
    /// Nothing.
    #[default]
    Nothing,
    /// All devices of a container, under whatever resources.
    Container,
    /// All devices of the pod.
    Pod,
}

/// CPU and memory of a node or of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostResources {
    /// Thousandths of a CPU.
    pub cpu: MilliCpu,
    /// Host memory.
    pub memory: Mib,
}

impl HostResources {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            memory: self.memory + other.memory,
        }
    }

    /// `self` without `other`; 0 where `other` is larger.
    pub fn less(self, other: Self) -> Self {
        Self {
            cpu: MilliCpu(self.cpu.0.saturating_sub(other.cpu.0)),
            memory: Mib(self.memory.0.saturating_sub(other.memory.0)),
        }
    }

    /// Whether `other` fits into this.
    pub fn covers(self, other: Self) -> bool {
        self.cpu >= other.cpu && self.memory >= other.memory
    }
}

/// What pods request of a node besides shares of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// CPU and memory.
    pub host: HostResources,
    /// Replicas at the kubelet.
    pub replicas: Replicas,
}

impl Requests {
    /// Adds these requests.
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
            replicas: Replicas::default(),
        }
    }
}

/// A node's CPU and memory, and what its pods request of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// `status.allocatable`.
    pub allocatable: HostResources,
    /// The effective requests of all pods bound to the node, with or without GPUs.
    pub requested: HostResources,
}

impl Host {
    /// What is free; 0 where more is requested than allocatable.
    pub fn free(self) -> HostResources {
        self.allocatable.less(self.requested)
    }
}

/// What a node's administrator and agent publish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePublication {
    /// The node agent's inventory; `None` while there is no readable one.
    pub inventory: Option<Arc<Inventory>>,
    /// `status.allocatable`.
    pub allocatable: HostResources,
    /// The replicas in `status.allocatable`; `None` without a status.
    pub replicas: Option<Replicas>,
    /// Devices that an administrator cordoned (`hami.io/device-cordon`).
    pub cordoned: Vec<GpuUuid>,
    /// The inventory is that of HAMi's device plugin: its pods are counted and shown, and
    /// none of ours is placed there.
    pub served_by_hami: bool,
}

impl NodePublication {
    /// Whether a pod's allocation counts here. HAMi's annotation counts where HAMi's plugin
    /// serves the node, or where the node agent found that the pod has devices of another
    /// plugin than ours: anybody who may write pods could have written the annotation.
    pub fn counts(&self, pod: &PodUid, allocated: &AllocatedUse) -> bool {
        let has_devices = || {
            let foreign = self.inventory.iter().flat_map(|known| &known.foreign);
            foreign
                .filter_map(|f| f.hami.as_ref())
                .any(|uid| uid == pod)
        };
        !matches!(allocated, AllocatedUse::ByHami(_)) || self.served_by_hami || has_devices()
    }
}

/// All pods' uses of one device, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The sum of the pods' effective uses.
    pub used: DeviceUse,
    /// The number of pods.
    pub pods: u32,
}

impl Sums {
    /// Adds a pod.
    pub fn add(&mut self, used: DeviceUse) {
        self.used = self.used.with(used);
        self.pods += 1;
    }
}

/// One device: what may be allocated of it and what is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// Memory that may be allocated.
    pub scaled: Mib,
    /// Compute that may be allocated.
    pub cores: Percent,
    /// Replicas that may be allocated.
    pub replicas: u32,
    /// NUMA node, if the driver knows it.
    pub numa: Option<u32>,
    /// Its sharing mode.
    pub mode: Mode,
    /// Each container may have only one replica.
    pub strict: bool,
    /// The resource that it is advertised under, as an index in [`NodeState::resources`].
    pub resource: u8,
    /// Why it takes no new share from any pod.
    pub closed: Option<Reason>,
    /// What is allocated to pods.
    pub allocated: Sums,
}

impl DeviceState {
    /// Why this device cannot take this use beside what is allocated; `None` if it can.
    /// Gives one reason, the first in the order of HAMi's `Fit` (4.6, rules 6 and 11 to
    /// 14).
    pub fn refuse(&self, used: &DeviceUse) -> Option<Reason> {
        let others = &self.allocated.used;
        if self.closed.is_some() {
            self.closed
        } else if others.replicas.saturating_add(used.replicas) > self.replicas {
            Some(match self.mode {
                Mode::Exclusive => Reason::ExclusiveDeviceAllocateConflict,
                _ => Reason::CardTimeSlicingExhausted,
            })
        } else if others.memory + used.memory > self.scaled {
            Some(Reason::CardInsufficientMemory)
        } else if others.cores + used.cores > self.cores {
            Some(Reason::CardInsufficientCore)
        } else if used.alone && self.allocated.pods > 0 {
            Some(Reason::ExclusiveDeviceAllocateConflict)
        } else if used.leftover && others.cores >= self.cores {
            Some(Reason::CardComputeUnitsExhausted)
        } else if others.alone {
            // A device whose compute may be oversubscribed.
            Some(Reason::ExclusiveDeviceAllocateConflict)
        } else {
            None
        }
    }

    /// What is free, in thousandths of a device: the mean of memory and compute; 0 for a
    /// device that takes no new share.
    pub fn free(&self) -> u64 {
        let used = &self.allocated.used;
        if self.closed.is_some() || used.alone || used.replicas >= self.replicas {
            return 0;
        }
        let part = |used: u64, total: u64| {
            let free = total.saturating_sub(used).saturating_mul(500);
            free.checked_div(total).unwrap_or(0)
        };
        part(used.memory.0, self.scaled.0) + part(used.cores.0.into(), self.cores.0.into())
    }
}

/// The state of a node in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// What its node agent published.
    pub inventory: Option<Arc<Inventory>>,
    /// The devices of the inventory, in its order.
    pub devices: Vec<DeviceState>,
    /// The resources that its devices are advertised under, without duplicates.
    pub resources: Vec<Arc<str>>,
    /// The MIG instances of the GPUs under dynamic MIG.
    pub dynamic_mig: Vec<DynamicMigState>,
    /// CPU and memory.
    pub host: Host,
    /// Replicas, as its kubelet counts them.
    pub replicas: NodeReplicas,
    /// The namespaces that any device or placement is reserved for, sorted, without
    /// duplicates.
    pub reserved_for: Vec<Namespace>,
    /// The alignment that its kubelet requires.
    pub align: Align,
    /// Why it takes no pod at all.
    pub closed: Option<Reason>,
}

impl NodeState {
    /// The state of a node with this publication and these pods, whose requests add up to
    /// `requested`.
    pub fn of(
        published: &NodePublication,
        pods: &[(&PodUid, &AllocatedUse)],
        requested: impl Into<Requests>,
    ) -> Self {
        let requested = requested.into();
        let counted = pods.iter().copied();
        let pods: Vec<_> = counted
            .filter(|(pod, allocated)| published.counts(pod, allocated))
            .collect();
        let host = Host {
            allocatable: published.allocatable,
            requested: requested.host,
        };
        let replicas = NodeReplicas {
            offered: published.replicas.clone(),
            requested: requested.replicas,
        };
        let mut state = Self {
            inventory: published.inventory.clone(),
            devices: Vec::new(),
            resources: Vec::new(),
            dynamic_mig: Vec::new(),
            host,
            replicas,
            reserved_for: Vec::new(),
            align: Align::Nothing,
            closed: None,
        };
        if published.served_by_hami {
            state.closed = Some(Reason::NodeServedByHami);
        } else if pods.iter().any(|(_, allocated)| allocated.uses().is_none()) {
            state.closed = Some(Reason::NodeAllocationUnreadable);
        }
        match &published.inventory {
            None => state.closed = Some(Reason::NodeNotRegistered),
            Some(inventory) => {
                if ONE_NUMA.contains(&inventory.topology_policy.as_str()) {
                    state.align = match inventory.topology_scope {
                        TopologyScope::Container => Align::Container,
                        TopologyScope::Pod => Align::Pod,
                    };
                }
                state.reserved_for = reserved_for(inventory);
                let devices = LedgerDevices::of(inventory, &published.cordoned, &pods);
                (state.devices, state.resources) = (devices.devices, devices.resources);
                state.dynamic_mig = devices.dynamic_mig;
            }
        }
        state
    }

    /// The node with these uses of its devices and these replicas added as one more pod;
    /// `instances` gives the MIG instance for indices of `uses`. Uses of devices that the
    /// node no longer has are ignored.
    pub fn with(
        &self,
        uses: &[(usize, DeviceUse)],
        instances: &[(usize, Instance)],
        replicas: &Replicas,
    ) -> Self {
        let mut more = self.clone();
        more.replicas.requested.plus(replicas);
        for &(device, used) in uses {
            if let Some(device) = more.devices.get_mut(device) {
                device.allocated.add(used);
            }
        }
        for &(place, instance) in instances {
            let device = uses.get(place).map(|(device, _)| *device);
            let Some(mig_state) = more
                .dynamic_mig
                .iter_mut()
                .find(|mig_state| Some(mig_state.device) == device)
            else {
                continue;
            };
            // The placement may be older than the GPU's current geometry.
            let gpus = more.inventory.iter().flat_map(|inventory| &inventory.gpus);
            let gpu = gpus.clone().nth(mig_state.device);
            let found = gpu.and_then(|gpu| gpu.mig.as_ref().and_then(Mig::dynamic));
            if found.is_some_and(|found| found.geometry.has(instance)) {
                mig_state.allocate_instance(instance);
            }
        }
        more
    }
}

fn reserved_for(inventory: &Inventory) -> Vec<Namespace> {
    let gpus = &inventory.gpus;
    let dynamic = gpus
        .iter()
        .filter_map(|gpu| gpu.mig.as_ref().and_then(Mig::dynamic));
    let places = dynamic.flat_map(|mig_state| {
        mig_state
            .reserved
            .iter()
            .flat_map(|reserved| &reserved.namespaces)
    });
    let devices = gpus.iter().flat_map(|gpu| &gpu.reserved);
    let mut all: Vec<Namespace> = devices.chain(places).cloned().collect();
    all.sort_unstable();
    all.dedup();
    all
}

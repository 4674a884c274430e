//! A node in the ledger: its devices in a compact form, the replicas that its kubelet
//! counts, and the CPU and memory that kube-scheduler counts.
//!
//! [`crate::ledger`] makes a new state at every change; an existing state never changes. A
//! device with an allocation of an unknown kind takes no new share (fail closed).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use crate::demand::Requests;
use crate::id::{GpuUuid, Namespace, PodUid};
use crate::inventory::{Gpu, Health, Inventory, Mode, TopologyScope};
use crate::mig::Instance;
use crate::mig::dynamic::DynamicMigState;
use crate::mig::published::{DynamicMig, Mig, MigPlacement};
use crate::refusal::Reason;
use crate::replicas::{NodeReplicas, Replicas};
use crate::units::{HostResources, Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse, DeviceUses};

/// The kubelet's Topology Manager policies under which a container's devices must be on one
/// NUMA node.
const ONE_NUMA: [&str; 2] = ["restricted", "single-numa-node"];

/// Which devices must be on one NUMA node together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Align {
    #[default]
    Nothing,
    /// All devices of a container, under whatever resources.
    Container,
    Pod,
}

/// A node's CPU and memory, and what its pods request of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// The taints that keep pods off it, as `key=value:effect`: kube-scheduler reads them.
    pub taints: Arc<[String]>,
    /// It has the label `aliquot.dev/counted`: GPUs of it are no longer missing
    /// ([`crate::scale_up`]).
    pub counted: bool,
}

impl NodePublication {
    /// Whether a pod's allocation counts here. Where anybody who may write pods could have
    /// written an unreadable one, it counts only if the node agent found that the pod has device
    /// ids.
    pub fn counts(&self, pod: &PodUid, allocated: &AllocatedUse) -> bool {
        let inventory = self.inventory.as_deref();
        match allocated {
            AllocatedUse::Known(_) | AllocatedUse::Unreadable => true,
            AllocatedUse::Unproven => inventory.is_some_and(|known| known.unreadable.contains(pod)),
        }
    }
}

/// All pods' uses of one device, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sums {
    /// The sum of the pods' effective uses.
    pub used: DeviceUse,
    pub pods: u32,
}

impl Sums {
    pub fn add(&mut self, used: DeviceUse) {
        self.used = self.used.with(used);
        self.pods += 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceState {
    /// Memory that may be allocated.
    pub scaled: Mib,
    /// Compute that may be allocated.
    pub cores: Percent,
    /// Replicas that may be allocated.
    pub replicas: u32,
    /// NUMA node, if the driver knows it.
    pub numa: Option<u32>,
    pub mode: Mode,
    /// Each container may have only one replica.
    pub strict: bool,
    /// The resource that it is advertised under, as an index in [`NodeState::resources`].
    pub resource: u8,
    /// Why it takes no new share from any pod.
    pub closed: Option<Reason>,
    /// Memory that processes outside every share hold. Such a device is the last choice.
    pub unmanaged: Mib,
    /// Of that, what no pod can be promised: all of it, less what a memory scaling other than one
    /// leaves of the GPU or adds to it.
    pub withheld: Mib,
    pub allocated: Sums,
}

impl DeviceState {
    /// Memory that may still be allocated.
    pub fn free_memory(&self) -> Mib {
        let taken = self.allocated.used.memory + self.withheld;
        Mib(self.scaled.0.saturating_sub(taken.0))
    }

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
        } else if others.memory + used.memory + self.withheld > self.scaled {
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

    /// The larger part of its memory and its compute that this use takes, in thousandths.
    pub fn part(&self, used: &DeviceUse) -> u64 {
        if used.alone {
            return 1000;
        }
        let part = |used: u64, all: u64| used.saturating_mul(1000).checked_div(all).unwrap_or(0);
        let memory = part(used.memory.0, self.scaled.0);
        let cores = part(used.cores.0.into(), self.cores.0.into());
        memory.max(cores).min(1000)
    }

    /// What pods can still take of it, in thousandths; 0 for a device that takes no new
    /// share, and under dynamic MIG.
    pub fn available(&self) -> u64 {
        let used = &self.allocated.used;
        let open = self.closed.is_none() && self.mode != Mode::Mig;
        if open && used.replicas < self.replicas {
            let memory = used.memory + self.withheld;
            1000 - self.part(&DeviceUse { memory, ..*used })
        } else {
            0
        }
    }

    /// What is free, in thousandths of a device: the mean of memory and compute; 0 for a
    /// device that takes no new share.
    pub fn free(&self) -> u64 {
        let used = &self.allocated.used;
        if self.closed.is_some() || used.alone || used.replicas >= self.replicas {
            return 0;
        }
        let part = |free: u64, total: u64| {
            let free = free.saturating_mul(500);
            free.checked_div(total).unwrap_or(0)
        };
        let cores = self.cores.0.saturating_sub(used.cores.0);
        part(self.free_memory().0, self.scaled.0) + part(cores.into(), self.cores.0.into())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub inventory: Option<Arc<Inventory>>,
    /// The devices of the inventory, in its order.
    pub devices: Vec<DeviceState>,
    /// The resources that its devices are advertised under, without duplicates.
    pub resources: Vec<Arc<str>>,
    /// The MIG instances of the GPUs under dynamic MIG.
    pub dynamic_mig: Vec<DynamicMigState>,
    /// What is allocated twice of a device: to pods that are being evicted, and to the pod that
    /// they are evicted for. Only views subtract it, because nothing else may be placed there.
    pub(crate) handed_over: Vec<(usize, DeviceUse)>,
    pub host: Host,
    pub replicas: NodeReplicas,
    /// The namespaces that any device or placement is reserved for, sorted, without
    /// duplicates.
    pub reserved_for: Vec<Namespace>,
    /// The alignment that its kubelet requires.
    pub align: Align,
    /// Its taints ([`NodePublication::taints`]).
    pub taints: Arc<[String]>,
    /// Why it takes no pod at all.
    pub closed: Option<Reason>,
}

impl NodeState {
    /// The state of a node with this publication and these pods, whose requests add up to
    /// `requested`.
    pub fn new(
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
            handed_over: Vec::new(),
            host,
            replicas,
            reserved_for: Vec::new(),
            align: Align::Nothing,
            taints: published.taints.clone(),
            closed: None,
        };
        if pods.iter().any(|(_, allocated)| allocated.uses().is_none()) {
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
                let devices = LedgerDevices::new(inventory, &published.cordoned, &pods);
                (state.devices, state.resources) = (devices.devices, devices.resources);
                state.dynamic_mig = devices.dynamic_mig;
            }
        }
        state
    }

    /// Records what these victims still hold of what is `reserved` for the pod that they are evicted
    /// for. `pods` are those of the node.
    pub fn hand_over(
        &mut self,
        reserved: &DeviceUses,
        victims: &[PodUid],
        pods: &[(&PodUid, &AllocatedUse)],
    ) {
        let Some(inventory) = &self.inventory else {
            return;
        };
        let running = pods
            .iter()
            .filter(|(pod, _)| victims.contains(pod))
            .filter_map(|(_, allocated)| allocated.uses())
            .flat_map(|uses| uses.iter().map(|(key, used)| (key, *used)));
        let orphaned = inventory
            .orphaned
            .iter()
            .filter(|share| {
                victims.contains(&share.pod) && !pods.iter().any(|(pod, _)| **pod == share.pod)
            })
            .map(|share| (&share.gpu, share.used()));
        let held = by_device(inventory, running.chain(orphaned));
        let waited_for = by_device(inventory, reserved.iter().map(|(key, used)| (key, *used)));
        for (device, wanted) in waited_for {
            if let Some(held) = held.get(&device) {
                self.handed_over.push((device, wanted.overlap(*held)));
            }
        }
    }

    /// What is allocated on a device; what victims still hold of another pod's reservation counts
    /// once.
    pub fn counted_once(&self, device: usize) -> Sums {
        let mut sums = self.devices[device].allocated;
        for (_, twice) in self.handed_over.iter().filter(|(at, _)| *at == device) {
            sums.used = sums.used.less(*twice);
            sums.pods = sums.pods.saturating_sub(1);
        }
        sums
    }

    /// Everything but its CPU and memory, to compare.
    pub(crate) fn but_host(&self) -> impl Eq {
        let Self {
            inventory,
            devices,
            resources,
            dynamic_mig,
            handed_over,
            host: _,
            replicas,
            reserved_for,
            align,
            taints,
            closed,
        } = self;
        (
            (inventory, devices, resources, dynamic_mig, handed_over),
            (replicas, reserved_for, align, taints, closed),
        )
    }

    /// A hash of everything but CPU and memory that a pod's verdict depends on if the pod names no
    /// device and compares no links: nodes of one kind get one verdict if the typical pods see the
    /// same of their CPU and memory. `None` with MIG, where instances have names.
    pub fn kind(&self) -> Option<u64> {
        let Self {
            inventory,
            devices,
            resources,
            dynamic_mig,
            handed_over: _,
            host: _,
            replicas,
            reserved_for,
            align,
            taints: _,
            closed,
        } = self;
        if !dynamic_mig.is_empty() {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        devices.hash(&mut hasher);
        (resources, replicas, reserved_for, align, closed).hash(&mut hasher);
        for gpu in inventory.iter().flat_map(|inventory| &inventory.gpus) {
            let Gpu {
                model,
                even_share,
                reserved,
                mig: None,
                // Names.
                uuid: _,
                index: _,
                links: _,
                // In the state of the device.
                memory: _,
                scaled: _,
                cores: _,
                replicas: _,
                mode: _,
                resource: _,
                numa: _,
                health: _,
                cordon: _,
                strict: _,
            } = gpu
            else {
                return None;
            };
            (model, even_share, reserved).hash(&mut hasher);
        }
        Some(hasher.finish())
    }

    pub fn gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.inventory.iter().flat_map(|inventory| &inventory.gpus)
    }

    /// The GPU under dynamic MIG at this index: its instances, and what its node agent found.
    pub(crate) fn dynamic(&self, place: usize) -> Option<(&DynamicMigState, &DynamicMig)> {
        let mut states = self.dynamic_mig.iter();
        let state = states.find(|state| state.device == place)?;
        let gpu = self.gpus().nth(place)?;
        Some((state, gpu.mig.as_ref().and_then(Mig::dynamic)?))
    }

    pub fn models(&self) -> impl Iterator<Item = (&str, &DeviceState)> {
        let models = self.gpus().map(|gpu| gpu.model.as_str());
        models.zip(&self.devices)
    }

    /// The sum of the parts of whole devices that these uses take, in thousandths.
    pub fn parts(&self, uses: &DeviceUses) -> u64 {
        let parts = self
            .gpus()
            .zip(&self.devices)
            .filter_map(|(gpu, device)| Some(device.part(uses.get(&gpu.uuid)?)));
        parts.sum()
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
            let found = device.and_then(|device| self.dynamic(device));
            let mut states = more.dynamic_mig.iter_mut();
            // The placement may be older than the GPU's current geometry.
            if found.is_some_and(|(_, found)| found.geometry.has(instance))
                && let Some(state) = states.find(|state| Some(state.device) == device)
            {
                state.allocate_instance(instance);
            }
        }
        more
    }
}

/// The sum of these uses for each device, by its index.
fn by_device<'a>(
    inventory: &Inventory,
    uses: impl Iterator<Item = (&'a GpuUuid, DeviceUse)>,
) -> BTreeMap<usize, DeviceUse> {
    let mut sums = BTreeMap::new();
    for (key, used) in uses {
        let (gpu, _) = MigPlacement::split_device_key(key);
        let mut gpus = inventory.gpus.iter();
        if let Some(device) = gpus.position(|known| known.uuid.as_str() == gpu) {
            let sum: &mut DeviceUse = sums.entry(device).or_default();
            *sum = sum.with(used);
        }
    }
    sums
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerDevices {
    /// In the inventory's order.
    pub devices: Vec<DeviceState>,
    /// The resources that they are advertised under, without duplicates.
    pub resources: Vec<Arc<str>>,
    pub dynamic_mig: Vec<DynamicMigState>,
}

impl LedgerDevices {
    /// The devices of an inventory, with the allocations of these pods and the orphaned
    /// shares of other pods. An allocation on a device that the inventory lacks counts
    /// again when the device comes back.
    pub fn new(
        inventory: &Inventory,
        cordoned: &[GpuUuid],
        pods: &[(&PodUid, &AllocatedUse)],
    ) -> Self {
        let mut devices = Self {
            devices: Vec::with_capacity(inventory.gpus.len()),
            ..Self::default()
        };
        let mut places = BTreeMap::new();
        for (place, gpu) in inventory.gpus.iter().enumerate() {
            devices.add_gpu(inventory, cordoned, gpu);
            places.insert(gpu.uuid.as_str(), place);
        }
        for (_, allocated) in pods {
            for (key, used) in allocated.uses().into_iter().flatten() {
                devices.add(inventory, &places, key, *used);
            }
        }
        for orphaned in &inventory.orphaned {
            if !pods.iter().any(|(pod, _)| **pod == orphaned.pod) {
                devices.add(inventory, &places, &orphaned.gpu, orphaned.used());
            }
        }
        devices
    }

    fn add_gpu(&mut self, inventory: &Inventory, cordoned: &[GpuUuid], gpu: &Gpu) {
        let known = self.resources.iter().position(|n| **n == *gpu.resource);
        let resource = known.unwrap_or_else(|| {
            self.resources.push(gpu.resource.as_str().into());
            self.resources.len() - 1
        });
        let mig_state = gpu
            .mig
            .as_ref()
            .and_then(Mig::dynamic)
            .filter(|_| gpu.mode == Mode::Mig);
        let closed = closed(inventory, cordoned, gpu);
        let unmanaged = inventory
            .unmanaged
            .get(&gpu.uuid)
            .copied()
            .unwrap_or_default();
        // Nobody is promised what a scaling below one leaves, and host memory backs what one above
        // it adds. A MIG instance is placed by its slices, which nobody else has.
        let not_withheld = if gpu.mode == Mode::Mig {
            unmanaged.0
        } else {
            gpu.scaled.0.abs_diff(gpu.memory.0)
        };
        self.devices.push(DeviceState {
            scaled: gpu.scaled,
            cores: gpu.cores,
            // At most one instance for each compute slice.
            replicas: mig_state.map_or(gpu.replicas, |mig_state| {
                mig_state.geometry.compute().into()
            }),
            numa: gpu.numa,
            mode: gpu.mode,
            strict: gpu.strict,
            resource: u8::try_from(resource).unwrap_or(u8::MAX),
            // More resources than a byte can index: no pod asks for that one.
            closed: closed.or_else(|| (resource > 255).then_some(Reason::CardTypeMismatch)),
            unmanaged,
            withheld: Mib(unmanaged.0.saturating_sub(not_withheld)).min(gpu.scaled),
            allocated: Sums::default(),
        });
        if let Some(mig_state) = mig_state {
            self.dynamic_mig
                .push(DynamicMigState::new(self.devices.len() - 1, mig_state));
        }
    }

    fn add(
        &mut self,
        inventory: &Inventory,
        places: &BTreeMap<&str, usize>,
        key: &GpuUuid,
        used: DeviceUse,
    ) {
        let (gpu_uuid, instance) = MigPlacement::split_device_key(key);
        let Some(&place) = places.get(gpu_uuid) else {
            return;
        };
        self.devices[place].allocated.add(used);
        if let Some(mig_state) = self
            .dynamic_mig
            .iter_mut()
            .find(|mig_state| mig_state.device == place)
        {
            let found = inventory.gpus[place].mig.as_ref().and_then(Mig::dynamic);
            if let Some(found) = found {
                mig_state.allocate(&found.geometry, instance.as_ref());
            }
        }
    }

    /// Whether the device with this key can carry this beside what is allocated: its index
    /// and the reason why not; `None` for an unknown device.
    pub fn refusal_of(
        &self,
        inventory: &Inventory,
        key: &GpuUuid,
        used: &DeviceUse,
    ) -> Option<(usize, Option<Reason>)> {
        let (gpu_uuid, instance) = MigPlacement::split_device_key(key);
        let place = inventory
            .gpus
            .iter()
            .position(|g| g.uuid.as_str() == gpu_uuid)?;
        let Some(placed) = instance else {
            return Some((place, self.devices[place].refuse(used)));
        };
        if let Some(closed) = self.devices[place].closed {
            return Some((place, Some(closed)));
        }
        let mig_state = self
            .dynamic_mig
            .iter()
            .find(|mig_state| mig_state.device == place);
        let found = inventory.gpus[place].mig.as_ref().and_then(Mig::dynamic);
        let Some((mig_state, found)) = mig_state.zip(found) else {
            return Some((place, Some(Reason::GpuModeMismatch)));
        };
        // Another pod's instance, allocated once more, would still be one instance.
        let again = found.geometry.instance(&placed);
        let is_taken = again.is_some_and(|again| mig_state.instances.contains(&again));
        let mut more = mig_state.clone();
        more.allocate(&found.geometry, Some(&placed));
        let legal = !is_taken && more.is_consistent(&found.geometry) && !more.inconsistent;
        Some((place, (!legal).then_some(Reason::MigNoPlacement)))
    }
}

/// Why the device takes no new share from any pod.
fn closed(inventory: &Inventory, cordoned: &[GpuUuid], gpu: &Gpu) -> Option<Reason> {
    let parent = gpu.mig.as_ref().and_then(Mig::fixed).map(|p| &p.parent);
    let is = |uuid: &GpuUuid| *uuid == gpu.uuid || Some(uuid) == parent;
    let unknown = match &gpu.mig {
        Some(Mig::Unknown(_)) => true,
        Some(Mig::Dynamic(_)) => gpu.mode != Mode::Mig,
        Some(Mig::Fixed(_)) | None => gpu.mode == Mode::Mig,
    };
    if gpu.health != Health::Ok {
        Some(Reason::CardNotHealth)
    } else if gpu.cordon.is_some() || cordoned.iter().any(is) {
        Some(Reason::CardCordoned)
    } else if unknown || gpu.mode == Mode::Unknown {
        Some(Reason::CardTypeMismatch)
    } else if inventory.foreign.iter().any(|foreign| is(&foreign.gpu)) {
        Some(Reason::GpuHeldByForeignPod)
    } else {
        None
    }
}

/// What is allocated on a device stays within its capacity. Holds after every reservation,
/// but not after a device shrank under running pods. [`mig_placements_are_consistent`]
/// covers dynamic MIG.
pub fn within_capacity(device: &DeviceState) -> bool {
    let sums = &device.allocated;
    sums.used.replicas <= device.replicas
        && (device.mode == Mode::Mig || sums.used.memory <= device.scaled)
        && sums.used.cores <= device.cores
        && (!sums.used.alone || sums.pods <= 1)
}

/// The allocated instances on the node's GPUs do not overlap, and no GPU has more of them
/// than it can.
pub fn mig_placements_are_consistent(node: &NodeState) -> bool {
    node.dynamic_mig.iter().all(|mig_state| {
        let found = node.dynamic(mig_state.device);
        found.is_some_and(|(_, found)| mig_state.is_consistent(&found.geometry))
    })
}

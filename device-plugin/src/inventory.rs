//! The published state of the node: the driver's facts under the GPUs' sharing modes, and who uses
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::{
    self, ForeignAllocation, Health, Inventory, LingeringShare, RefusedPod, TopologyScope,
};
use aliquot_core::{GpuUuid, Mib, PodUid, allocation};
use aliquot_nvml as nvml;
use tokio::sync::watch;

use crate::allocatable::{self, AllocatedIds, NodeLayout};
use crate::device_failures::{DeviceFailure, NodeFailures, Recovery};
use crate::host::{HostDevice, InstanceIds};
use crate::host_memory;
use crate::labels::Features;
use crate::resource_owner::TakenResource;
use crate::runtime::device_list::RuntimeStatus;

/// The node's devices and their users, as last known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedNode {
    /// The inventory annotation.
    pub inventory: Inventory,
    /// How the host names each device.
    pub devices: BTreeMap<GpuUuid, HostDevice>,
    /// The devices that failed and what follows from that.
    pub failures: NodeFailures,
    /// What the driver reports of the physical GPUs, for labels.
    pub features: Features,
    /// Device ids that living pods use.
    pub allocated_ids: AllocatedIds,
    /// How each GPU is shared.
    pub layout: NodeLayout,
    /// Status, reason and message of the profile condition; `None` without a configuration.
    pub profile: Option<[String; 3]>,
    /// Resources that were advertised once and are not any more.
    pub removed_resources: BTreeSet<String>,
    /// The state of the container runtime; `None` until it was first checked, and until then no new
    /// pod starts by CDI.
    pub runtime: Option<RuntimeStatus>,
    /// Resources that another device plugin serves; `None` until that was first checked.
    pub taken_resources: Option<Vec<TakenResource>>,
    /// The agent is being removed from the node: no replica is advertised.
    pub leaving_node: bool,
    /// Pods to evict from GPUs whose mode changes.
    mode_change_evictions: Vec<RefusedPod>,
    /// Pods whose eviction the monitor requests.
    monitor_evictions: Vec<RefusedPod>,
    /// UUIDs of GPUs on which the monitor does not correct compute shares; `None`: not known.
    pub uncorrected: Option<BTreeSet<String>>,
    /// The GPUs as the driver reports them.
    pub facts: nvml::DriverInventory,
    health: Vec<nvml::DeviceHealth>,
    /// How much host memory may back oversubscribed GPU memory; `None`: all that the profile
    /// allows.
    host_reserve: Option<Mib>,
    /// Devices whose MPS daemon is down, and why.
    mps_down: BTreeMap<GpuUuid, String>,
}

/// An update from the layout reconciler.
#[derive(Clone, Debug)]
pub struct LayoutUpdate {
    /// How each GPU is shared.
    pub layout: NodeLayout,
    /// Device ids that living pods use; `None`: unchanged.
    pub allocated_ids: Option<AllocatedIds>,
    /// Pods to evict from GPUs whose mode changes.
    pub evict: Vec<RefusedPod>,
    /// The profile condition.
    pub profile: Option<[String; 3]>,
    /// Resources that were offered once and are not now.
    pub removed_resources: BTreeSet<String>,
}

/// The published state, shared by all parts of the agent: readers subscribe, and each writer
/// changes its own fields.
#[derive(Clone, Debug)]
pub struct NodePublisher(watch::Sender<Arc<PublishedNode>>);

impl NodePublisher {
    /// Starts with these GPUs and no users.
    pub fn new(
        facts: nvml::DriverInventory,
        health: Vec<nvml::DeviceHealth>,
        layout: NodeLayout,
    ) -> Self {
        let mut node = PublishedNode {
            inventory: Inventory {
                v: inventory::VERSION,
                reads: vec![allocation::VERSION],
                driver: facts.driver_version.clone(),
                topology_policy: "none".to_owned(),
                topology_scope: TopologyScope::default(),
                gpus: Vec::new(),
                lingering: Vec::new(),
                foreign: Vec::new(),
                refused: Vec::new(),
                evict: Vec::new(),
                unmeasured: Vec::new(),
            },
            devices: host_devices(&facts),
            failures: NodeFailures::default(),
            features: Features::of(&facts),
            allocated_ids: AllocatedIds::new(),
            layout,
            profile: None,
            removed_resources: BTreeSet::new(),
            runtime: None,
            taken_resources: None,
            leaving_node: false,
            mode_change_evictions: Vec::new(),
            monitor_evictions: Vec::new(),
            uncorrected: None,
            facts,
            health,
            host_reserve: None,
            mps_down: BTreeMap::new(),
        };
        node.recompute();
        Self(watch::Sender::new(Arc::new(node)))
    }

    /// The current value.
    pub fn get(&self) -> Arc<PublishedNode> {
        Arc::clone(&self.0.borrow())
    }

    /// Receives every change from now on.
    pub fn subscribe(&self) -> watch::Receiver<Arc<PublishedNode>> {
        self.0.subscribe()
    }

    /// Takes over new facts from the driver, device failures and allocated ids.
    pub fn set_devices(
        &self,
        facts: &nvml::DriverInventory,
        health: &[nvml::DeviceHealth],
        sickness: NodeFailures,
        allocated_ids: AllocatedIds,
    ) {
        self.change(|node| {
            node.inventory.driver.clone_from(&facts.driver_version);
            node.devices = host_devices(facts);
            node.failures = sickness;
            node.features = Features::of(facts);
            node.allocated_ids = allocated_ids;
            facts.clone_into(&mut node.facts);
            health.clone_into(&mut node.health);
            node.recompute();
        });
    }

    /// Takes over an update from the layout reconciler.
    pub fn set_layout(&self, update: LayoutUpdate) {
        self.change(|node| {
            node.layout = update.layout;
            if let Some(allocated_ids) = update.allocated_ids {
                node.allocated_ids = allocated_ids;
            }
            node.mode_change_evictions = update.evict;
            node.profile = update.profile;
            node.removed_resources = update.removed_resources;
            node.recompute();
        });
    }

    /// Sets how much host memory may back oversubscribed GPU memory; `None`: all that the profile
    /// allows.
    pub fn set_host_reserve(&self, reserve: Option<Mib>) {
        self.change(|node| {
            node.host_reserve = reserve;
            node.recompute();
        });
    }

    /// Pods whose eviction the monitor asks for.
    pub fn set_monitor_evictions(&self, evictions: Vec<RefusedPod>) {
        self.change(|node| {
            node.monitor_evictions = evictions;
            node.recompute();
        });
    }

    /// Sets the GPUs with processes whose memory the driver does not report to the monitor.
    pub fn set_unmeasured(&self, gpus: Option<&BTreeSet<String>>) {
        self.change(|node| {
            let known = node.facts.gpus.iter().map(|gpu| gpu.uuid.as_str());
            let unmeasured = known.filter(|uuid| gpus.is_some_and(|gpus| gpus.contains(*uuid)));
            node.inventory.unmeasured = unmeasured.map(GpuUuid::from).collect();
        });
    }

    /// Sets the GPUs on which the monitor does not correct compute shares.
    pub fn set_uncorrected(&self, uncorrected: Option<BTreeSet<String>>) {
        self.change(|node| node.uncorrected = uncorrected);
    }

    /// Sets the kubelet's Topology Manager policy and scope.
    pub fn set_topology(&self, policy: &str, scope: TopologyScope) {
        self.change(|node| {
            policy.clone_into(&mut node.inventory.topology_policy);
            node.inventory.topology_scope = scope;
        });
    }

    /// What was found of the container runtime.
    pub fn set_runtime(&self, status: RuntimeStatus) {
        self.change(|node| node.runtime = Some(status));
    }

    /// Sets the resources that another device plugin serves.
    pub fn set_taken_resources(&self, taken: Vec<TakenResource>) {
        self.change(|node| {
            node.taken_resources = Some(taken);
            node.recompute();
        });
    }

    /// Stops advertising replicas: the agent is being removed from the node.
    pub fn set_leaving(&self) {
        self.change(|node| node.leaving_node = true);
    }

    /// Sets the devices whose MPS daemon is down, and why.
    pub fn set_mps_down(&self, down: BTreeMap<GpuUuid, String>) {
        self.change(|node| {
            node.mps_down = down;
            node.recompute();
        });
    }

    /// Sets the users that housekeeping found.
    pub fn set_holders(&self, foreign: Vec<ForeignAllocation>, lingering: Vec<LingeringShare>) {
        self.change(|node| {
            node.inventory.foreign = foreign;
            node.inventory.lingering = lingering;
        });
    }

    /// Adds a refused pod.
    pub fn add_refused(&self, refused: RefusedPod) {
        self.change(|node| {
            let list = &mut node.inventory.refused;
            list.retain(|other| other.pod != refused.pod);
            list.push(refused);
            list.sort_by(|a, b| a.pod.cmp(&b.pod));
        });
    }

    /// Retains only the refused pods for which `keep` holds.
    pub fn retain_refused(&self, keep: impl Fn(&PodUid) -> bool) {
        if self.get().inventory.refused.is_empty() {
            return;
        }
        self.change(|node| node.inventory.refused.retain(|refused| keep(&refused.pod)));
    }

    fn change(&self, change: impl FnOnce(&mut PublishedNode)) {
        self.0.send_if_modified(|current| {
            let mut next = PublishedNode::clone(current);
            change(&mut next);
            let changed = next != **current;
            if changed {
                *current = Arc::new(next);
            }
            changed
        });
    }
}

impl PublishedNode {
    /// Whether replicas are advertised, or advertised as healthy, only because a pod uses them.
    pub fn has_retained_replicas(&self) -> bool {
        !self.failures.devices.is_empty() || allocatable::allocated_beyond_advertised(self)
    }

    /// All devices that are out of service: failed ones, and those without their MPS daemon.
    pub fn unhealthy_devices(&self) -> Vec<DeviceFailure> {
        let down = self.mps_down.iter().map(|(device, why)| DeviceFailure {
            gpu: device.clone(),
            cause: format!("the MPS daemon is down: {why}"),
            recovery: Recovery::RestartApplication,
        });
        self.failures.devices.iter().cloned().chain(down).collect()
    }

    /// Every UUID that the driver has for a GPU or instance here, with its id in the ledger: an
    /// instance that is not allocatable itself counts as its GPU.
    pub fn ledger_ids(&self) -> BTreeMap<GpuUuid, GpuUuid> {
        let mut names = BTreeMap::new();
        for gpu in &self.facts.gpus {
            let whole = GpuUuid::from(gpu.uuid.as_str());
            for device in gpu.layout.instances.iter().flat_map(|one| &one.devices) {
                let own = GpuUuid::from(device.uuid.as_str());
                let id = if self.inventory.gpu(&own).is_some() {
                    &own
                } else {
                    &whole
                };
                names.insert(device.current.as_str().into(), id.clone());
                names.insert(own.clone(), id.clone());
            }
            names.insert(whole.clone(), whole);
        }
        names
    }

    /// Recomputes what depends on facts, health and layout.
    fn recompute(&mut self) {
        self.inventory.gpus =
            allocatable::allocatable_devices(&self.facts, &self.health, &self.layout);
        host_memory::cap_promised(&mut self.inventory.gpus, self.host_reserve, &self.facts);
        for gpu in &mut self.inventory.gpus {
            if gpu.health == Health::Ok && self.mps_down.contains_key(&gpu.uuid) {
                gpu.health = Health::Unhealthy("mps daemon down".to_owned());
            }
        }
        if let Some(why) = &self.failures.drain_reason {
            for gpu in &mut self.inventory.gpus {
                gpu.cordon.get_or_insert_with(|| why.clone());
            }
        }
        for taken in self.taken_resources.iter().flatten() {
            for gpu in &mut self.inventory.gpus {
                let mut replicas = allocatable::replicas_by_resource(gpu).into_iter();
                if replicas.any(|replicas| replicas.resource == taken.resource) {
                    let why = || format!("another device plugin serves {}", taken.resource);
                    gpu.cordon.get_or_insert_with(why);
                }
            }
        }
        let all = self
            .failures
            .evict
            .iter()
            .chain(&self.mode_change_evictions);
        let mut evict: Vec<RefusedPod> = Vec::new();
        for one in all.chain(&self.monitor_evictions) {
            if evict.iter().all(|known| known.pod != one.pod) {
                evict.push(one.clone());
            }
        }
        self.inventory.evict = evict;
    }
}

fn host_devices(facts: &nvml::DriverInventory) -> BTreeMap<GpuUuid, HostDevice> {
    let mut found = BTreeMap::new();
    for gpu in &facts.gpus {
        let named = |uuid: &str, part| HostDevice {
            uuid: uuid.into(),
            index: gpu.index,
            minor: gpu.minor,
            instance: part,
        };
        let instances = gpu.layout.instances.iter();
        let parts = instances.filter_map(|one| {
            let device = one.device()?;
            Some(named(&device.uuid, Some(InstanceIds::of(one, device))))
        });
        let all = parts.chain([named(&gpu.uuid, None)]);
        found.extend(all.map(|gpu| (gpu.uuid.clone(), gpu)));
    }
    found
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;

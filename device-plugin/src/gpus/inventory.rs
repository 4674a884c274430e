//! The published state of the node: one value for each part of the agent that writes, and the
//! inventory annotation that follows from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_core::inventory::{
    self, ForeignAllocation, Health, Inventory, OrphanedShare, RefusedPod, ResizeReport,
    TopologyScope,
};
use aliquot_core::{GpuUuid, Mib, PodUid, allocation};
use aliquot_node_state::device_id::DeviceIds;
use aliquot_node_state::monitor_reports::{GpuMemory, GpuSet};
use aliquot_nvml as nvml;
use tokio::sync::watch;

use crate::gpus::allocatable::{self, AllocatedIds, NodeLayout};
use crate::gpus::device_failures::{DeviceFailure, NodeFailures, Recovery};
use crate::gpus::host_memory;
use crate::host_device::{HostDevice, InstanceIds};

/// The GPUs as the health monitor last read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuReadings {
    pub facts: nvml::DriverInventory,
    pub health: Vec<nvml::DeviceHealth>,
    /// The devices that failed and what follows from that.
    pub failures: NodeFailures,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Topology {
    policy: String,
    scope: TopologyScope,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MonitorReports {
    /// GPUs with processes whose memory the driver does not report to it.
    pub unmeasured: GpuSet,
    /// GPUs on which it does not correct compute shares; `None`: not known.
    pub uncorrected: Option<GpuSet>,
    /// The memory that processes outside every share hold.
    pub unmanaged: GpuMemory,
}

/// Users of devices that are not live pods with an accepted allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OtherUsers {
    foreign: Vec<ForeignAllocation>,
    orphaned: Vec<OrphanedShare>,
    unreadable: Vec<PodUid>,
}

/// A pod of which a container was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RefusedStart {
    pod: RefusedPod,
    /// The device that it lacks. Once that is there again, the kubelet's next attempt may succeed.
    gone: Option<GpuUuid>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeProblem {
    pub reason: &'static str,
    /// A container would start silently without its GPUs and limits, so none is started.
    pub blocks: bool,
    /// What is missing and what to do, for the administrator.
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    pub problems: Vec<RuntimeProblem>,
    /// Why a container that relies on CDI would start silently without its GPUs and limits, and is
    /// therefore not started.
    pub without_cdi: Option<String>,
}

/// A resource of ours that another device plugin serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenResource {
    pub resource: String,
    /// The device ids that the other plugin registered, or else those that it allocated.
    pub ids: DeviceIds,
}

/// The node's devices and their users, as last known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedNode {
    /// The inventory annotation, which follows from the values below.
    pub inventory: Inventory,
    /// How the host names each device, which follows from the readings.
    pub devices: BTreeMap<GpuUuid, HostDevice>,
    /// The GPUs, by the health monitor.
    pub readings: GpuReadings,
    /// Device ids that living pods use, by the kubelet's checkpoint: read by the health monitor, and
    /// by the layout reconciler before a replica may disappear.
    pub allocated_ids: AllocatedIds,
    /// How each GPU is shared, by the layout reconciler.
    pub layout: NodeLayout,
    /// The state of the container runtime, by its monitor; `None` until it was first checked, and
    /// until then no new pod starts by CDI.
    pub runtime: Option<RuntimeStatus>,
    /// The kubelet's Topology Manager, by its configuration.
    topology: Topology,
    /// Devices whose MPS daemon is down, and why, by the monitor of the daemons.
    mps_down: BTreeMap<GpuUuid, String>,
    /// What the monitor reports, by housekeeping.
    pub monitor: MonitorReports,
    /// Other users of the devices, by housekeeping.
    other_users: OtherUsers,
    /// What the last housekeeping could not do, by housekeeping.
    pub housekeeping_problems: BTreeSet<String>,
    /// Resources that another device plugin serves, by the monitor of their owners; `None` until that
    /// was first checked.
    pub taken_resources: Option<Vec<TakenResource>>,
    refused: Vec<RefusedStart>,
    resizes: Vec<ResizeReport>,
    /// The agent is being removed from the node: no replica is advertised.
    pub cleaning_up: bool,
    /// How much host memory may back oversubscribed GPU memory, by the settings; `None`: all that
    /// the profile allows.
    host_reserve: Option<Mib>,
}

/// The published state, shared by all parts of the agent: readers subscribe, and each writer sets
/// its own value.
#[derive(Clone, Debug)]
pub struct NodePublisher(watch::Sender<Arc<PublishedNode>>);

impl NodePublisher {
    pub fn new(
        facts: nvml::DriverInventory,
        health: Vec<nvml::DeviceHealth>,
        layout: NodeLayout,
    ) -> Self {
        let mut node = PublishedNode {
            inventory: Inventory::new(Vec::new()),
            devices: BTreeMap::new(),
            readings: GpuReadings {
                facts,
                health,
                failures: NodeFailures::default(),
            },
            allocated_ids: AllocatedIds::new(),
            layout,
            runtime: None,
            topology: Topology {
                policy: "none".to_owned(),
                scope: TopologyScope::default(),
            },
            mps_down: BTreeMap::new(),
            monitor: MonitorReports::default(),
            other_users: OtherUsers::default(),
            housekeeping_problems: BTreeSet::new(),
            taken_resources: None,
            refused: Vec::new(),
            resizes: Vec::new(),
            cleaning_up: false,
            host_reserve: None,
        };
        node.recompute();
        Self(watch::Sender::new(Arc::new(node)))
    }

    pub fn get(&self) -> Arc<PublishedNode> {
        Arc::clone(&self.0.borrow())
    }

    pub fn subscribe(&self) -> watch::Receiver<Arc<PublishedNode>> {
        self.0.subscribe()
    }

    /// Sets the readings of the GPUs, and the device ids that were allocated then.
    pub fn set_readings(&self, readings: GpuReadings, allocated_ids: AllocatedIds) {
        self.change(|node| {
            node.readings = readings;
            node.allocated_ids = allocated_ids;
        });
    }

    /// Sets the layout, and the device ids that were allocated then; `None`: they are unchanged.
    pub fn set_layout(&self, layout: NodeLayout, allocated_ids: Option<AllocatedIds>) {
        self.change(|node| {
            node.layout = layout;
            if let Some(allocated_ids) = allocated_ids {
                node.allocated_ids = allocated_ids;
            }
        });
    }

    /// Sets how much host memory may back oversubscribed GPU memory; `None`: all that the profile
    /// allows.
    pub fn set_host_reserve(&self, reserve: Option<Mib>) {
        self.change(|node| node.host_reserve = reserve);
    }

    pub fn set_monitor_reports(&self, reports: MonitorReports) {
        self.change(|node| node.monitor = reports);
    }

    pub fn set_topology(&self, policy: &str, scope: TopologyScope) {
        let policy = policy.to_owned();
        self.change(|node| node.topology = Topology { policy, scope });
    }

    pub fn set_runtime(&self, status: RuntimeStatus) {
        self.change(|node| node.runtime = Some(status));
    }

    pub fn set_taken_resources(&self, taken: Vec<TakenResource>) {
        self.change(|node| node.taken_resources = Some(taken));
    }

    /// Stops advertising replicas: the agent is being removed from the node.
    pub fn set_cleaning_up(&self) {
        self.change(|node| node.cleaning_up = true);
    }

    pub fn set_mps_down(&self, down: BTreeMap<GpuUuid, String>) {
        self.change(|node| node.mps_down = down);
    }

    pub fn set_holders(
        &self,
        foreign: Vec<ForeignAllocation>,
        orphaned: Vec<OrphanedShare>,
        unreadable: Vec<PodUid>,
    ) {
        self.change(|node| {
            node.other_users = OtherUsers {
                foreign,
                orphaned,
                unreadable,
            };
        });
    }

    pub fn set_housekeeping_problems(&self, problems: BTreeSet<String>) {
        self.change(|node| node.housekeeping_problems = problems);
    }

    pub fn set_resizes(&self, resizes: Vec<ResizeReport>) {
        self.change(|node| node.resizes = resizes);
    }

    /// `gone`: the device that a pod which ran before lacks now. The refusal ends when the device
    /// is there again.
    pub fn add_refused(&self, pod: RefusedPod, gone: Option<GpuUuid>) {
        self.change(|node| {
            let list = &mut node.refused;
            list.retain(|other| other.pod.pod != pod.pod);
            list.push(RefusedStart { pod, gone });
            list.sort_by(|a, b| a.pod.pod.cmp(&b.pod.pod));
        });
    }

    /// Retains only the refused pods for which `keep` holds.
    pub fn retain_refused(&self, keep: impl Fn(&PodUid) -> bool) {
        if self.get().refused.is_empty() {
            return;
        }
        self.change(|node| node.refused.retain(|refused| keep(&refused.pod.pod)));
    }

    fn change(&self, change: impl FnOnce(&mut PublishedNode)) {
        self.0.send_if_modified(|current| {
            let mut next = PublishedNode::clone(current);
            change(&mut next);
            let changed = next != **current;
            if changed {
                next.recompute();
                *current = Arc::new(next);
            }
            changed
        });
    }
}

impl PublishedNode {
    /// Whether replicas are advertised, or advertised as healthy, only because a pod uses them.
    pub fn has_retained_replicas(&self) -> bool {
        !self.readings.failures.devices.is_empty() || self.advertises_less_than_allocated()
    }

    /// All devices that are out of service: failed ones, and those without their MPS daemon.
    pub fn unhealthy_devices(&self) -> Vec<DeviceFailure> {
        let down = self.mps_down.iter().map(|(device, why)| DeviceFailure {
            gpu: device.clone(),
            cause: format!("the MPS daemon is down: {why}"),
            recovery: Recovery::RestartApplication,
        });
        self.readings
            .failures
            .devices
            .iter()
            .cloned()
            .chain(down)
            .collect()
    }

    /// Every UUID that the driver has for a GPU or instance here, with its id in the ledger: an
    /// instance that is not allocatable itself counts as its GPU.
    pub fn ledger_ids(&self) -> BTreeMap<GpuUuid, GpuUuid> {
        let mut names = BTreeMap::new();
        for gpu in &self.readings.facts.gpus {
            let whole = GpuUuid::from(gpu.uuid.as_str());
            for device in gpu.layout.instances.iter().flat_map(|one| &one.devices) {
                let own = GpuUuid::from(device.uuid.as_str());
                let id = if self.inventory.gpu(&own).is_some() {
                    own.clone()
                } else {
                    whole.clone()
                };
                names.insert(own, id);
            }
            names.insert(whole.clone(), whole);
        }
        names
    }

    /// The resources that the kubelet must know: those of the devices, and those of which living
    /// pods still use replicas.
    pub fn resources(&self) -> BTreeSet<String> {
        let gpus = self.inventory.gpus.iter();
        let advertised = gpus.flat_map(allocatable::replicas_by_resource);
        let advertised = advertised.map(|replicas| replicas.resource);
        let allocated = self.allocated_ids.iter().filter(|(_, ids)| !ids.is_empty());
        advertised
            .chain(allocated.map(|(resource, _)| resource.clone()))
            .collect()
    }

    /// Whether living pods use replicas that are not advertised any more.
    fn advertises_less_than_allocated(&self) -> bool {
        let mut advertised: BTreeMap<String, DeviceIds> = BTreeMap::new();
        for gpu in &self.inventory.gpus {
            for replicas in allocatable::replicas_by_resource(gpu) {
                let numbers = replicas.numbers.iter();
                let ids = numbers.map(|number| format!("{}::{number}", gpu.uuid));
                advertised.entry(replicas.resource).or_default().extend(ids);
            }
        }
        let nothing = DeviceIds::new();
        let is_advertised = |resource: &String, ids: &DeviceIds| {
            ids.is_subset(advertised.get(resource).unwrap_or(&nothing))
        };
        let mut allocated = self.allocated_ids.iter();
        allocated.any(|(resource, ids)| !is_advertised(resource, ids))
    }

    /// Recomputes what follows from the writers' values.
    fn recompute(&mut self) {
        let GpuReadings {
            facts,
            health,
            failures,
        } = &self.readings;
        self.devices = host_devices(facts);
        let mut gpus = allocatable::allocatable_devices(facts, health, &self.layout);
        host_memory::cap_promised(&mut gpus, self.host_reserve, facts);
        for gpu in &mut gpus {
            if gpu.health == Health::Ok && self.mps_down.contains_key(&gpu.uuid) {
                gpu.health = Health::Unhealthy("mps daemon down".to_owned());
            }
            if let Some(why) = &failures.drain_reason {
                gpu.cordon.get_or_insert_with(|| why.clone());
            }
            for taken in self.taken_resources.iter().flatten() {
                let mut replicas = allocatable::replicas_by_resource(gpu).into_iter();
                if replicas.any(|replicas| replicas.resource == taken.resource) {
                    let why = || format!("another device plugin serves {}", taken.resource);
                    gpu.cordon.get_or_insert_with(why);
                }
            }
        }
        let mut evict: Vec<RefusedPod> = Vec::new();
        for one in failures.evict.iter().chain(&self.layout.evict) {
            if evict.iter().all(|known| known.pod != one.pod) {
                evict.push(one.clone());
            }
        }
        let is_gone = |gpu: &GpuUuid| !self.devices.contains_key(gpu);
        let refused = self.refused.iter();
        let refused = refused.filter(|one| one.gone.as_ref().is_none_or(is_gone));
        let uuids = facts.gpus.iter().map(|gpu| gpu.uuid.as_str());
        let unmeasured = uuids.filter(|uuid| self.monitor.unmeasured.contains(*uuid));
        let held = |gpu: &inventory::Gpu| {
            let memory = self.monitor.unmanaged.get(gpu.uuid.as_str())?;
            Some((gpu.uuid.clone(), *memory))
        };
        self.inventory = Inventory {
            v: inventory::VERSION,
            reads: vec![allocation::VERSION],
            driver: facts.driver_version.clone(),
            topology_policy: self.topology.policy.clone(),
            topology_scope: self.topology.scope,
            unmeasured: unmeasured.map(GpuUuid::from).collect(),
            unmanaged: gpus.iter().filter_map(held).collect(),
            gpus,
            orphaned: self.other_users.orphaned.clone(),
            foreign: self.other_users.foreign.clone(),
            refused: refused.map(|one| one.pod.clone()).collect(),
            evict,
            unreadable: self.other_users.unreadable.clone(),
            resizes: self.resizes.clone(),
        };
    }
}

fn host_devices(facts: &nvml::DriverInventory) -> BTreeMap<GpuUuid, HostDevice> {
    let mut found = BTreeMap::new();
    for gpu in &facts.gpus {
        let named = |uuid: &str, part| HostDevice {
            uuid: uuid.into(),
            minor: gpu.minor,
            instance: part,
        };
        let instances = gpu.layout.instances.iter();
        let parts = instances.filter_map(|one| {
            let device = one.device()?;
            Some(named(&device.uuid, Some(InstanceIds::new(one, device))))
        });
        let all = parts.chain([named(&gpu.uuid, None)]);
        found.extend(all.map(|gpu| (gpu.uuid.clone(), gpu)));
    }
    found
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;

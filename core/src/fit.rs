//! Whether a node can take a pod, on which devices, and if not, why. Deterministic, without
//! side effects.
//!
//! Containers are placed one after the other; what earlier containers of the pod take is in
//! `shares`, and the node's state is not changed. `device` evaluates each device,
//! [`crate::score`] chooses among those that fit, and `instances` places instances on GPUs under
//! dynamic MIG. Follows HAMi's `Fit` (order of checks, exclusive devices, `gpucores: 0`),
//! with the effective use of [`crate::usage`] instead of HAMi's sum; the kubelet's replicas
//! are checked last, so that full or unhealthy devices are reported first.

mod device;
mod instances;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::allocation::{self, Allocation, Grant};
use crate::demand::Demand;
use crate::id::NodeName;
use crate::inventory::{Gpu, Inventory, Mode};
use crate::mig::published::{Mig, MigPlacement};
use crate::mig::{self, Instance};
use crate::node::{Align, DeviceState, NodeState};
use crate::policy::{GpuPolicy, Policy};
use crate::quota::QuotaAmount;
use crate::refusal::{Reason, Refusal};
use crate::request::{GpuRequest, Memory};
use crate::score::{self, Candidate, DeviceSelection, Policies, Scorer};
use crate::units::Mib;
use crate::usage::{DeviceUse, Stage};
use device::DeviceCheck;

/// A placement of a pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The score by the node policy; higher is better.
    pub score: u64,
    /// The pod's effective use of each of its devices, by device index.
    pub uses: Vec<(usize, DeviceUse)>,
    /// Which of `uses` are instances on GPUs under dynamic MIG, by their indices in that
    /// list.
    pub instances: Vec<(usize, Instance)>,
    shares: Vec<ContainerShare>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContainerShare {
    container: usize,
    /// An index in the demand's resources.
    resource: u8,
    device: usize,
    used: DeviceUse,
    /// What the pod then uses of the device, or of the instance, with the shares before this.
    pod_use: DeviceUse,
    /// The instance, on a GPU under dynamic MIG.
    instance: Option<Instance>,
    /// A whole GPU for a container that asked for less.
    waste: bool,
    /// By how much less its GPU can serve in instances.
    loss: u32,
}

/// Observes how the devices are evaluated, container by container.
pub trait FitTrace: Default {
    /// The container with this index is placed next.
    fn container(&mut self, _container: usize) {}
    /// What the pod would then use of this device, and why it cannot. Called again for a
    /// device that fits by itself but is refused because of others.
    fn device(&mut self, _device: usize, _needs: DeviceUse, _refused: Option<Reason>) {}
}

/// No observer.
impl FitTrace for () {}

/// Places all containers of `demand` on the node's devices, or counts each device's reason
/// for refusing. If they fit, the kubelet must have the replicas, too.
pub fn fit(node: &NodeState, demand: &Demand, defaults: &Policies) -> Result<Fit, Refusal> {
    traced(node, demand, defaults, &mut ())
}

/// The same; `trace` observes the attempt that decided.
pub fn traced<T: FitTrace>(
    node: &NodeState,
    demand: &Demand,
    defaults: &Policies,
    trace: &mut T,
) -> Result<Fit, Refusal> {
    if let Some(reason) = node.closed {
        return Err(Refusal::from(reason));
    }
    let scorer = Scorer::new(node, demand, defaults);
    let policy = demand.gpu_policy.unwrap_or(defaults.gpu);
    let mut order: Vec<(usize, &GpuRequest)> = Vec::with_capacity(demand.containers.len());
    let requests = |is_staged: fn(Stage) -> bool| {
        let containers = demand.containers.iter().enumerate();
        let staged = containers.filter(move |(_, c)| is_staged(c.stage));
        staged.flat_map(|(i, c)| c.requests.iter().map(move |request| (i, request)))
    };
    // Init containers last: they reuse the app containers' devices if they fit.
    order.extend(requests(|stage| stage != Stage::Init));
    order.extend(requests(|stage| stage == Stage::Init));

    let shares = place(&scorer, &order, policy, trace).or_else(|refusal| {
        if order.len() < 2 {
            return Err(refusal);
        }
        // The policy's choice for one container may have taken what another needed: try the
        // largest first, each on the fullest device.
        order.sort_by_key(|(_, request)| Reverse(size(demand, request)));
        let mut again = T::default();
        let fullest = policy.ordered_by(Policy::Binpack);
        let shares = place(&scorer, &order, fullest, &mut again).map_err(|_| refusal)?;
        *trace = again;
        Ok(shares)
    })?;
    let (uses, instances) = uses(&shares);
    let waste = shares.iter().any(|share| share.waste);
    let loss = shares.iter().map(|share| share.loss).sum();
    let score = scorer.node(&uses, waste, loss);
    match node.replicas.shortage(demand.replicas_by_resource()) {
        Some(short) => Err(Refusal::replica_shortage(short)),
        None => Ok(Fit {
            score,
            uses,
            instances,
            shares,
        }),
    }
}

/// Instances by their compute slices, which the name of their resource begins with, then by
/// memory and compute.
fn size(demand: &Demand, request: &GpuRequest) -> (u64, u64, u32) {
    let name = demand.resource(request).strip_prefix(mig::RESOURCES);
    let slices = name.and_then(|name| name.split('g').next()?.parse().ok());
    let memory = match request.memory {
        Memory::Mib(memory) => memory,
        // Unresolved percentages are compared as parts of 1 TiB.
        Memory::Share(part) => Mib(crate::request::MAX_GPU_MIB).share(part),
    };
    (slices.unwrap_or(0), memory.0, request.cores.0)
}

fn place(
    scorer: &Scorer<'_>,
    order: &[(usize, &GpuRequest)],
    policy: GpuPolicy,
    trace: &mut impl FitTrace,
) -> Result<Vec<ContainerShare>, Refusal> {
    let mut placer = ContainerPlacer {
        scorer,
        policy,
        shares: Vec::with_capacity(order.len()),
        candidates: Vec::with_capacity(scorer.node.devices.len()),
        numa: None,
    };
    let align = placer.align();
    if align == Align::Nothing {
        for &(container, request) in order {
            trace.container(container);
            placer.place_request(container, request, trace)?;
        }
    } else {
        placer.place_aligned(order, align, trace)?;
    }
    Ok(placer.shares)
}

/// A NUMA node; `None` groups the devices whose NUMA node the driver does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NumaNode(Option<u32>);

struct ContainerPlacer<'a, 'n> {
    scorer: &'a Scorer<'n>,
    policy: GpuPolicy,
    shares: Vec<ContainerShare>,
    candidates: Vec<Candidate>,
    /// While one NUMA node is tried: only its devices.
    numa: Option<NumaNode>,
}

impl ContainerPlacer<'_, '_> {
    fn place_request(
        &mut self,
        container: usize,
        request: &GpuRequest,
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let (node, demand) = (self.scorer.node, self.scorer.demand);
        let rules = &demand.rules;
        let devices = if rules.same_device { 1 } else { request.count };
        let selection = DeviceSelection {
            count: usize::try_from(devices).unwrap_or(usize::MAX),
            one_numa: self.align() != Align::Nothing,
            numa_key: self.policy.numa_key(),
            links: self.policy.links,
        };
        let name = demand.resource(request);
        let dynamic = !node.dynamic_mig.is_empty() && name.starts_with(mig::RESOURCES);
        if selection.count > node.devices.len() && !dynamic {
            return Err(Refusal::from(Reason::NodeInsufficientDevice));
        }
        let mut refusal = self.evaluate_devices(container, request, name, trace);
        if dynamic && self.candidates.len() < selection.count {
            return self.place_instances(container, request, selection, refusal, trace);
        }
        if let Err(reason) = score::select_devices(node, selection, &mut self.candidates) {
            if reason == Reason::NumaNotFit && dynamic {
                return self.place_instances(container, request, selection, refusal, trace);
            }
            if reason == Reason::NumaNotFit {
                for candidate in &self.candidates {
                    trace.device(candidate.place, candidate.pod_use, Some(reason));
                    refusal.add(reason);
                }
            } else if !self.candidates.is_empty() {
                refusal.add(reason);
            }
            return Err(refusal);
        }
        self.take(container, request, selection.count);
        Ok(())
    }

    /// Collects the candidates among GPUs and fixed instances.
    fn evaluate_devices(
        &mut self,
        container: usize,
        request: &GpuRequest,
        name: &str,
        trace: &mut impl FitTrace,
    ) -> Refusal {
        let Self { scorer, policy, .. } = *self;
        let (node, demand) = (scorer.node, scorer.demand);
        let check = DeviceCheck::new(node, demand, policy, name);
        let alone = demand.uses_single_device(container);
        let init = demand.containers[container].stage == Stage::Init;
        let mut refusal = Refusal::default();
        self.candidates.clear();
        for (place, device) in node.devices.iter().enumerate() {
            if device.mode == Mode::Mig && instances::serves(node, place, name) {
                continue;
            }
            let (used, wrong) = device::share_on(node, place, request, &demand.rules, alone);
            let pod_use = device::pod_use(demand, &self.shares, (container, used), place);
            let refused = check
                .refuse(place, (&used, &pod_use), wrong)
                .or_else(|| self.off_numa_node(device));
            trace.device(place, pod_use, refused);
            if let Some(reason) = refused {
                refusal.add(reason);
                continue;
            }
            self.candidates.push(Candidate {
                outside_apps: init && !self.shares.iter().any(|s| s.device == place),
                unmanaged: device.unmanaged,
                waste: device::is_waste(device, &used, request),
                rank: scorer.device(policy, place, pod_use),
                place,
                used,
                pod_use,
            });
        }
        refusal
    }

    /// Gives the container the first candidates.
    fn take(&mut self, container: usize, request: &GpuRequest, count: usize) {
        let chosen = self.candidates[..count].iter();
        self.shares.extend(chosen.map(|candidate| ContainerShare {
            container,
            resource: request.resource,
            device: candidate.place,
            used: candidate.used,
            pod_use: candidate.pod_use,
            instance: None,
            waste: candidate.waste,
            loss: 0,
        }));
    }

    /// The alignment that the node's kubelet and the pod require.
    fn align(&self) -> Align {
        let own = if self.scorer.demand.rules.one_numa {
            Align::Container
        } else {
            Align::Nothing
        };
        own.max(self.scorer.node.align)
    }

    /// Refuses a device on another NUMA node than the one being tried.
    fn off_numa_node(&self, device: &DeviceState) -> Option<Reason> {
        let numa = self.numa?;
        (NumaNode(device.numa) != numa).then_some(Reason::NumaNotFit)
    }

    /// Places the requests, aligned by container or by pod.
    fn place_aligned(
        &mut self,
        order: &[(usize, &GpuRequest)],
        align: Align,
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let with = |one: usize, other: usize| align == Align::Pod || one == other;
        for (at, &(container, _)) in order.iter().enumerate() {
            let mut before = order[..at].iter();
            if before.any(|(earlier, _)| with(*earlier, container)) {
                continue;
            }
            let all = order.iter().copied();
            let group: Vec<_> = all.filter(|(other, _)| with(*other, container)).collect();
            self.place_on_one_numa_node(&group, trace)?;
        }
        Ok(())
    }

    /// Places these requests on one NUMA node, trying first the one that the first request
    /// would choose by itself. The refusal is that of the last NUMA node tried.
    fn place_on_one_numa_node(
        &mut self,
        group: &[(usize, &GpuRequest)],
        trace: &mut impl FitTrace,
    ) -> Result<(), Refusal> {
        let before = self.shares.len();
        let Some((&(container, request), rest)) = group.split_first() else {
            return Ok(());
        };
        trace.container(container);
        self.place_request(container, request, trace)?;
        if rest.is_empty() {
            return Ok(());
        }
        let devices = &self.scorer.node.devices;
        let own = self.shares.get(before);
        let first = own.map(|share| NumaNode(devices[share.device].numa));
        let mut numas: Vec<NumaNode> = devices.iter().map(|device| NumaNode(device.numa)).collect();
        numas.sort_unstable_by_key(|numa| (Some(*numa) != first, *numa));
        numas.dedup();
        let mut refusal = Refusal::default();
        for numa in numas {
            self.shares.truncate(before);
            self.numa = Some(numa);
            let placed = group.iter().try_for_each(|&(container, request)| {
                trace.container(container);
                self.place_request(container, request, trace)
            });
            self.numa = None;
            match placed {
                Ok(()) => return Ok(()),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }
}

/// Uses by device index, and instances by their index among the uses.
type PlacedUses = (Vec<(usize, DeviceUse)>, Vec<(usize, Instance)>);

/// The pod's effective use of each device in `shares`, and which of them are instances, by
/// their indices in the list.
fn uses(shares: &[ContainerShare]) -> PlacedUses {
    if let [share] = shares {
        let instance = share.instance.map(|instance| (0, instance));
        return (
            vec![(share.device, share.pod_use)],
            instance.into_iter().collect(),
        );
    }
    // Sorted by device and instance; the last share of each knows those before it.
    let mut placed: BTreeMap<_, DeviceUse> = BTreeMap::new();
    for share in shares {
        let instance = share.instance.map(|i| (i.start, i.profile));
        placed.insert((share.device, instance), share.pod_use);
    }
    let mut uses = Vec::with_capacity(placed.len());
    let mut instances = Vec::new();
    for (place, ((device, instance), used)) in placed.into_iter().enumerate() {
        uses.push((device, used));
        if let Some((start, profile)) = instance {
            instances.push((place, Instance::busy(profile, start)));
        }
    }
    (uses, instances)
}

impl Fit {
    /// What it counts for quotas.
    pub fn amount(&self) -> QuotaAmount {
        QuotaAmount::sum(self.uses.iter().map(|(_, used)| used))
    }

    pub fn allocation(
        &self,
        name: &NodeName,
        inventory: &Inventory,
        demand: &Demand,
    ) -> Allocation {
        let mut containers = BTreeMap::new();
        let mut init = BTreeMap::new();
        for (index, container) in demand.containers.iter().enumerate() {
            if container.requests.is_empty() {
                continue;
            }
            let shares = self.shares.iter().filter(|share| share.container == index);
            let grants = shares.map(|share| grant(share, inventory, demand));
            let kind = match container.stage {
                Stage::App => &mut containers,
                Stage::Init | Stage::Sidecar => &mut init,
            };
            kind.insert(container.name.clone(), grants.collect());
        }
        Allocation {
            v: allocation::VERSION,
            node: name.clone(),
            containers,
            init,
            priority: demand.priority,
        }
    }
}

fn grant(share: &ContainerShare, inventory: &Inventory, demand: &Demand) -> Grant {
    let gpu = &inventory.gpus[share.device];
    let resource = demand.resources.get(usize::from(share.resource));
    Grant {
        resource: resource.map_or_else(String::new, ToString::to_string),
        gpu: gpu.uuid.clone(),
        memory: share.used.memory,
        cores: share.used.cores,
        replicas: share.used.replicas,
        mig: share
            .instance
            .and_then(|instance| mig_placement(gpu, instance)),
        burst: demand.rules.burst.filter(|_| gpu.mode == Mode::Vgpu),
    }
}

fn mig_placement(gpu: &Gpu, instance: Instance) -> Option<MigPlacement> {
    let mig = gpu.mig.as_ref().and_then(Mig::dynamic)?;
    let profile = mig.geometry.profiles().get(instance.profile)?;
    Some(MigPlacement {
        profile: profile.name.clone(),
        start: instance.start,
    })
}

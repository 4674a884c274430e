//! Whether a node can take a pod, on which devices, and if not, why. Deterministic, without
//! side effects.
//!
//!
//! Follows HAMi's `Fit` (order of checks, exclusive devices, `gpucores: 0`), with the
//! effective use of [`crate::usage`] instead of HAMi's sum; the kubelet's replicas are
//! checked last, so that full or unhealthy devices are reported first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::allocation::{self, Allocation, Grant};
use crate::demand::{ContainerDemand, Demand, Stage};
use crate::gpu_policy::GpuPolicy;
use crate::id::NodeName;
use crate::inventory::{Gpu, Inventory};
use crate::mig::published::{Mig, MigPlacement};
use crate::mig::{self, Instance};
use crate::node::NodeState;
use crate::placement::{self, ContainerShare, place};
use crate::reason::{Reason, Refusal};
use crate::request::{GpuRequest, Memory};
use crate::score::Policy;
use crate::scorer::Scorer;
use crate::typical::Typical;
use crate::units::Mib;
use crate::usage::{DeviceUse, DeviceUses};

/// Which choice is better, for nodes and for the devices of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Between nodes.
    pub node: Policy,
    /// Between the devices of a node.
    pub gpu: GpuPolicy,
    /// The typical pods that [`Policy::Fragmentation`] saves capacity for.
    pub typical: Arc<Typical>,
}

impl Default for Policies {
    /// HAMi's defaults.
    fn default() -> Self {
        Self {
            node: Policy::Binpack,
            gpu: Policy::Spread.into(),
            typical: Arc::default(),
        }
    }
}

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
        return Err(Refusal::of(reason));
    }
    let scorer = Scorer::new(node, demand, defaults);
    let policy = demand.gpu_policy.unwrap_or(defaults.gpu);
    let mut order: Vec<(usize, &GpuRequest)> = Vec::with_capacity(demand.containers.len());
    let asking = |wanted: fn(Stage) -> bool| {
        let containers = demand.containers.iter().enumerate();
        let staged = containers.filter(move |(_, c)| wanted(c.stage));
        staged.flat_map(|(i, c)| c.requests.iter().map(move |request| (i, request)))
    };
    // Init containers last: they reuse the app containers' devices if they fit.
    order.extend(asking(|stage| stage != Stage::Init));
    order.extend(asking(|stage| stage == Stage::Init));

    let shares = place(&scorer, &order, policy, trace).or_else(|refusal| {
        if order.len() < 2 {
            return Err(refusal);
        }
        // The policy's choice for one container may have taken what another needed: try the
        // largest first, each on the fullest device.
        order.sort_by_key(|(_, request)| Reverse(size(demand, request)));
        let mut again = T::default();
        let shares = place(
            &scorer,
            &order,
            policy.ordered_by(Policy::Binpack),
            &mut again,
        );
        let shares = shares.map_err(|_| refusal)?;
        *trace = again;
        Ok(shares)
    })?;
    if let Some(short) = node.replicas.shortage(demand) {
        return Err(Refusal::replica_shortage(short));
    }
    let (uses, instances) = placement::uses(demand, &shares);
    let score = score(demand, &shares, scorer.node(&uses));
    Ok(Fit {
        score,
        uses,
        instances,
        shares,
    })
}

/// Adjusts the node's score: nodes where instances cost fewer placements of others come
/// first under any policy, and nodes that would give a whole GPU to a pod that asked for
/// less come last.
fn score(demand: &Demand, shares: &[ContainerShare], score: u64) -> u64 {
    let score = if shares.iter().any(|share| share.waste) {
        score >> 10
    } else {
        score
    };
    if !demand.requests_mig_instances() {
        return score;
    }
    let loss: u32 = shares.iter().map(|share| share.loss).sum();
    score + (u64::from(4095 - loss.min(4095)) << 44)
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

impl Fit {
    /// The allocation for this placement.
    pub fn allocation(
        &self,
        name: &NodeName,
        inventory: &Inventory,
        demand: &Demand,
    ) -> Allocation {
        let mut containers = BTreeMap::new();
        let mut init = BTreeMap::new();
        for (
            index,
            ContainerDemand {
                name,
                stage,
                requests,
            },
        ) in demand.containers.iter().enumerate()
        {
            if requests.is_empty() {
                continue;
            }
            let grants: Vec<Grant> = self
                .shares
                .iter()
                .filter(|share| share.container == index)
                .map(|share| grant(share, inventory, demand))
                .collect();
            let kind = match stage {
                Stage::App => &mut containers,
                Stage::Init | Stage::Sidecar => &mut init,
            };
            kind.insert(name.clone(), grants);
        }
        Allocation {
            v: allocation::VERSION,
            node: name.clone(),
            containers,
            init,
            priority: demand.priority,
        }
    }

    /// What the pod would use, as [`crate::usage::effective`] reads it from the allocation.
    pub fn allocated_uses(&self, inventory: &Inventory) -> DeviceUses {
        let devices = self.uses.iter().enumerate();
        let named = devices.map(|(place, (device, used))| {
            let gpu = &inventory.gpus[*device];
            let instance = self.instances.iter().find(|(at, _)| *at == place);
            let mig_placement = instance.and_then(|(_, instance)| mig_placement(gpu, *instance));
            let key = mig_placement.map_or_else(
                || gpu.uuid.clone(),
                |mig_placement| mig_placement.device_key(&gpu.uuid),
            );
            (key, *used)
        });
        named.collect()
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

//! Scores choices on one node for one pod: devices by the keys of the GPU policy, the node
//! by the node policy. Capacity is not checked here.

use std::cell::OnceCell;

use crate::demand::Demand;
use crate::fit::Policies;
use crate::fragmentation::View;
use crate::gpu_policy::{GpuPolicy, GpuSortKey, MAX_KEYS};
use crate::node::{DeviceState, NodeState};
use crate::score::{self, Load, Policy};
use crate::usage::DeviceUse;

/// One pod on one node.
pub(crate) struct Scorer<'a> {
    /// The node.
    pub(crate) node: &'a NodeState,
    /// The pod.
    pub(crate) demand: &'a Demand,
    defaults: &'a Policies,
    /// Made when fragmentation is first needed.
    view: OnceCell<View<'a>>,
}

impl<'a> Scorer<'a> {
    /// `defaults` apply to a pod that chooses no policy.
    pub(crate) fn new(node: &'a NodeState, demand: &'a Demand, defaults: &'a Policies) -> Self {
        Self {
            node,
            demand,
            defaults,
            view: OnceCell::new(),
        }
    }

    fn view(&self) -> &View<'a> {
        let view = || View::new(&self.defaults.typical, self.node, self.demand.host);
        self.view.get_or_init(view)
    }

    /// The score of the node with these uses of its devices; higher is better. Under
    /// `fragmentation` the fuller node wins among equal scores.
    pub(crate) fn node(&self, uses: &[(usize, DeviceUse)]) -> u64 {
        match self.demand.node_policy.unwrap_or(self.defaults.node) {
            Policy::Fragmentation => {
                let view = self.view();
                u64::from(view.score(uses)) << 32 | view.fullness()
            }
            policy => score::score(policy, node_load(self.node, uses)),
        }
    }

    /// The rank of a device that would be used like this; lower is better, key by key.
    pub(crate) fn device(
        &self,
        policy: GpuPolicy,
        place: usize,
        used: DeviceUse,
    ) -> [u64; MAX_KEYS] {
        policy.keys.map(|key| match key {
            Some(GpuSortKey::Load(Policy::Fragmentation)) => {
                u64::MAX - u64::from(self.view().score(&[(place, used)]))
            }
            Some(GpuSortKey::Load(policy)) => {
                let load = device_load(&self.node.devices[place], used);
                u64::MAX - score::weighted(policy, load, self.demand.rules.weights)
            }
            // NUMA nodes are compared once all candidates are known.
            Some(GpuSortKey::Numa) | None => 0,
        })
    }
}

fn device_load(device: &DeviceState, more: DeviceUse) -> Load {
    let used = device.allocated.used.with(more);
    Load {
        replicas: (u64::from(used.replicas), u64::from(device.replicas)),
        cores: (u64::from(used.cores.0), u64::from(device.cores.0)),
        memory: (used.memory.0, device.scaled.0),
    }
}

fn node_load(node: &NodeState, uses: &[(usize, DeviceUse)]) -> Load {
    let devices = node.devices.iter().enumerate();
    devices.fold(Load::default(), |sum, (place, device)| {
        let here = uses.iter().filter(|(device, _)| *device == place);
        let more = here.fold(DeviceUse::default(), |more, (_, used)| more.with(*used));
        sum.plus(device_load(device, more))
    })
}

//! Invariants as functions, for debug assertions and the state-machine test.

use crate::inventory::Mode;
use crate::mig::published::Mig;
use crate::node::{DeviceState, NodeState};

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
        let gpus = node.inventory.as_ref().map(|inventory| &inventory.gpus);
        let gpu = gpus.and_then(|gpus| gpus.get(mig_state.device));
        let found = gpu.and_then(|gpu| gpu.mig.as_ref()).and_then(Mig::dynamic);
        found.is_some_and(|found| mig_state.is_consistent(&found.geometry))
    })
}

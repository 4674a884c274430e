//! The devices of an inventory as the ledger tracks them: compact, with what pods are
//! allocated.
//!
//!
//! Fails closed: a device with an allocation of an unknown kind takes no new share.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::dynamic_mig::DynamicMigState;
use crate::id::{GpuUuid, PodUid};
use crate::inventory::{ForeignAllocation, Gpu, Health, Inventory, Mode};
use crate::ledger::AllocatedUse;
use crate::mig::published::{Mig, MigPlacement};
use crate::node::{DeviceState, Sums};
use crate::reason::Reason;
use crate::usage::DeviceUse;

/// The devices of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerDevices {
    /// In the inventory's order.
    pub devices: Vec<DeviceState>,
    /// The resources that they are advertised under, without duplicates.
    pub resources: Vec<Arc<str>>,
    /// The MIG state of those under dynamic MIG.
    pub dynamic_mig: Vec<DynamicMigState>,
}

impl LedgerDevices {
    /// The devices of an inventory, with the allocations of these pods and the lingering
    /// shares of other pods. An allocation on a device that the inventory lacks counts
    /// again when the device comes back.
    pub fn of(
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
            devices.push(inventory, cordoned, pods, gpu);
            places.insert(gpu.uuid.as_str(), place);
        }
        for (_, allocated) in pods {
            for (key, used) in allocated.uses().into_iter().flatten() {
                devices.add(inventory, &places, key, *used);
            }
        }
        for lingering in &inventory.lingering {
            if !pods.iter().any(|(pod, _)| **pod == lingering.pod) {
                devices.add(inventory, &places, &lingering.gpu, lingering.used());
            }
        }
        devices
    }

    fn push(
        &mut self,
        inventory: &Inventory,
        cordoned: &[GpuUuid],
        pods: &[(&PodUid, &AllocatedUse)],
        gpu: &Gpu,
    ) {
        let known = self.resources.iter().position(|n| **n == *gpu.resource);
        let resource = known.unwrap_or_else(|| {
            self.resources.push(gpu.resource.as_str().into());
            self.resources.len() - 1
        });
        let mig_state = gpu.mig.as_ref().and_then(Mig::dynamic);
        let mig_state = mig_state.filter(|_| gpu.mode == Mode::Mig);
        let closed = closed(inventory, cordoned, pods, gpu);
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
        let instance = MigPlacement::parse_device_key(key);
        let gpu_uuid = instance
            .as_ref()
            .map_or(key.as_str(), |(gpu_uuid, _)| gpu_uuid);
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
                mig_state.allocate(&found.geometry, instance.as_ref().map(|(_, placed)| placed));
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
        let instance = MigPlacement::parse_device_key(key);
        let gpu_uuid = instance
            .as_ref()
            .map_or(key.as_str(), |(gpu_uuid, _)| gpu_uuid);
        let place = inventory
            .gpus
            .iter()
            .position(|g| g.uuid.as_str() == gpu_uuid)?;
        let Some((_, placed)) = instance else {
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
            return Some((place, Some(Reason::CardModeMismatch)));
        };
        let mut more = mig_state.clone();
        more.allocate(&found.geometry, Some(&placed));
        let legal = more.is_consistent(&found.geometry) && !more.inconsistent;
        Some((place, (!legal).then_some(Reason::CardMigNoPlacement)))
    }
}

/// Why the device takes no new share from any pod.
fn closed(
    inventory: &Inventory,
    cordoned: &[GpuUuid],
    pods: &[(&PodUid, &AllocatedUse)],
    gpu: &Gpu,
) -> Option<Reason> {
    let parent = gpu.mig.as_ref().and_then(Mig::fixed).map(|p| &p.parent);
    let is = |uuid: &GpuUuid| *uuid == gpu.uuid || Some(uuid) == parent;
    // What a pod of HAMi uses counts instead of the whole GPU, where that is read.
    let is_counted = |uid: &PodUid| {
        let mut pods = pods.iter().filter(|(pod, _)| *pod == uid);
        pods.any(|(_, allocated)| allocated.uses().is_none_or(|uses| !uses.is_empty()))
    };
    let is_whole = |foreign: &&ForeignAllocation| !foreign.hami.as_ref().is_some_and(is_counted);
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
    } else if inventory
        .foreign
        .iter()
        .filter(is_whole)
        .any(|foreign| is(&foreign.gpu))
    {
        Some(Reason::CardHeldByForeignPod)
    } else {
        None
    }
}

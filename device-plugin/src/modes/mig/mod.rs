//! mig: a GPU partitioned into instances, by a fixed layout or dynamically. `partitioner` creates
//! and destroys them.

mod last_instances;
mod partitioner;
pub mod plan;

use std::collections::BTreeMap;

use aliquot_core::inventory::{self, Gpu};
use aliquot_core::mig;
use aliquot_core::mig::published::{self, CreatedInstance, DynamicMig, FixedInstance};
use aliquot_nvml::{GpuFacts, GpuInstance, MigDevice};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{InstanceSharing, LayoutEntry, Mig, Strategy};

use super::{
    Capabilities, ContainerGrant, ModeError, ModeSetup, SharingMode, SharingModes, exclusive,
};
use crate::host_device::InstanceIds;

pub(super) use partitioner::MigPartitioner;

pub(super) static ANY: Mig = Mig {
    layout: Vec::new(),
    dynamic: true,
    allow: Vec::new(),
    strategy: Strategy::Mixed,
};

impl SharingMode for Mig {
    fn devices(&self, whole: Gpu, gpu: &GpuFacts) -> Vec<Gpu> {
        if self.dynamic {
            return dynamic_device(whole, gpu, &self.allow)
                .into_iter()
                .collect();
        }
        let entries: &[LayoutEntry] = match self.strategy {
            Strategy::None => &[],
            Strategy::Mixed | Strategy::Single => &self.layout,
        };
        let instances = assign_instances(entries, &gpu.layout.instances).into_iter();
        let devices = instances.flat_map(|(entry, instance, device)| {
            let part = instance_device(&whole, self.strategy, instance, device);
            sharing(entry).devices(part, gpu)
        });
        devices.collect()
    }

    fn setup(&self) -> Option<Mode> {
        Some(Mode::Mig(Self {
            allow: Vec::new(),
            ..self.clone()
        }))
    }

    fn needs_mps_supervisor(&self) -> bool {
        let mut entries = self.layout.iter();
        entries.any(|entry| sharing(entry).needs_mps_supervisor())
    }

    fn enter(&self, modes: &SharingModes, gpu: &GpuFacts) -> Result<(), ModeError> {
        modes.mig.enter(gpu, self)
    }

    fn leave(&self, modes: &SharingModes, gpu: &GpuFacts, to: &Mode) -> Result<(), ModeError> {
        modes.mig.leave(gpu, to)
    }

    fn capabilities(&self, device: &Gpu) -> Option<Capabilities> {
        let profile = &device.mig.as_ref()?.fixed()?.profile;
        let entry = self.layout.iter().find(|entry| entry.profile == *profile);
        sharing(entry?).capabilities(device)
    }

    fn enforces_amounts(&self) -> bool {
        false
    }

    fn prepare(
        &self,
        modes: &SharingModes,
        share: &ContainerGrant<'_>,
        setup: &mut ModeSetup,
    ) -> Result<Option<InstanceIds>, ModeError> {
        modes.mig.prepare(share, setup).map(Some)
    }
}

/// How the instances of a layout's entry are shared: one container gets each, unless it says `on`.
fn sharing(entry: &LayoutEntry) -> &dyn SharingMode {
    match &entry.on {
        None => &exclusive::ANY,
        Some(InstanceSharing::Vgpu(settings)) => settings,
        Some(InstanceSharing::Timeslice(settings)) => settings,
        Some(InstanceSharing::Mps(settings)) => settings,
    }
}

/// An instance of a fixed layout before it is shared.
fn instance_device(
    whole: &Gpu,
    strategy: Strategy,
    instance: &GpuInstance,
    device: &MigDevice,
) -> Gpu {
    Gpu {
        uuid: device.uuid.as_str().into(),
        memory: instance.memory,
        scaled: instance.memory,
        resource: match strategy {
            Strategy::Single => whole.resource.clone(),
            Strategy::Mixed | Strategy::None => mig::resource(&instance.profile),
        },
        links: BTreeMap::new(),
        mig: Some(published::Mig::Fixed(FixedInstance {
            parent: whole.uuid.clone(),
            profile: instance.profile.clone(),
            start: instance.start,
            gi: instance.id,
            ci: device.id,
        })),
        ..whole.clone()
    }
}

/// Assigns instances to the entries of a layout: those of one profile in the order of their starts.
fn assign_instances<'a>(
    layout: &'a [LayoutEntry],
    instances: &'a [GpuInstance],
) -> Vec<(&'a LayoutEntry, &'a GpuInstance, &'a MigDevice)> {
    let whole = |one: &'a GpuInstance| Some((one, one.device()?));
    let mut left: Vec<_> = instances.iter().filter_map(whole).collect();
    left.sort_by_key(|(one, _)| one.start);
    let mut found = Vec::new();
    for entry in layout {
        for _ in 0..entry.count {
            if let Some(at) = left
                .iter()
                .position(|(one, _)| one.profile == entry.profile)
            {
                let (instance, device) = left.remove(at);
                found.push((entry, instance, device));
            }
        }
    }
    found
}

/// One device, unless the driver does not report the GPU's MIG profiles.
fn dynamic_device(whole: Gpu, gpu: &GpuFacts, allow: &[String]) -> Option<Gpu> {
    let allowed = |name: &str| allow.is_empty() || allow.iter().any(|one| one == name);
    let geometry = gpu.layout.geometry.as_ref()?.only(allowed);
    let made = gpu.layout.instances.iter().filter_map(|one| {
        let device = one.device()?;
        Some(CreatedInstance {
            profile: one.profile.clone(),
            start: one.start,
            uuid: device.uuid.as_str().into(),
            gi: one.id,
            ci: device.id,
        })
    });
    let instances = made.collect();
    Some(Gpu {
        // The sizes of its instances determine what can be allocated.
        memory: gpu.memory,
        scaled: gpu.memory,
        mode: inventory::Mode::Mig,
        replicas: 0,
        mig: Some(published::Mig::Dynamic(DynamicMig {
            geometry,
            instances,
            reserved: Vec::new(),
        })),
        ..whole
    })
}

//! Names of MIG instances that outlive a reboot. The driver gives an instance that is recreated at
//! the same placement a new UUID, but pods, the kubelet and the ledger go on with its first one.
//!
//! A name belongs to one placement, and is forgotten only when we destroy the instance.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::mig::published::MigPlacement;
use aliquot_nvml::{
    Activation, DeviceHealth, Driver, DriverInventory, GpuEvent, GpuInstance, MigError, MigLayout,
    NvmlError, RecordedError,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::files;
use crate::gpus::host_device::placement_of;

const FILE: &str = "names.json";

/// The name of the instance at a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InstanceName {
    #[serde(flatten)]
    place: MigPlacement,
    uuid: String,
}

/// By GPU.
type InstanceNames = BTreeMap<String, Vec<InstanceName>>;

/// A driver that reports instances under their stable names.
pub struct StableNameDriver {
    inner: Arc<dyn Driver>,
    directory: PathBuf,
    table: Mutex<NameTable>,
}

#[derive(Default)]
struct NameTable {
    names: InstanceNames,
    /// The driver's UUID to the name.
    current: BTreeMap<String, String>,
}

impl StableNameDriver {
    /// Wraps a driver, with the names stored in `directory`. A file that cannot be read is logged, and
    /// the names start anew.
    pub fn new(inner: Arc<dyn Driver>, directory: PathBuf) -> Self {
        let names = read(&directory);
        let table = Mutex::new(NameTable {
            names,
            ..NameTable::default()
        });
        Self {
            inner,
            directory,
            table,
        }
    }

    /// Gives each complete instance its name, and stores new ones.
    fn name(&self, gpu: &str, layout: &mut MigLayout) {
        let mut table = self.table.lock();
        let mut new = false;
        for instance in &mut layout.instances {
            if instance.device().is_some() {
                new |= table.name(gpu, instance);
            }
        }
        if new {
            self.store(&table.names);
        }
    }

    fn store(&self, names: &InstanceNames) {
        let store = || {
            files::directory(&self.directory, 0o700).map_err(|error| error.to_string())?;
            let text = serde_json::to_vec_pretty(names).map_err(|error| error.to_string())?;
            let stored = files::replace(&self.directory.join(FILE), &text);
            stored.map_err(|error| error.to_string())
        };
        if let Err(error) = store() {
            tracing::warn!(
                error,
                "cannot store the names of MIG instances: they will change with the next reboot"
            );
        }
    }

    /// The driver's current UUID of a device.
    fn current(&self, device: &str) -> String {
        let table = self.table.lock();
        let mut current = table.current.iter().filter(|(_, name)| *name == device);
        let found = current.next().map(|(current, _)| current.clone());
        found.unwrap_or_else(|| device.to_owned())
    }

    fn of(&self, uuid: String) -> String {
        self.table
            .lock()
            .current
            .get(&uuid)
            .cloned()
            .unwrap_or(uuid)
    }
}

impl NameTable {
    /// Returns true if the name is new.
    fn name(&mut self, gpu: &str, instance: &mut GpuInstance) -> bool {
        let place = placement_of(instance);
        let Some(device) = instance.devices.first_mut() else {
            return false;
        };
        let names = self.names.entry(gpu.to_owned()).or_default();
        let found = names.iter().find(|name| name.place == place);
        let uuid = found.map_or_else(|| device.current.clone(), |found| found.uuid.clone());
        let new = found.is_none();
        if new {
            let uuid = uuid.clone();
            names.push(InstanceName { place, uuid });
        }
        // An instance that somebody else destroyed and recreated has another UUID now.
        self.current.retain(|_, name| *name != uuid);
        self.current.insert(device.current.clone(), uuid.clone());
        device.uuid = uuid;
        new
    }

    /// Forgets a destroyed instance; returns true if it had a name. An incomplete instance has
    /// none: its placement may have one from before a reboot.
    fn forget(&mut self, gpu: &str, gone: &GpuInstance) -> bool {
        let names = self.names.get_mut(gpu);
        let (Some(names), Some(_)) = (names, gone.device()) else {
            return false;
        };
        let place = placement_of(gone);
        names.retain(|name| name.place != place);
        true
    }
}

/// The last known placements of a GPU's instances.
pub fn last_placements(directory: &Path, gpu: &str) -> Vec<MigPlacement> {
    let names = read(directory).remove(gpu).unwrap_or_default();
    names.into_iter().map(|name| name.place).collect()
}

/// The names of a GPU's instances, including those lost in a reboot.
pub fn instance_names(directory: &Path, gpu: &str) -> BTreeSet<String> {
    let names = read(directory).remove(gpu).unwrap_or_default();
    names.into_iter().map(|name| name.uuid).collect()
}

fn read(directory: &Path) -> InstanceNames {
    let path = directory.join(FILE);
    let Ok(text) = std::fs::read_to_string(&path) else {
        return InstanceNames::new();
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "cannot read the names of MIG instances");
        InstanceNames::new()
    })
}

impl Driver for StableNameDriver {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        let mut inventory = self.inner.inventory()?;
        for gpu in &mut inventory.gpus {
            self.name(&gpu.uuid, &mut gpu.layout);
        }
        Ok(inventory)
    }

    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError> {
        let health = self.inner.health()?.into_iter();
        let named = health.map(|one| DeviceHealth {
            uuid: self.of(one.uuid),
            ..one
        });
        Ok(named.collect())
    }

    fn mps_clients(&self, uuid: &str) -> Result<Vec<(u32, u64)>, NvmlError> {
        self.inner.mps_clients(&self.current(uuid))
    }

    fn clear_errors(&self, uuid: &str) {
        self.inner.clear_errors(&self.current(uuid));
    }

    fn errors(&self) -> Vec<RecordedError> {
        self.inner.errors()
    }

    fn restore_errors(&self, errors: Vec<RecordedError>) {
        self.inner.restore_errors(errors);
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        let mut events = self.inner.wait_events(timeout)?;
        for event in &mut events {
            let (GpuEvent::Xid { uuid, .. }
            | GpuEvent::Lost { uuid }
            | GpuEvent::Unwatched { uuid, .. }) = event;
            *uuid = self.of(std::mem::take(uuid));
        }
        Ok(events)
    }

    fn mig_layout(&self, gpu: &str) -> Result<MigLayout, MigError> {
        let mut layout = self.inner.mig_layout(gpu)?;
        self.name(gpu, &mut layout);
        Ok(layout)
    }

    fn set_mig(&self, gpu: &str, on: bool) -> Result<Activation, MigError> {
        self.inner.set_mig(gpu, on)
    }

    fn create_instance(
        &self,
        gpu: &str,
        profile: &str,
        start: u8,
    ) -> Result<GpuInstance, MigError> {
        let made = self.inner.create_instance(gpu, profile, start)?;
        let mut layout = MigLayout {
            geometry: None,
            instances: vec![made],
        };
        self.name(gpu, &mut layout);
        Ok(layout.instances.remove(0))
    }

    fn destroy_instance(&self, gpu: &str, id: u32) -> Result<(), MigError> {
        let layout = self.inner.mig_layout(gpu)?;
        self.inner.destroy_instance(gpu, id)?;
        let mut table = self.table.lock();
        let gone = layout.instances.iter().find(|one| one.id == id);
        if gone.is_some_and(|gone| table.forget(gpu, gone)) {
            self.store(&table.names);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::reported_instance;

    /// The instance at one placement, as the driver names it; without a UUID, an incomplete one.
    fn instance(uuid: Option<&str>) -> GpuInstance {
        let name = uuid.unwrap_or_default();
        let mut instance = reported_instance(2, name, name);
        instance.devices.truncate(uuid.into_iter().count());
        instance
    }

    fn name(table: &mut NameTable, uuid: &str) -> String {
        let mut instance = instance(Some(uuid));
        table.name("GPU-a", &mut instance);
        instance.devices.remove(0).uuid
    }

    #[test]
    fn keeps_name_when_incomplete_instance_is_destroyed() {
        let mut table = NameTable::default();
        assert_eq!(name(&mut table, "MIG-old"), "MIG-old");
        assert!(!table.forget("GPU-a", &instance(None)));
        assert_eq!(name(&mut table, "MIG-new"), "MIG-old");
        assert!(table.forget("GPU-a", &instance(Some("MIG-new"))));
        assert_eq!(name(&mut table, "MIG-newer"), "MIG-newer");
    }

    #[test]
    fn maps_recreated_instance_to_current_uuid() {
        let mut table = NameTable::default();
        name(&mut table, "MIG-b");
        name(&mut table, "MIG-a");
        let expected = ("MIG-a".to_owned(), "MIG-b".to_owned());
        assert_eq!(table.current, [expected].into());
    }
}

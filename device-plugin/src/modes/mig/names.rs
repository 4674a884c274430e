//! Names of instances that outlive a reboot: the driver gives an instance that is made again at
//! its old place a new uuid, but pods, the kubelet's books and the scheduler's go on with the
//! name that it had first.
//!
//! Fed by: the driver, which this stands before. Must not: give a name to another place, or
//! forget one before its instance is ended by us.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::mig::published::Placed;
use aliquot_nvml::{
    Activation, CardHealth, Cut, Driver, Event, Instance, Inventory, MigError, NvmlError,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::files;

const FILE: &str = "names.json";

/// The name of the instance at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Name {
    #[serde(flatten)]
    place: Placed,
    uuid: String,
}

/// By card.
type Names = BTreeMap<String, Vec<Name>>;

/// The driver, with instances under their names.
pub struct Named {
    inner: Arc<dyn Driver>,
    folder: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    names: Names,
    /// The driver's uuid to the name.
    current: BTreeMap<String, String>,
}

impl Named {
    /// Stands before a driver, with the names that are stored in `folder`. A file that cannot be
    /// read is logged and begun anew.
    pub fn new(inner: Arc<dyn Driver>, folder: PathBuf) -> Self {
        let names = read(&folder);
        let known = Mutex::new(Known {
            names,
            ..Known::default()
        });
        Self {
            inner,
            folder,
            known,
        }
    }

    /// Gives each whole instance its name, and stores new ones.
    fn name(&self, card: &str, cut: &mut Cut) {
        let mut known = self.known.lock();
        let mut new = false;
        for instance in &mut cut.instances {
            if instance.device().is_some() {
                new |= known.name(card, instance);
            }
        }
        if new {
            self.store(&known.names);
        }
    }

    fn store(&self, names: &Names) {
        let store = || {
            files::directory(&self.folder, 0o700).map_err(|error| error.to_string())?;
            let text = serde_json::to_vec_pretty(names).map_err(|error| error.to_string())?;
            let stored = files::replace(&self.folder.join(FILE), &text);
            stored.map_err(|error| error.to_string())
        };
        if let Err(error) = store() {
            tracing::warn!(
                error,
                "names of MIG instances are not stored: a reboot would change them"
            );
        }
    }

    /// What the driver calls a unit now.
    fn current(&self, unit: &str) -> String {
        let known = self.known.lock();
        let mut current = known.current.iter().filter(|(_, name)| *name == unit);
        let found = current.next().map(|(current, _)| current.clone());
        found.unwrap_or_else(|| unit.to_owned())
    }

    fn of(&self, uuid: String) -> String {
        self.known
            .lock()
            .current
            .get(&uuid)
            .cloned()
            .unwrap_or(uuid)
    }
}

impl Known {
    /// True where the name is new.
    fn name(&mut self, card: &str, instance: &mut Instance) -> bool {
        let place = super::plan::place_of(instance);
        let Some(device) = instance.devices.first_mut() else {
            return false;
        };
        let names = self.names.entry(card.to_owned()).or_default();
        let found = names.iter().find(|name| name.place == place);
        let uuid = found.map_or_else(|| device.current.clone(), |found| found.uuid.clone());
        let new = found.is_none();
        if new {
            let uuid = uuid.clone();
            names.push(Name { place, uuid });
        }
        // One that was ended behind our back and made again has another uuid now.
        self.current.retain(|_, name| *name != uuid);
        self.current.insert(device.current.clone(), uuid.clone());
        device.uuid = uuid;
        new
    }

    /// The instance has ended; true where it had a name. One that was never whole has none: its
    /// place may have that of before a reboot.
    fn forget(&mut self, card: &str, gone: &Instance) -> bool {
        let names = self.names.get_mut(card);
        let (Some(names), Some(_)) = (names, gone.device()) else {
            return false;
        };
        let place = super::plan::place_of(gone);
        names.retain(|name| name.place != place);
        true
    }
}

/// The places that a card's instances had when they were last seen.
pub fn places(folder: &Path, card: &str) -> Vec<Placed> {
    let names = read(folder).remove(card).unwrap_or_default();
    names.into_iter().map(|name| name.place).collect()
}

/// The names of a card's instances, of those too that are gone since a reboot.
pub fn units(folder: &Path, card: &str) -> BTreeSet<String> {
    let names = read(folder).remove(card).unwrap_or_default();
    names.into_iter().map(|name| name.uuid).collect()
}

fn read(folder: &Path) -> Names {
    let path = folder.join(FILE);
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Names::new();
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "names of MIG instances cannot be read");
        Names::new()
    })
}

impl Driver for Named {
    fn inventory(&self) -> Result<Inventory, NvmlError> {
        let mut inventory = self.inner.inventory()?;
        for card in &mut inventory.cards {
            self.name(&card.uuid, &mut card.cut);
        }
        Ok(inventory)
    }

    fn health(&self) -> Result<Vec<CardHealth>, NvmlError> {
        let health = self.inner.health()?.into_iter();
        let named = health.map(|one| CardHealth {
            uuid: self.of(one.uuid),
            ..one
        });
        Ok(named.collect())
    }

    fn mps_clients(&self, uuid: &str) -> Result<Vec<(u32, u64)>, NvmlError> {
        self.inner.mps_clients(&self.current(uuid))
    }

    fn clear(&self, uuid: &str) {
        self.inner.clear(&self.current(uuid));
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<Event>, NvmlError> {
        let mut events = self.inner.wait_events(timeout)?;
        for event in &mut events {
            let (Event::Xid { uuid, .. } | Event::Lost { uuid }) = event;
            *uuid = self.of(std::mem::take(uuid));
        }
        Ok(events)
    }

    fn cut(&self, card: &str) -> Result<Cut, MigError> {
        let mut cut = self.inner.cut(card)?;
        self.name(card, &mut cut);
        Ok(cut)
    }

    fn set_mig(&self, card: &str, on: bool) -> Result<Activation, MigError> {
        self.inner.set_mig(card, on)
    }

    fn create_instance(&self, card: &str, profile: &str, start: u8) -> Result<Instance, MigError> {
        let made = self.inner.create_instance(card, profile, start)?;
        let mut cut = Cut {
            geometry: None,
            instances: vec![made],
        };
        self.name(card, &mut cut);
        Ok(cut.instances.remove(0))
    }

    fn destroy_instance(&self, card: &str, id: u32) -> Result<(), MigError> {
        let cut = self.inner.cut(card)?;
        self.inner.destroy_instance(card, id)?;
        let mut known = self.known.lock();
        let gone = cut.instances.iter().find(|one| one.id == id);
        if gone.is_some_and(|gone| known.forget(card, gone)) {
            self.store(&known.names);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aliquot_core::Mib;
    use aliquot_nvml::Device;

    use super::*;

    /// The instance at one place, as the driver calls it; without a uuid, half made.
    fn instance(uuid: Option<&str>) -> Instance {
        let device = |uuid: &str| Device {
            current: uuid.to_owned(),
            uuid: uuid.to_owned(),
            id: 0,
            whole: true,
        };
        Instance {
            profile: "1g.5gb".to_owned(),
            start: 2,
            size: 1,
            memory: Mib(4864),
            id: 7,
            devices: uuid.map(device).into_iter().collect(),
        }
    }

    fn name(known: &mut Known, uuid: &str) -> String {
        let mut instance = instance(Some(uuid));
        known.name("GPU-a", &mut instance);
        instance.devices.remove(0).uuid
    }

    #[test]
    fn a_half_made_instance_took_the_name_of_its_place_with_it() {
        let mut known = Known::default();
        assert_eq!(name(&mut known, "MIG-old"), "MIG-old");
        assert!(!known.forget("GPU-a", &instance(None)));
        assert_eq!(name(&mut known, "MIG-new"), "MIG-old");
        assert!(known.forget("GPU-a", &instance(Some("MIG-new"))));
        assert_eq!(name(&mut known, "MIG-newer"), "MIG-newer");
    }

    #[test]
    fn an_instance_made_again_behind_our_back_was_asked_for_by_its_dead_uuid() {
        let mut known = Known::default();
        name(&mut known, "MIG-b");
        name(&mut known, "MIG-a");
        let expected = ("MIG-a".to_owned(), "MIG-b".to_owned());
        assert_eq!(known.current, [expected].into());
    }
}

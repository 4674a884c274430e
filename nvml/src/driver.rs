//! The NVML implementation of [`Driver`]: opens the library, remembers cards, tells their health.
//! Fed by NVML; what a card's state means for pods is decided elsewhere.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use aliquot_core::Mib;
use parking_lot::Mutex;

use crate::Driver;
use crate::compute_mode;
use crate::error::NvmlError;
use crate::events::{self, EventSet};
use crate::facts::{CardFacts, CardHealth, Event, Inventory, Note};
use crate::inventory::{card, join, memory, note};
use crate::mig::{self, Activation, Cut, Instance, MigError};
use crate::trouble::Trouble;
use crate::xid::IgnoredXids;

mod health;

/// The driver's library as the loader finds it.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// How to open the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the library, or its name for the loader to find.
    pub library: OsString,
    /// XIDs that leave a card healthy.
    pub ignored_xids: IgnoredXids,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            library: DEFAULT_LIBRARY.into(),
            ignored_xids: IgnoredXids::default(),
        }
    }
}

/// The driver through NVML. Shut down when dropped.
pub struct Nvml {
    // Before `library`, so that the set is gone before the library.
    ears: Mutex<Ears>,
    cards: Mutex<BTreeMap<String, Card>>,
    ignored: IgnoredXids,
    library: nvml_wrapper::Nvml,
}

/// What listens to the cards.
#[derive(Default)]
struct Ears {
    set: Option<EventSet>,
    /// Heard by a set that is gone, and not told yet.
    kept: Vec<events::Heard>,
}

/// What is remembered of a card since it was first seen.
struct Card {
    facts: CardFacts,
    xid: Option<Trouble>,
    /// Of single instances, by uuid.
    of_instances: BTreeMap<String, Trouble>,
}

impl Nvml {
    /// Loads and initialises the library.
    pub fn open(options: Options) -> Result<Self, NvmlError> {
        let opened = nvml_wrapper::Nvml::builder()
            .lib_path(&options.library)
            .init();
        let library = opened.map_err(|source| NvmlError::Open {
            library: Path::new(&options.library).display().to_string(),
            source,
        })?;
        Ok(Self {
            ears: Mutex::default(),
            cards: Mutex::new(BTreeMap::new()),
            ignored: options.ignored_xids,
            library,
        })
    }

    pub(crate) fn library(&self) -> &nvml_wrapper::Nvml {
        &self.library
    }

    fn reads_of_all(&self) -> Result<(Vec<CardFacts>, Vec<Note>), NvmlError> {
        let count = self.library.device_count().map_err(NvmlError::Count)?;
        let (mut cards, mut devices, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..count {
            let device = match self.library.device_by_index(index) {
                Ok(device) => device,
                Err(e) => {
                    let place = format!("index {index}");
                    notes.push(note(&place, "nvmlDeviceGetHandleByIndex_v2", &e));
                    continue;
                }
            };
            match card(&self.library, &device, index, &mut notes) {
                Ok(facts) => {
                    cards.push(facts);
                    devices.push(device);
                }
                Err(left_out) => notes.push(left_out),
            }
        }
        join(&self.library, &mut cards, &devices, &mut notes);
        Ok((cards, notes))
    }

    /// The cards that answer now, for whom events can be had.
    fn watchable(&self) -> Vec<String> {
        let cards = self.cards.lock();
        cards
            .keys()
            .filter(|uuid| self.answers(uuid).is_ok())
            .cloned()
            .collect()
    }

    /// Watches these cards from now on. What the set before had still to tell comes back: it is
    /// asked after the new one listens, so that nothing is missed (at worst told twice).
    fn watch(&self, slot: &mut Option<EventSet>, cards: &[String]) -> Result<Heard, NvmlError> {
        let fresh = EventSet::new(&self.library, cards)?;
        let Some(old) = slot.replace(fresh) else {
            return Ok(Heard::default());
        };
        let heard = Heard {
            xids: old.rest(&self.library),
            lost: old
                .uuids()
                .filter(|uuid| !cards.contains(uuid))
                .cloned()
                .collect(),
        };
        old.free(&self.library);
        Ok(heard)
    }

    /// A card by its uuid, with its memory.
    fn card(&self, uuid: &str) -> Result<(nvml_wrapper::Device<'_>, Mib), MigError> {
        let failed = |source| {
            let card = uuid.to_owned();
            MigError::Card { card, source }
        };
        let device = self.library.device_by_uuid(uuid).map_err(failed)?;
        let (memory, _) = memory(&self.library, &device).map_err(failed)?;
        Ok((device, memory))
    }

    fn ensure_inventory(&self) -> Result<(), NvmlError> {
        if self.cards.lock().is_empty() {
            self.inventory()?;
        }
        Ok(())
    }
}

impl Driver for Nvml {
    fn inventory(&self) -> Result<Inventory, NvmlError> {
        let driver_version = self
            .library
            .sys_driver_version()
            .map_err(NvmlError::DriverVersion)?;
        let (cards, mut notes) = self.reads_of_all()?;
        let cuda = self.library.sys_cuda_driver_version();
        if let Err(e) = &cuda {
            notes.push(Note {
                card: None,
                call: "nvmlSystemGetCudaDriverVersion_v2",
                problem: e.to_string(),
            });
        }
        let mut known = self.cards.lock();
        for facts in cards {
            let uuid = facts.uuid.clone();
            let before = known.remove(&uuid);
            let (xid, of_instances) =
                before.map_or_else(Default::default, |card| (card.xid, card.of_instances));
            let card = Card {
                facts,
                xid,
                of_instances,
            };
            known.insert(uuid, card);
        }
        let mut cards: Vec<CardFacts> = known.values().map(|card| card.facts.clone()).collect();
        cards.sort_by_key(|card| card.index);
        Ok(Inventory {
            driver_version,
            cuda_version: cuda.ok().and_then(|version| {
                let version = u32::try_from(version).ok()?;
                Some((version / 1000, version % 1000 / 10))
            }),
            cards,
            notes,
        })
    }

    fn health(&self) -> Result<Vec<CardHealth>, NvmlError> {
        self.ensure_inventory()?;
        let mut cards = self.cards.lock();
        let all = cards.iter_mut();
        Ok(all
            .flat_map(|(uuid, known)| self.examine(uuid, known))
            .collect())
    }

    fn mps_clients(&self, uuid: &str) -> Result<Vec<(u32, u64)>, NvmlError> {
        compute_mode::mps_clients(&self.library, uuid)
    }

    fn clear(&self, uuid: &str) {
        for (card, known) in self.cards.lock().iter_mut() {
            if card == uuid {
                known.xid = None;
                known.of_instances.clear();
            }
            known.of_instances.remove(uuid);
        }
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<Event>, NvmlError> {
        self.ensure_inventory()?;
        let mut ears = self.ears.lock();
        let Ears { set: slot, kept } = &mut *ears;
        let watchable = self.watchable();
        let mut heard = Heard::default();
        if slot.as_ref().is_none_or(|set| !set.watches(&watchable)) {
            heard = self.watch(slot, &watchable)?;
        }
        heard.xids.append(kept);
        if heard.is_nothing() && watchable.is_empty() {
            // Nothing can be heard, and a card that comes back is looked for at the next call.
            let deadline = Instant::now() + timeout;
            while let Some(left) = deadline.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
        } else if heard.is_nothing() {
            let set = slot.as_ref().expect("made above");
            match set.wait(&self.library, timeout) {
                Ok(first) => {
                    heard.xids = first;
                    heard.xids.extend(set.rest(&self.library));
                }
                Err(e) => {
                    heard = self.watch(slot, &self.watchable())?;
                    if heard.is_nothing() {
                        return Err(NvmlError::Wait(e));
                    }
                }
            }
        }
        let xids = heard.xids.into_iter().map(|xid| self.note_xid(xid));
        let lost = heard.lost.into_iter().map(|uuid| Event::Lost { uuid });
        Ok(xids.chain(lost).collect())
    }

    fn cut(&self, card: &str) -> Result<Cut, MigError> {
        let (device, memory) = self.card(card)?;
        mig::cut(&self.library, &device, card, memory)
    }

    fn set_mig(&self, card: &str, on: bool) -> Result<Activation, MigError> {
        // Some cards are reset for it, which nobody may be in the way of who has them open: the
        // next wait listens again.
        let mut ears = self.ears.lock();
        if let Some(set) = ears.set.take() {
            let rest = set.rest(&self.library);
            ears.kept.extend(rest);
            set.free(&self.library);
        }
        let (device, _) = self.card(card)?;
        mig::switch(&self.library, &device, card, on)
    }

    fn create_instance(&self, card: &str, profile: &str, start: u8) -> Result<Instance, MigError> {
        let (device, memory) = self.card(card)?;
        mig::create(&self.library, &device, (card, memory), profile, start)
    }

    fn destroy_instance(&self, card: &str, id: u32) -> Result<(), MigError> {
        let (device, _) = self.card(card)?;
        mig::destroy(&self.library, &device, card, id)
    }
}

/// What a wait brings.
#[derive(Default)]
struct Heard {
    xids: Vec<events::Heard>,
    lost: Vec<String>,
}

impl Heard {
    fn is_nothing(&self) -> bool {
        self.xids.is_empty() && self.lost.is_empty()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(set) = self.ears.get_mut().set.take() {
            set.free(&self.library);
        }
    }
}

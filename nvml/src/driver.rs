//! The NVML implementation of [`Driver`]: opens the library, remembers cards, tells their health.
//! Fed by NVML; what a card's state means for pods is decided elsewhere.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError as Cause;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
use parking_lot::Mutex;

use crate::Driver;
use crate::error::NvmlError;
use crate::events::EventSet;
use crate::facts::{CardFacts, CardHealth, Event, Health, Inventory, Note};
use crate::inventory::{card, join, note};
use crate::xid::IgnoredXids;

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
    events: Mutex<Option<EventSet>>,
    cards: Mutex<BTreeMap<String, Card>>,
    ignored: IgnoredXids,
    library: nvml_wrapper::Nvml,
}

/// What is remembered of a card since it was first seen.
struct Card {
    facts: CardFacts,
    xid: Option<Trouble>,
}

#[derive(Clone, Copy)]
struct Trouble {
    code: u64,
    /// The driver asked for a reset or reboot since.
    asked: bool,
    /// The card was away from the bus since: it was reset, or taken out and put back.
    away: bool,
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
            events: Mutex::new(None),
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

    /// Whether the card answers.
    fn answers(&self, uuid: &str) -> Result<(), Cause> {
        self.library.device_by_uuid(uuid)?.uuid().map(drop)
    }

    /// What the driver asks for after an error; `None` where it does not say. 0 is nothing.
    fn recovery_action(&self, uuid: &str) -> Option<u64> {
        let device = self.library.device_by_uuid(uuid).ok()?;
        let ids = [FieldId(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)];
        let sample = device.field_values_for(&ids).ok()?.pop()?.ok()?;
        match sample.value.ok()? {
            SampleValue::U32(action) => Some(action.into()),
            SampleValue::U64(action) => Some(action),
            _ => None,
        }
    }

    /// Brings what is remembered of a card up to date and tells its health.
    fn examine(&self, uuid: &str, known: &mut Card) -> Health {
        if let Err(e) = self.answers(uuid) {
            if let Some(trouble) = &mut known.xid {
                trouble.away = true;
            }
            return Health::Lost(e.to_string());
        }
        match (self.recovery_action(uuid), known.xid) {
            (Some(0) | None, None) => Health::Ok,
            (Some(0), Some(Trouble { asked: true, .. }))
            | (Some(0) | None, Some(Trouble { away: true, .. })) => {
                known.xid = None;
                Health::Ok
            }
            (Some(0) | None, Some(Trouble { code, .. })) => Health::Xid(code),
            (Some(action), None) => Health::RecoveryAsked(action),
            (Some(_), Some(trouble)) => {
                known.xid = Some(Trouble {
                    asked: true,
                    ..trouble
                });
                Health::Xid(trouble.code)
            }
        }
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

    /// Remembers an XID and turns it into an event.
    fn note_xid(&self, uuid: String, code: u64) -> Event {
        let ignored = self.ignored.contains(code);
        if let Some(known) = self.cards.lock().get_mut(&uuid).filter(|_| !ignored) {
            let asked = self
                .recovery_action(&uuid)
                .is_some_and(|action| action != 0);
            known.xid = Some(Trouble {
                code,
                asked,
                away: false,
            });
        }
        Event::Xid {
            uuid,
            code,
            ignored,
        }
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
            let xid = known.get(&facts.uuid).and_then(|card| card.xid);
            known.insert(facts.uuid.clone(), Card { facts, xid });
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
        let tell = |(uuid, known): (&String, &mut Card)| CardHealth {
            uuid: uuid.clone(),
            health: self.examine(uuid, known),
        };
        Ok(cards.iter_mut().map(tell).collect())
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<Event>, NvmlError> {
        self.ensure_inventory()?;
        let mut slot = self.events.lock();
        let watchable = self.watchable();
        let mut heard = Heard::default();
        if slot.as_ref().is_none_or(|set| !set.watches(&watchable)) {
            heard = self.watch(&mut slot, &watchable)?;
        }
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
                    heard = self.watch(&mut slot, &self.watchable())?;
                    if heard.is_nothing() {
                        return Err(NvmlError::Wait(e));
                    }
                }
            }
        }
        let xids = heard
            .xids
            .into_iter()
            .map(|(uuid, code)| self.note_xid(uuid, code));
        let lost = heard.lost.into_iter().map(|uuid| Event::Lost { uuid });
        Ok(xids.chain(lost).collect())
    }
}

/// What a wait brings.
#[derive(Default)]
struct Heard {
    xids: Vec<(String, u64)>,
    lost: Vec<String>,
}

impl Heard {
    fn is_nothing(&self) -> bool {
        self.xids.is_empty() && self.lost.is_empty()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(set) = self.events.get_mut().take() {
            set.free(&self.library);
        }
    }
}

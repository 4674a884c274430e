//! The cards of this node, what is in them and what they do, asked of the driver no more often
//! than that changes.
//!
//! Fed by: the driver. Must not: forget what it knew because one question was not answered.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aliquot_nvml::{
    Bytes, CardFacts, Driver, Inventory, Load, MemoryLimits, Note, NvmlError, Usage,
};

/// Cards are asked what they are after this, and when a process is on an instance that is not
/// known: they change with MIG and at a reset.
const CARDS: Duration = Duration::from_mins(1);
/// While one is left out or missed they are asked at once, after this, and then after twice as long
/// each time.
const SOON: Duration = Duration::from_secs(1);
/// And what they do after this, at every second look.
const LOADS: Duration = Duration::from_millis(900);

/// The driver as the monitor asks it.
pub trait Cards: Driver + Usage + MemoryLimits {}

impl<T: Driver + Usage + MemoryLimits> Cards for T {}

/// What was read of one card.
#[derive(Clone, Debug, Default)]
pub struct CardNow {
    /// Its uuid.
    pub uuid: String,
    /// NVML's index.
    pub index: u32,
    /// Marketing name.
    pub model: String,
    /// PCI address.
    pub bus: String,
    /// What it does.
    pub load: Load,
    /// Its memory; `None` while it does not answer.
    pub bytes: Option<Bytes>,
    /// Its instances.
    pub instances: Vec<InstanceNow>,
}

/// What was read of an instance.
#[derive(Clone, Debug, Default)]
pub struct InstanceNow {
    /// Its uuid.
    pub uuid: String,
    /// Such as `3g.20gb`.
    pub profile: String,
    /// The driver's numbers.
    pub numbers: (u32, u32),
    /// Its memory.
    pub bytes: Option<Bytes>,
}

/// What is known of the cards, from look to look.
#[derive(Default)]
pub struct Known {
    inventory: Option<(Instant, Inventory)>,
    /// It has changed since.
    stale: bool,
    /// Somebody has one that is not in it.
    missed: bool,
    /// Wait for one that is not in it.
    pause: Duration,
    now: Option<(Instant, Vec<CardNow>)>,
}

impl Known {
    /// The cards now, and why they could not be asked what they are: those are the last known ones.
    /// Blocks.
    pub fn now(&mut self, driver: &dyn Cards) -> (Vec<CardNow>, Option<NvmlError>) {
        let is_old = |then: Instant, age: Duration| then.elapsed() > age;
        let after = if self.is_short() { self.pause } else { CARDS };
        let known = self.inventory.as_ref();
        let is_due = self.stale || known.is_none_or(|(read, _)| is_old(*read, after));
        let mut failed = None;
        if is_due {
            match driver.inventory() {
                Ok(found) => {
                    self.inventory = Some((Instant::now(), found));
                    self.stale = false;
                    self.pause = (self.pause * 2).clamp(SOON, CARDS);
                }
                Err(error) => failed = Some(error),
            }
            self.now = None;
        }
        if let Some((read, cards)) = &self.now
            && !is_old(*read, LOADS)
        {
            return (cards.clone(), failed);
        }
        let known = self.inventory.iter().flat_map(|(_, known)| &known.cards);
        let cards: Vec<_> = known.map(|facts| card_now(driver, facts)).collect();
        self.now = Some((Instant::now(), cards.clone()));
        (cards, failed)
    }

    /// They are asked anew at the next look.
    pub fn renew(&mut self) {
        self.stale = true;
    }

    /// Whether somebody has a card or an instance that is not among them.
    pub fn misses(&mut self, is_missed: bool) {
        self.missed = is_missed;
        if !self.is_short() {
            self.pause = Duration::ZERO;
        }
    }

    fn is_short(&self) -> bool {
        let known = self.inventory.iter();
        let mut notes = known.flat_map(|(_, known)| &known.notes);
        self.missed || notes.any(is_left_out)
    }
}

/// A card did not say what it must, so it is not in the list.
fn is_left_out(note: &Note) -> bool {
    matches!(
        note.call,
        "nvmlDeviceGetHandleByIndex_v2"
            | "nvmlDeviceGetUUID"
            | "nvmlDeviceGetName"
            | "nvmlDeviceGetMemoryInfo"
    )
}

fn card_now(driver: &dyn Cards, facts: &CardFacts) -> CardNow {
    let instances = facts.cut.instances.iter().flat_map(|outer| {
        outer.devices.iter().map(|inner| InstanceNow {
            uuid: inner.uuid.clone(),
            profile: outer.profile.clone(),
            numbers: (outer.id, inner.id),
            bytes: driver.bytes(&inner.uuid).ok(),
        })
    });
    CardNow {
        uuid: facts.uuid.clone(),
        index: facts.index,
        model: facts.model.clone(),
        bus: facts.pci_bus_id.clone().unwrap_or_default(),
        load: driver.load(&facts.uuid).unwrap_or_default(),
        bytes: driver.bytes(&facts.uuid).ok(),
        instances: instances.collect(),
    }
}

/// Cards and instances by uuid: each of a card for which `which` holds.
pub fn devices<'a>(cards: &'a [CardNow], which: impl Fn(&CardNow) -> bool) -> BTreeSet<&'a str> {
    let cards = cards.iter().filter(|card| which(card));
    let with_instances = |card: &'a CardNow| {
        let instances = card.instances.iter().map(|one| one.uuid.as_str());
        instances.chain([card.uuid.as_str()])
    };
    cards.flat_map(with_instances).collect()
}

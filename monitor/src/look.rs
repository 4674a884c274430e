//! One look at all that is measured: the edge to disk, driver and `/proc`.
//!
//! Fed by: the driver, seats, limits pages, counters files, processes. Must not: decide, or give up
//! the whole look because one part cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::PodUid;
use aliquot_nvml::{Bytes, CardFacts, Driver, Inventory, Load, MemoryLimits, Usage};
use aliquot_region::host::{self, Unreadable};
use aliquot_region::limits::Measured;
use serde::Deserialize;

use crate::attribute::{Beside, Instance, OnCard, is_new};
use crate::busy::Samples;
use crate::containers::Containers;
use crate::judge::Look;
use crate::pods::Pods;
use crate::processes::Processes;
use crate::seats::{Reader, Seat};

/// Cards are asked what they are after this, and when a process is on an instance that is not
/// known: they change with MIG and at a reset.
const CARDS: Duration = Duration::from_mins(1);
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

/// Reads, and keeps what need not be read each time.
pub struct Looker {
    driver: Arc<dyn Cards>,
    reader: Reader,
    processes: Processes,
    pods: Pods,
    containers: Containers,
    /// Name of each container that was told, by pod and the runtime's id.
    names: BTreeMap<(PodUid, String), String>,
    mps: PathBuf,
    inventory: Option<(Instant, Inventory)>,
    cards: Option<(Instant, Vec<CardNow>)>,
    samples: Samples,
    pages: BTreeMap<String, Measured>,
    /// Reads that failed, by what was read.
    pub failures: BTreeMap<&'static str, u64>,
}

/// A part of what the keeper of MPS daemons says.
#[derive(Deserialize)]
struct MpsStatus {
    daemon: Option<u32>,
    #[serde(default)]
    servers: Vec<MpsServer>,
}

#[derive(Deserialize)]
struct MpsServer {
    pid: u32,
}

impl Looker {
    /// Of this driver and the agent's state directory.
    pub fn new(driver: Arc<dyn Cards>, state: &Path, processes: Processes, pods: Pods) -> Self {
        Self {
            driver,
            reader: Reader::new(state.to_owned()),
            processes,
            pods,
            containers: Containers::default(),
            names: BTreeMap::new(),
            mps: state.join("mps"),
            inventory: None,
            cards: None,
            samples: Samples::default(),
            pages: BTreeMap::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Everything now. Blocks.
    pub fn look(&mut self) -> (Look, Vec<CardNow>) {
        let seats = self.reader.read();
        let cards = self.cards();
        let before: Vec<_> = seats.all.iter().map(counters).collect();
        let said = seats.all.iter().map(|seat| self.limits(seat));
        let (limits, charged) = said.unzip();
        let mut look = Look {
            limits,
            charged,
            beside: self.beside(&cards, &seats.accepted),
            ..Look::default()
        };
        for card in &cards {
            for one in &card.instances {
                look.cards.insert(one.uuid.clone(), card.uuid.clone());
            }
            self.processes_of(&card.uuid, &mut look);
        }
        let quiet = quiet(&cards, &look);
        let both = seats.all.iter().zip(before).map(|(seat, before)| {
            let before = match before? {
                Ok(before) => before,
                Err(error) => return Some(Err(error)),
            };
            let is_quiet = seat
                .devices
                .iter()
                .all(|one| quiet.contains(one.uuid.as_str()));
            // Nobody holds anything that it could be compared with.
            let after = if is_quiet {
                Ok(before.clone())
            } else {
                counters(seat)?
            };
            Some(after.map(|after| (before, after)))
        });
        look.counters = both.collect();
        if look.on_cards.iter().any(|one| is_new(one, &look.beside)) {
            self.inventory = None;
        }
        let (names, processes) = (&look.beside.containers, &self.processes);
        look.cgroups = self.containers.of(&seats.all, names, processes);
        look.beside.accepted.clone_from(&seats.accepted);
        look.beside.unlisted = seats.unlisted;
        let names: BTreeSet<&String> = seats.all.iter().map(|seat| &seat.name).collect();
        self.pages.retain(|name, _| names.contains(name));
        look.seats = seats;
        (look, cards)
    }

    /// The limits page of a seat, to write to.
    pub fn page(&mut self, seat: &Seat) -> Option<&Measured> {
        if !self.pages.contains_key(&seat.name) {
            let page = Measured::open(&seat.limits());
            match page {
                Ok(page) => drop(self.pages.insert(seat.name.clone(), page)),
                Err(error) => {
                    self.failed("limits", &seat.name, &error);
                    return None;
                }
            }
        }
        self.pages.get(&seat.name)
    }

    /// Limit and charge of each device, in bytes.
    fn limits(&mut self, seat: &Seat) -> (Vec<u64>, Vec<u64>) {
        let number = seat.devices.len();
        match self.page(seat).map(Measured::page) {
            Some(page) => (0..number.min(page.devices()))
                .map(|device| (page.memory(device), page.overhead(device)))
                .unzip(),
            None => (vec![0; number], vec![0; number]),
        }
    }

    fn cards(&mut self) -> Vec<CardNow> {
        let is_old = |then: Instant, age: Duration| then.elapsed() > age;
        let known = self.inventory.as_ref();
        if known.is_none_or(|(read, _)| is_old(*read, CARDS)) {
            match self.driver.inventory() {
                Ok(found) => self.inventory = Some((Instant::now(), found)),
                Err(error) => self.failed("inventory", "", &error),
            }
            self.cards = None;
        }
        if let Some((read, cards)) = &self.cards
            && !is_old(*read, LOADS)
        {
            return cards.clone();
        }
        let known = self.inventory.iter().flat_map(|(_, known)| &known.cards);
        let cards: Vec<_> = known.map(|facts| card_now(&*self.driver, facts)).collect();
        self.cards = Some((Instant::now(), cards.clone()));
        cards
    }

    fn processes_of(&mut self, card: &str, look: &mut Look) {
        let found = match self.driver.processes(card) {
            Ok(found) => found,
            Err(error) => {
                self.failed("processes", card, &error);
                look.blind.insert(card.to_owned());
                return;
            }
        };
        look.on_cards.extend(found.into_iter().filter_map(|one| {
            Some(OnCard {
                card: card.to_owned(),
                instance: one.instance,
                bytes: one.bytes.unwrap_or(0),
                process: self.processes.known(one.pid)?,
            })
        }));
        // Cards that are cut do not tell it.
        let Ok(shares) = self.driver.shares(card, self.samples.since(card)) else {
            return;
        };
        let now = Instant::now();
        if self.samples.take(card, &shares, now) {
            look.told.insert(card.to_owned());
        }
        let busy = self.samples.busy(card, now);
        look.busy
            .extend(busy.map(|(pid, busy)| ((card.to_owned(), pid), busy)));
    }

    fn beside(&mut self, cards: &[CardNow], accepted: &BTreeSet<PodUid>) -> Beside {
        let mut beside = Beside::default();
        // Who was told of a container knows it for as long as its share is there, whether its
        // pod's object is gone or the API server away.
        self.names.retain(|(pod, _), _| accepted.contains(pod));
        for (uid, pod) in self.pods.all() {
            let ids = pod.containers.iter();
            let ids = ids.map(|(id, name)| ((uid.clone(), id.clone()), name.clone()));
            self.names.extend(ids);
            beside.pods.insert(uid, pod.foreign);
        }
        beside.containers.clone_from(&self.names);
        for card in cards {
            for one in &card.instances {
                let instance = Instance {
                    profile: one.profile.clone(),
                    uuid: one.uuid.clone(),
                };
                let key = (card.uuid.clone(), one.numbers);
                beside.instances.insert(key, instance);
            }
        }
        let units = std::fs::read_dir(&self.mps).into_iter().flatten().flatten();
        for unit in units {
            let text = std::fs::read(unit.path().join("status.json"));
            let status = text
                .ok()
                .and_then(|text| serde_json::from_slice::<MpsStatus>(&text).ok());
            let Some(status) = status else { continue };
            beside.servers.extend(status.daemon);
            beside
                .servers
                .extend(status.servers.iter().map(|one| one.pid));
        }
        beside
    }

    fn failed(&mut self, what: &'static str, of: &str, error: &dyn std::error::Error) {
        *self.failures.entry(what).or_default() += 1;
        tracing::warn!(what, of, %error, "not read");
    }
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

/// Cards, and instances of them, with no process on the card.
fn quiet<'a>(cards: &'a [CardNow], look: &Look) -> BTreeSet<&'a str> {
    let busy: BTreeSet<&str> = look.on_cards.iter().map(|one| one.card.as_str()).collect();
    let quiet = cards
        .iter()
        .filter(|card| !busy.contains(card.uuid.as_str()) && !look.blind.contains(&card.uuid));
    let with_instances = |card: &'a CardNow| {
        let instances = card.instances.iter().map(|one| one.uuid.as_str());
        instances.chain([card.uuid.as_str()])
    };
    quiet.flat_map(with_instances).collect()
}

/// The counters file of a seat that the library holds.
fn counters(seat: &Seat) -> Option<Result<host::Report, Unreadable>> {
    let read = || host::read(&seat.counters(), seat.devices.len());
    seat.limited.then(read)
}

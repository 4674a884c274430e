//! One look at all that is measured: the edge to disk, driver and `/proc`.
//!
//! Fed by: the driver, seats, limits pages, counters files, processes. Must not: decide, or give up
//! the whole look because one part cannot be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use aliquot_core::PodUid;
use aliquot_region::host::{self, Unreadable};
use aliquot_region::limits::Measured;
use serde::Deserialize;

use crate::attribute::{Beside, Instance, OnCard, is_new};
use crate::busy::Samples;
use crate::cards::{self, CardNow, Cards, Known};
use crate::containers::Containers;
use crate::judge::Look;
use crate::leaving::Leaving;
use crate::names::Names;
use crate::once::Once;
use crate::pods::{Pod, Pods};
use crate::processes::Processes;
use crate::seats::{Reader, Seat, Seats};

/// Reads, and keeps what need not be read each time.
pub struct Looker {
    driver: Arc<dyn Cards>,
    reader: Reader,
    processes: Processes,
    pods: Pods,
    containers: Containers,
    names: Names,
    /// Pods that had a process on a card at the last look.
    busy: Option<BTreeSet<PodUid>>,
    /// Containers that had one.
    seen: BTreeSet<(PodUid, String)>,
    leaving: Leaving,
    mps: PathBuf,
    /// The pod that this process is in.
    own: Option<PodUid>,
    cards: Known,
    samples: Samples,
    pages: BTreeMap<String, Measured>,
    said: Once,
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
        let own = processes.known(std::process::id());
        Self {
            own: own.and_then(|known| known.place.pod),
            driver,
            reader: Reader::new(state.to_owned()),
            processes,
            pods,
            containers: Containers::default(),
            names: Names::of(state),
            busy: None,
            seen: BTreeSet::new(),
            leaving: Leaving::default(),
            mps: state.join("mps"),
            cards: Known::default(),
            samples: Samples::default(),
            pages: BTreeMap::new(),
            said: Once::default(),
            failures: BTreeMap::new(),
        }
    }

    /// Everything now. Blocks.
    pub fn look(&mut self) -> (Look, Vec<CardNow>) {
        self.said.turn();
        let pods = self.pods.all();
        let seats = self.reader.read();
        let seats = self.living(seats, &pods);
        let cards = self.cards();
        let before: Vec<_> = seats.all.iter().map(counters).collect();
        let mut look = Look {
            beside: self.beside(&cards, &seats, &pods),
            seats: Arc::clone(&seats),
            ..Look::default()
        };
        for seat in &seats.all {
            let (limits, charged, called) = self.limits(seat);
            look.limits.push(limits);
            look.charged.push(charged);
            look.beside.called.push(called);
        }
        for card in &cards {
            for one in &card.instances {
                look.cards.insert(one.uuid.clone(), card.uuid.clone());
            }
            self.processes_of(&card.uuid, &mut look);
        }
        self.leaving.after(&mut look.on_cards);
        let places = look.on_cards.iter().map(|one| &one.process.place);
        let seen = places.filter_map(|place| Some((place.pod.clone()?, place.container.clone()?)));
        self.seen = seen.collect();
        let devices: Vec<Vec<&str>> = (seats.all.iter().enumerate())
            .map(|(at, seat)| {
                (0..seat.devices.len())
                    .map(|i| look.called(at, i))
                    .collect()
            })
            .collect();
        let known = cards::devices(&cards, |_| true);
        let unknown = devices
            .iter()
            .flatten()
            .filter(|uuid| !known.contains(*uuid));
        let unknown: Vec<String> = unknown.map(|uuid| (*uuid).to_owned()).collect();
        let on_cards: BTreeSet<&str> = look.on_cards.iter().map(|one| &*one.card).collect();
        let quiet = cards::devices(&cards, |card| {
            !on_cards.contains(&*card.uuid) && !look.blind.contains(&card.uuid)
        });
        let both = (seats.all.iter().zip(before))
            .zip(&devices)
            .map(|((seat, before), devices)| {
                let before = match before? {
                    Ok(before) => before,
                    Err(error) => return Some(Err(error)),
                };
                // Nobody holds anything that it could be compared with.
                let is_quiet = devices.iter().all(|uuid| quiet.contains(uuid));
                let after = if is_quiet {
                    Ok(before.clone())
                } else {
                    counters(seat)?
                };
                Some(after.map(|after| (before, after)))
            });
        look.counters = both.collect();
        // What is on a card that is not in the list is not known.
        self.cards.misses(!unknown.is_empty());
        look.blind.extend(unknown);
        for (seat, said) in seats.all.iter().zip(&look.counters) {
            if let Some(Err(error)) = said
                && !error.is_by_tenant()
                && !is_gone(error)
            {
                self.failed("counters", &seat.name, error);
            }
        }
        let before = self.busy.take().filter(|_| !look.blind.is_empty());
        let on_cards = look.on_cards.iter();
        let busy = on_cards.filter_map(|one| one.process.place.pod.clone());
        self.busy = Some(busy.chain(before.into_iter().flatten()).collect());
        if look.on_cards.iter().any(|one| is_new(one, &look.beside)) {
            self.cards.renew();
        }
        let (names, processes) = (&look.beside.containers, &self.processes);
        (look.cgroups, look.early) = self.containers.of(&seats.all, names, processes);
        look.beside.accepted.clone_from(&seats.accepted);
        look.beside.unlisted = seats.unlisted;
        let names: BTreeSet<&String> = seats.all.iter().map(|seat| &seat.name).collect();
        self.pages.retain(|name, _| names.contains(name));
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

    /// Limit and charge of each device, in bytes, and what the driver calls it now.
    fn limits(&mut self, seat: &Seat) -> (Vec<u64>, Vec<u64>, Vec<String>) {
        let number = seat.devices.len();
        let Some(page) = self.page(seat).map(Measured::page) else {
            return (vec![0; number], vec![0; number], Vec::new());
        };
        let devices = 0..number.min(page.devices());
        let (limits, charges) = devices
            .clone()
            .map(|device| (page.memory(device), page.overhead(device)))
            .unzip();
        let called = devices.map(|device| {
            let (uuid, length) = page.uuid(device);
            String::from_utf8_lossy(&uuid[..length]).into_owned()
        });
        (limits, charges, called.collect())
    }

    fn cards(&mut self) -> Vec<CardNow> {
        let (cards, failed) = self.cards.now(&*self.driver);
        if let Some(error) = failed {
            self.failed("inventory", "", &error);
        }
        cards
    }

    /// The seats of pods that are not over, or have a process on a card: the others' books are the
    /// agent's to close, and nobody runs in them.
    fn living(&self, read: Arc<Seats>, pods: &BTreeMap<PodUid, Arc<Pod>>) -> Arc<Seats> {
        let rests = |seat: &Seat| {
            let is_over = pods.get(&seat.pod).is_some_and(|pod| pod.said.ended);
            let is_busy = |pods: &BTreeSet<PodUid>| pods.contains(&seat.pod);
            is_over && self.busy.as_ref().is_some_and(|pods| !is_busy(pods))
        };
        if !read.all.iter().any(rests) {
            return read;
        }
        let mut seats = Seats::clone(&read);
        seats.all.retain(|seat| !rests(seat));
        Arc::new(seats)
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
        self.samples.clock(SystemTime::now());
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

    fn beside(
        &mut self,
        cards: &[CardNow],
        seats: &Seats,
        pods: &BTreeMap<PodUid, Arc<Pod>>,
    ) -> Beside {
        let accepted = (!seats.unlisted).then_some(&seats.accepted);
        self.names.prune(pods, &self.seen);
        let mut beside = Beside {
            own: self.own.clone(),
            containers: self.names.take(accepted, pods).clone(),
            pods: pods
                .iter()
                .map(|(uid, pod)| (uid.clone(), pod.said))
                .collect(),
            ..Beside::default()
        };
        if let Err(error) = self.names.keep() {
            self.failed("names", "", &error);
        }
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
        let text = error.to_string();
        if self.said.is_new(&format!("{what} {of}"), &text) {
            tracing::warn!(what, of, error = text, "not read");
        }
    }
}

/// The counters file of a seat that the library holds.
fn counters(seat: &Seat) -> Option<Result<host::Report, Unreadable>> {
    let read = || host::read(&seat.counters(), seat.devices.len());
    seat.limited.then(read)
}

/// The file went with its container, or was not there yet.
fn is_gone(error: &Unreadable) -> bool {
    let gone = std::io::ErrorKind::NotFound;
    matches!(error, Unreadable::Step { source, .. } if source.kind() == gone)
}

#[cfg(test)]
#[path = "look_tests.rs"]
mod tests;

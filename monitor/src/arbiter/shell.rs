//! The arbiter's hands: every 20 ms it looks at the launch counters of all shares, lets
//! [`decide`] decide, and writes the words to the limits pages, where launches see them at once.
//!
//! Fed by: the list of shares, their files, the driver's measures of others. Must not: ask the
//! driver, let a file of one tenant keep it from another, or write where nothing is limited by
//! that page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use aliquot_region::host::{Launches, Watch};
use aliquot_region::limits::{self, LimitsError, UNCONTROLLED};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tracing::warn;

use super::{Gate, Measured, Memory, Policy, Sample, Verdict, decide};
use crate::seats::{Seat, Seats, Shown};

/// Between two decisions.
pub const TICK: Duration = Duration::from_millis(20);
/// A counters file is opened anew so often: somebody may have put another in its place.
const REOPEN: u64 = 1_000_000_000;

/// What the driver measured of each seat, card by card in the order of its limits page.
pub type Levels = BTreeMap<String, Vec<Option<Measured>>>;

/// All shares of a node.
#[derive(Debug, Default)]
pub struct Arbiter {
    held: Vec<Held>,
    /// Seats without a page to write to, which was said.
    without: BTreeSet<String>,
    memory: Memory,
}

#[derive(Debug)]
struct Held {
    seat: String,
    counters: PathBuf,
    page: limits::Measured,
    cards: Vec<String>,
    watch: Option<Watch>,
    opened: u64,
    said: Vec<Launches>,
    /// What the driver measured, card by card.
    measured: Vec<Option<Measured>>,
}

/// Two clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The one that never goes back, as the tenants read it.
    pub monotonic: u64,
    /// Since the epoch.
    pub epoch: u64,
}

impl Now {
    /// The time.
    pub fn read() -> Self {
        let read = |clock| {
            let time = clock_gettime(clock);
            let part = |part: i64| u64::try_from(part).unwrap_or(0);
            part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
        };
        Self {
            monotonic: read(ClockId::Monotonic),
            epoch: read(ClockId::Realtime),
        }
    }
}

/// Arbitrates until the other end of `stop` is dropped.
pub fn run(mut seats: Shown, mut levels: watch::Receiver<Arc<Levels>>, stop: &Receiver<()>) {
    let mut arbiter = Arbiter::default();
    arbiter.keep(&Arc::clone(&seats.borrow_and_update()));
    let mut next = Instant::now();
    loop {
        if seats.has_changed().unwrap_or(false) {
            arbiter.keep(&Arc::clone(&seats.borrow_and_update()));
        }
        if levels.has_changed().unwrap_or(false) {
            arbiter.measured(&Arc::clone(&levels.borrow_and_update()));
        }
        arbiter.tick(Now::read());
        // Ticks that were missed are not made up for.
        next = (next + TICK).max(Instant::now());
        let wait = next.saturating_duration_since(Instant::now());
        if stop.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            return arbiter.leave();
        }
    }
}

impl Arbiter {
    /// Takes up shares that are new, and lets go of those that are gone.
    pub fn keep(&mut self, seats: &Seats) {
        let asked = seats.all.iter();
        let asked = asked.filter(|seat| seat.limited || seat.effective.uncontrolled);
        let asked: BTreeMap<&str, &Seat> = asked.map(|seat| (seat.name.as_str(), seat)).collect();
        self.held
            .retain(|held| asked.contains_key(held.seat.as_str()));
        self.without
            .retain(|seat| asked.contains_key(seat.as_str()));
        let known: BTreeSet<String> = self.held.iter().map(|held| held.seat.clone()).collect();
        for seat in asked.values().filter(|seat| !known.contains(&seat.name)) {
            match Held::open(seat) {
                Ok(held) => self.held.push(held),
                Err(error) if self.without.insert(seat.name.clone()) => {
                    warn!(seat = seat.name, %error, "a share is not arbitrated");
                }
                Err(_) => {}
            }
        }
    }

    /// Takes what the driver measured of each seat.
    pub fn measured(&mut self, levels: &Levels) {
        for held in &mut self.held {
            held.measured = levels.get(&held.seat).cloned().unwrap_or_default();
        }
    }

    /// Looks, decides and writes; what was decided, seat by seat in the order of taking them up.
    pub fn tick(&mut self, now: Now) -> Vec<Verdict> {
        for held in &mut self.held {
            held.look(now.monotonic);
        }
        let samples: Vec<Sample> = self.held.iter().flat_map(Held::samples).collect();
        let verdicts = decide(&samples, &mut self.memory, now.monotonic);
        let mut rest = verdicts.as_slice();
        for held in &self.held {
            let (own, others) = rest.split_at(held.cards.len());
            held.write(own, now.epoch);
            rest = others;
        }
        verdicts
    }

    /// Opens every gate; until another is heard the shares are what was asked for.
    pub fn leave(&self) {
        for held in &self.held {
            held.write(&vec![Verdict::default(); held.cards.len()], 0);
        }
    }
}

impl Held {
    fn open(seat: &Seat) -> Result<Self, LimitsError> {
        let page = limits::Measured::open(&seat.limits())?;
        let cards = (0..page.page().devices()).map(|i| {
            let (uuid, length) = page.page().uuid(i);
            String::from_utf8_lossy(&uuid[..length]).into_owned()
        });
        Ok(Self {
            seat: seat.name.clone(),
            counters: seat.counters(),
            cards: cards.collect(),
            page,
            watch: None,
            opened: 0,
            said: Vec::new(),
            measured: Vec::new(),
        })
    }

    /// Reads what the tenant's processes said; nothing, where its file is not what it should be.
    fn look(&mut self, now: u64) {
        if now.saturating_sub(self.opened) >= REOPEN {
            self.opened = now;
            self.watch = Watch::open(&self.counters, self.cards.len()).ok();
        }
        self.said.clear();
        match self.watch.as_mut().map(Watch::look) {
            Some(Ok(said)) => self.said.extend_from_slice(said),
            Some(Err(_)) => self.watch = None,
            None => {}
        }
    }

    fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        let page = self.page.page();
        let policy = match page.policy() {
            _ if page.flags() & UNCONTROLLED != 0 => Policy::Disable,
            1 => Policy::Force,
            2 => Policy::Disable,
            _ => Policy::Default,
        };
        self.cards.iter().enumerate().map(move |(i, card)| Sample {
            seat: &self.seat,
            card,
            high: page.priority() == 0,
            policy,
            cores: page.cores(i),
            said: self.said.get(i).copied(),
            measured: self.measured.get(i).copied().flatten(),
        })
    }

    fn write(&self, verdicts: &[Verdict], epoch: u64) {
        for (i, verdict) in verdicts.iter().enumerate() {
            self.page.set_trim(i, verdict.trim);
            self.page.set_tenants(i, verdict.tenants);
            if self.page.set_gate(i, verdict.gate.word()) && verdict.gate == Gate::Wait {
                tracing::debug!(seat = self.seat, device = i, "launches wait");
            }
        }
        self.page.beat(epoch);
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;

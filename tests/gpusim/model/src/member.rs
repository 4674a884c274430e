//! This process as one of those that share the cards: its slot, and what it takes and gives back.
//! Fed by the simulated CUDA driver; decides who is dead by `locks` only.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use crate::groups;
use crate::locks;
use crate::model::MAX_GPUS;
use crate::pids;
use crate::shared::{self, Card, Holding, MAX_SLOTS, Mapping, Shared};
use crate::state::StateError;
use crate::walls;

/// The card has not that many bytes left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Tries for a lock before the processor is given away, and before its owner may be dead.
const SPINS: u32 = 50;
const PATIENCE: u32 = 100;

/// A claimed slot. It is given back by the end of the process, never by code.
pub struct Member {
    path: PathBuf,
    map: Mapping,
    slot: usize,
    generation: u64,
    /// The most bytes that it may hold of each card.
    caps: [u64; MAX_GPUS],
}

impl Member {
    /// Claims a slot of the machine of a state file. Fails when all are taken by living processes.
    pub fn join(state: &Path) -> Result<Self, StateError> {
        let path = shared::path_of(state);
        let file = shared::open(&path, true)?;
        // A lock lives with this mapping; the file is closed at the end of this function.
        let map = Mapping::new(&path, &file, true)?;
        let shared = map.get();
        let taken = (0..MAX_SLOTS).find(|slot| locks::take(&file, *slot));
        let slot = taken.ok_or_else(|| StateError::Full { path: path.clone() })?;
        let record = &shared.slots[slot];
        let generation = record.generation.load(Acquire) + 1;
        record.generation.store(generation, Release);
        shared.top.fetch_max(slot as u64 + 1, AcqRel);
        let member = Self {
            path,
            map,
            slot,
            generation,
            caps: [u64::MAX; MAX_GPUS],
        };
        record.mps.store(0, Relaxed);
        record.instance.store(0, Relaxed);
        record.percent.store(0, Relaxed);
        for (index, holding) in record.holdings.iter().enumerate() {
            member.locked(index, |card| settle(card, holding));
        }
        record.pid.store(u64::from(std::process::id()), Relaxed);
        record.namespace.store(pids::own_namespace(), Relaxed);
        record.group.store(groups::own(), Relaxed);
        record.cgroup.store(walls::own(), Relaxed);
        record.settled.store(generation, Release);
        Ok(member)
    }

    /// The number of this process's slot.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// What this process holds on a card, for counters of its own.
    #[must_use]
    pub fn holding(&self, card: usize) -> &Holding {
        &self.shared().slots[self.slot].holdings[card]
    }

    /// Takes bytes of a card that has `capacity` in all. Managed memory, whoever's, makes room.
    pub fn charge(&self, card: usize, bytes: u64, capacity: u64) -> Result<(), Full> {
        self.take(card, bytes, capacity, false)
    }

    /// As `charge`, for memory that may be moved to the host later.
    pub fn charge_managed(&self, card: usize, bytes: u64, capacity: u64) -> Result<(), Full> {
        self.take(card, bytes, capacity, true)
    }

    fn take(&self, card: usize, bytes: u64, capacity: u64, managed: bool) -> Result<(), Full> {
        self.locked(card, |record| {
            let within =
                |used: u64, most: u64| used.checked_add(bytes).is_some_and(|sum| sum <= most);
            if !within(self.holding(card).used.load(Relaxed), self.caps[card]) {
                return Err(Full);
            }
            let passes = || {
                let wall = self.walled(card, record).filter(|_| !managed);
                wall.is_some_and(|wall| !within(wall.used, wall.hard))
            };
            if passes() {
                self.bury(card, record);
                if passes() {
                    return Err(Full);
                }
            }
            let fits = |used: u64| within(used, capacity);
            if !fits(record.used.load(Relaxed)) {
                self.bury(card, record);
                let wanted = record.used.load(Relaxed).saturating_add(bytes);
                self.evict(card, record, wanted.saturating_sub(capacity))?;
            }
            let holding = self.holding(card);
            // The process's own count goes first: should it die in between, the lock's next
            // owner sums up anew.
            let used = holding.used.load(Relaxed) + bytes;
            holding.used.store(used, Relaxed);
            record
                .used
                .store(record.used.load(Relaxed) + bytes, Relaxed);
            holding.peak.fetch_max(used, Relaxed);
            self.note_group(card, record);
            if managed {
                holding.managed.fetch_add(bytes, Relaxed);
            }
            Ok(())
        })
    }

    /// Gives bytes of a card back.
    pub fn release(&self, card: usize, bytes: u64) {
        self.locked(card, |record| {
            let holding = self.holding(card);
            let used = holding.used.load(Relaxed).saturating_sub(bytes);
            holding.used.store(used, Relaxed);
            let sum = record.used.load(Relaxed).saturating_sub(bytes);
            record.used.store(sum, Relaxed);
        });
    }

    /// Gives managed bytes back that were not evicted meanwhile, and tells how many were.
    pub fn release_managed(&self, card: usize, bytes: u64) -> u64 {
        self.locked(card, |record| {
            let holding = self.holding(card);
            let left = bytes.min(holding.managed.load(Relaxed));
            holding.managed.fetch_sub(left, Relaxed);
            let used = holding.used.load(Relaxed).saturating_sub(left);
            holding.used.store(used, Relaxed);
            let sum = record.used.load(Relaxed).saturating_sub(left);
            record.used.store(sum, Relaxed);
            holding.evicted.swap(0, Relaxed)
        })
    }

    /// Moves managed bytes of any process to the host. Needs the card's lock.
    fn evict(&self, card: usize, record: &Card, bytes: u64) -> Result<(), Full> {
        let slots = || {
            self.shared()
                .claimed()
                .map(|(_, slot)| &slot.holdings[card])
        };
        let all: u64 = slots().map(|one| one.managed.load(Relaxed)).sum();
        if all < bytes {
            return Err(Full);
        }
        let mut wanted = bytes;
        for holding in slots() {
            let gone = holding.managed.load(Relaxed).min(wanted);
            if gone == 0 {
                continue;
            }
            wanted -= gone;
            holding.managed.fetch_sub(gone, Relaxed);
            holding.evicted.fetch_add(gone, Relaxed);
            holding.host.fetch_add(gone, Relaxed);
            holding.used.fetch_sub(gone, Relaxed);
            record.used.fetch_sub(gone, Relaxed);
        }
        self.note_host(card, record);
        Ok(())
    }

    /// Bytes that living processes hold on a card.
    #[must_use]
    pub fn used(&self, card: usize) -> u64 {
        self.locked(card, |record| {
            self.bury(card, record);
            record.used.load(Relaxed)
        })
    }

    /// Another living process has a context on a card. A client of MPS has it through its server,
    /// which counts for it.
    #[must_use]
    pub fn others_have_contexts(&self, card: usize) -> bool {
        let file = shared::open(&self.path, false).ok();
        let alive = |slot| file.as_ref().is_none_or(|file| locks::held(file, slot));
        let own = self.shared().slots[self.slot].mps.load(Relaxed);
        self.shared().claimed().any(|(slot, holder)| {
            let contexts = holder.holdings[card].contexts.load(Relaxed);
            let server = holder.mps.load(Relaxed);
            let client = server != 0 && server & 0xffff != slot as u64 + 1;
            let together = own != 0 && server == own;
            contexts > 0 && slot != self.slot && !client && !together && alive(slot)
        })
    }

    /// This process as an MPS server, as its clients name it.
    #[must_use]
    pub fn token(&self) -> u64 {
        (self.generation << 16) | (self.slot as u64 + 1)
    }

    /// From now on this process uses the cards through the MPS server of a token (its own: it is
    /// that server), and fills at most so many percent of them.
    pub fn join_server(&self, token: u64, percent: u32) {
        let record = &self.shared().slots[self.slot];
        record.percent.store(u64::from(percent), Relaxed);
        record.mps.store(token, Relaxed);
    }

    /// From now on this process uses an instance, by its numbers (GPU and compute instance).
    pub fn join_instance(&self, (outer, inner): (u32, u32)) {
        let numbers = (u64::from(outer) << 32 | u64::from(inner)) + 1;
        let record = &self.shared().slots[self.slot];
        record.instance.store(numbers, Relaxed);
    }

    /// It may hold so many bytes of a card and no more.
    pub fn cap(&mut self, card: usize, bytes: u64) {
        self.caps[card] = bytes;
    }

    /// The most bytes that it may hold of a card, where there is such a limit.
    #[must_use]
    pub fn capped(&self, card: usize) -> Option<u64> {
        Some(self.caps[card]).filter(|cap| *cap != u64::MAX)
    }

    /// This process as others may name it: its slot and how often that was claimed.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.slot as u64, self.generation)
    }

    /// The process of an identity lives, and is not this one.
    #[must_use]
    pub fn is_other(&self, (slot, generation): (u64, u64)) -> bool {
        let slot = usize::try_from(slot).unwrap_or(MAX_SLOTS);
        let known = self.shared().slots.get(slot);
        let same = known.is_some_and(|one| one.generation.load(Acquire) == generation);
        let file = || shared::open(&self.path, false);
        slot != self.slot && same && file().is_ok_and(|file| locks::held(&file, slot))
    }

    pub(crate) fn shared(&self) -> &'static Shared {
        self.map.get()
    }

    /// Takes what dead processes held off a card. Needs the card's lock.
    pub(crate) fn bury(&self, card: usize, record: &Card) {
        let Ok(file) = shared::open(&self.path, false) else {
            return;
        };
        for (slot, holder) in self.shared().claimed() {
            let holding = &holder.holdings[card];
            let works = holding.done.load(Relaxed) < holding.pushed.load(Relaxed);
            let kept = holding.used.load(Relaxed) + holding.host.load(Relaxed);
            let holds = kept > 0 || works;
            if holds && slot != self.slot && !locks::held(&file, slot) {
                settle(record, holding);
            }
        }
    }

    /// Runs `body` with the lock of a card.
    pub(crate) fn locked<T>(&self, card: usize, body: impl FnOnce(&Card) -> T) -> T {
        let record = &self.shared().cards[card];
        let own = self.token();
        let mut tries = 0_u32;
        loop {
            match record.lock.compare_exchange(0, own, Acquire, Relaxed) {
                Ok(_) => break,
                Err(owner) if tries > PATIENCE && self.is_dead(owner) => {
                    let stolen = record.lock.compare_exchange(owner, own, Acquire, Relaxed);
                    if stolen.is_ok() {
                        self.sum_up(card, record);
                        break;
                    }
                }
                Err(_) if tries < SPINS => std::hint::spin_loop(),
                Err(_) => std::thread::yield_now(),
            }
            tries = if tries > PATIENCE { SPINS } else { tries + 1 };
        }
        let changing = record.sequence.load(Relaxed) | 1;
        record.sequence.store(changing, Relaxed);
        fence(Release);
        let unlock = Unlock(record, changing + 1);
        let answer = body(record);
        drop(unlock);
        answer
    }

    fn is_dead(&self, owner: u64) -> bool {
        let number = usize::try_from(owner & 0xffff).unwrap_or(0);
        let Some(slot) = number.checked_sub(1).filter(|slot| *slot < MAX_SLOTS) else {
            return false;
        };
        if slot == self.slot {
            return owner >> 16 != self.generation;
        }
        let newer = self.shared().slots[slot].generation.load(Acquire) != owner >> 16;
        newer || shared::open(&self.path, false).is_ok_and(|file| !locks::held(&file, slot))
    }

    fn sum_up(&self, card: usize, record: &Card) {
        let held = self.shared().claimed();
        let sum = held.map(|(_, slot)| slot.holdings[card].used.load(Relaxed));
        record.used.store(sum.sum(), Relaxed);
    }
}

struct Unlock<'a>(&'a Card, u64);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.sequence.store(self.1, Release);
        self.0.lock.store(0, Release);
    }
}

/// Empties a holding of a process that is gone.
fn settle(card: &Card, holding: &Holding) {
    let used = holding.used.swap(0, Relaxed);
    let left = card.used.load(Relaxed).saturating_sub(used);
    card.used.store(left, Relaxed);
    let others = [&holding.peak, &holding.requested, &holding.contexts];
    for counter in others
        .into_iter()
        .chain([&holding.managed, &holding.evicted, &holding.host])
    {
        counter.store(0, Relaxed);
    }
}

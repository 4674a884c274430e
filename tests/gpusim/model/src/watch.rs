//! Who holds what on the cards, for NVML and for tests: read only, dead processes left out.
//! Fed by `<state>.cuda`; must change nothing in it.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use crate::clock;
use crate::engine::busy_between;
use crate::locks;
use crate::pids;
use crate::shared::{self, BUCKET, Mapping, Slot};
use crate::state::StateError;

/// Nanoseconds for which a look at a card that changes meanwhile is tried again: who changes it may
/// wait for a processor.
const PATIENCE: u64 = 2_000_000_000;

/// What a living process holds on one card, by the simulator's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id as it knows it, within its pid namespace.
    pub pid: u32,
    /// Inode of that namespace, 0 = not known.
    pub namespace: u64,
    /// Bytes of the card, contexts and unused parts of blocks included.
    pub used: u64,
    /// The most that `used` ever was.
    pub peak: u64,
    /// Bytes that it asked for and has not given back.
    pub requested: u64,
    /// Bytes of managed memory that the card used and that lie on the host now.
    pub host: u64,
    /// Its contexts.
    pub contexts: u64,
    /// Nanoseconds that its work ran on the card, as far as was computed.
    pub busy: u64,
    /// Kernels and graphs that it launched.
    pub launches: u64,
    /// Percent of the last sample period in which its work ran.
    pub utilisation: u32,
    /// It uses the card through an MPS server.
    pub mps: bool,
    /// The instance that it uses (GPU and compute instance).
    pub instance: Option<(u32, u32)>,
}

impl Holder {
    /// Its id as the reader sees it; `None` when the reader cannot see it.
    #[must_use]
    pub fn pid_here(&self) -> Option<u32> {
        pids::as_seen_here(self.pid, self.namespace)
    }
}

/// An open look at the holdings.
pub struct Watcher {
    path: PathBuf,
    map: Mapping,
}

impl Watcher {
    /// Opens the holdings that belong to a state file.
    pub fn open(state: &Path) -> Result<Self, StateError> {
        let path = shared::path_of(state);
        let map = Mapping::new(&path, &shared::open(&path, false)?, false)?;
        Ok(Self { path, map })
    }

    /// The living processes that have a context or memory on a card, with their utilisation as of
    /// now, in samples of `period` nanoseconds: the last whole one.
    #[must_use]
    pub fn holders(&self, card: usize, (now, period): (u64, u64)) -> Vec<Holder> {
        let end = now - now % period.max(1);
        let mut found = self.living(card);
        for (slot, holder) in &mut found {
            let holding = &self.map.get().slots[*slot].holdings[card];
            let busy = busy_between(holding, end.saturating_sub(period), end);
            let whole = (period / BUCKET * BUCKET).max(1);
            holder.utilisation = u32::try_from(busy * 100 / whole).unwrap_or(100).min(100);
        }
        found.into_iter().map(|(_, holder)| holder).collect()
    }

    /// The most bytes of a card that the processes of a group ever held together at one moment;
    /// `None`: more groups were on the card than are kept, and this may be one of those.
    #[must_use]
    pub fn group_peak(&self, card: usize, group: u64) -> Option<u64> {
        let card = &self.map.get().cards[card];
        let mut groups = card.groups.iter();
        let found = groups.find(|one| one.name.load(Relaxed) == group);
        let unknown = (card.crowded.load(Relaxed) == 0).then_some(0);
        found.map_or(unknown, |one| Some(one.peak.load(Relaxed)))
    }

    /// The most managed bytes that were ever on the host at one moment for want of room on a card.
    #[must_use]
    pub fn host_peak(&self, card: usize) -> u64 {
        self.map.get().cards[card].host_peak.load(Relaxed)
    }

    fn living(&self, card: usize) -> Vec<(usize, Holder)> {
        let found = self.snapshot(card);
        if found.is_empty() {
            return Vec::new();
        }
        let file = shared::open(&self.path, false).ok();
        let alive = |slot| file.as_ref().is_none_or(|file| locks::held(file, slot));
        found
            .into_iter()
            .filter(|(number, _)| alive(*number))
            .collect()
    }

    /// What all held at one moment: their sum never shows a byte twice.
    fn snapshot(&self, card: usize) -> Vec<(usize, Holder)> {
        let shared = self.map.get();
        let sequence = &shared.cards[card].sequence;
        let end = clock().saturating_add(PATIENCE);
        while clock() < end {
            let before = sequence.load(Acquire);
            let found = shared
                .claimed()
                .map(|(number, slot)| (number, read((number, slot), card)));
            let holds = |holder: &Holder| holder.contexts > 0 || holder.used > 0;
            let found: Vec<_> = found.filter(|(_, holder)| holds(holder)).collect();
            fence(Acquire);
            if before.is_multiple_of(2) && sequence.load(Relaxed) == before {
                return found;
            }
            std::thread::yield_now();
        }
        // Its last changer died half-way: nobody changes it now.
        let found = shared
            .claimed()
            .map(|(number, slot)| (number, read((number, slot), card)));
        found.filter(|(_, holder)| holder.used > 0).collect()
    }
}

fn read((number, slot): (usize, &Slot), card: usize) -> Holder {
    let server = slot.mps.load(Relaxed) & 0xffff;
    let holding = &slot.holdings[card];
    let numbers = slot.instance.load(Relaxed).checked_sub(1);
    let part = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    Holder {
        pid: u32::try_from(slot.pid.load(Relaxed)).unwrap_or(u32::MAX),
        namespace: slot.namespace.load(Relaxed),
        used: holding.used.load(Relaxed),
        peak: holding.peak.load(Relaxed),
        requested: holding.requested.load(Relaxed),
        host: holding.host.load(Relaxed),
        contexts: holding.contexts.load(Relaxed),
        busy: holding.busy.load(Relaxed),
        launches: holding.launches.load(Relaxed),
        utilisation: 0,
        mps: server != 0 && server != number as u64 + 1,
        instance: numbers.map(|both| (part(both >> 32), part(both))),
    }
}

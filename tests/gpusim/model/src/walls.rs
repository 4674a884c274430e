//! The driver's own memory limits: of a cgroup on a card, as driver r615 has them. What would pass
//! one is refused, whatever library the process uses.
//!
//! Fed by the simulated NVML, which sets them, and by each CUDA process, which knows its cgroup by
//! the kernel. A limit holds for the processes of exactly its cgroup. Must not: let a process name
//! its own cgroup.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::groups::group_of;
use crate::member::Member;
use crate::shared::{Card, Slot};

/// Where cgroups are found, by the names that are given to the driver.
pub const ROOT: &str = "/sys/fs/cgroup";
/// No limit.
pub const UNLIMITED: u64 = u64::MAX;
/// Limits that a card may have.
pub(crate) const MAX_WALLS: usize = 256;
/// Of a folder's number, so that none is mistaken for that of a name.
const FOLDER: u64 = 1 << 63;

/// A limit of one cgroup.
#[repr(C)]
pub(crate) struct Wall {
    /// The number of the cgroup's path; 0: none.
    name: AtomicU64,
    /// The number of its folder, where the host has one.
    folder: AtomicU64,
    soft: AtomicU64,
    hard: AtomicU64,
}

/// What holds for a cgroup on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that are guaranteed.
    pub soft: u64,
    /// Bytes that may be held at most.
    pub hard: u64,
    /// Bytes that are held.
    pub used: u64,
}

/// Every place of a card is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPlace;

/// The number of a cgroup, by its path below [`ROOT`].
fn number(path: &str) -> u64 {
    group_of(path.trim_end_matches('/')) & !FOLDER
}

/// The number of its folder as the host sees it.
fn folder(path: &str) -> u64 {
    let found = fs::metadata(format!("{ROOT}{path}"));
    found.map_or(0, |found| found.ino() | FOLDER)
}

/// This process's cgroup: the longest path that the kernel tells, or, within a namespace of
/// cgroups, the folder that is its root.
pub(crate) fn own() -> u64 {
    let told = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths = told.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    match paths.max_by_key(|path| path.len()) {
        Some(path) if path != "/" => number(path),
        _ => folder(""),
    }
}

/// The limits of a card, with places that are free again.
fn set(record: &Card) -> impl Iterator<Item = &Wall> {
    let most = usize::try_from(record.limited.load(Relaxed)).unwrap_or(MAX_WALLS);
    record.walls[..most.min(MAX_WALLS)].iter()
}

impl Wall {
    fn is_of(&self, cgroup: u64) -> bool {
        let own = [self.name.load(Relaxed), self.folder.load(Relaxed)];
        cgroup != 0 && own.contains(&cgroup)
    }
}

impl Member {
    /// Limits a cgroup, by its path below [`ROOT`], on a card.
    pub fn set_wall(
        &self,
        card: usize,
        path: &str,
        (soft, hard): (u64, u64),
    ) -> Result<(), NoPlace> {
        let (name, folder) = (number(path), folder(path));
        self.locked(card, |record| {
            let of = |wanted: u64| {
                let mut all = record.walls.iter().enumerate();
                all.find(|(_, wall)| wall.name.load(Relaxed) == wanted)
            };
            let known = of(name);
            if (soft, hard) == (0, UNLIMITED) {
                if let Some((_, known)) = known {
                    known.name.store(0, Relaxed);
                    known.folder.store(0, Relaxed);
                }
                return Ok(());
            }
            let (place, wall) = known.or_else(|| of(0)).ok_or(NoPlace)?;
            record.limited.fetch_max(place as u64 + 1, Relaxed);
            wall.folder.store(folder, Relaxed);
            wall.soft.store(soft, Relaxed);
            wall.hard.store(hard, Relaxed);
            wall.name.store(name, Relaxed);
            Ok(())
        })
    }

    /// What holds for a cgroup, by its path below [`ROOT`].
    #[must_use]
    pub fn wall(&self, card: usize, path: &str) -> Option<Limit> {
        let name = number(path);
        self.locked(card, |record| {
            let wall = set(record).find(|wall| wall.name.load(Relaxed) == name)?;
            self.bury(card, record);
            Some(self.limit(card, wall))
        })
    }

    /// What holds for this process.
    #[must_use]
    pub fn own_wall(&self, card: usize) -> Option<Limit> {
        self.locked(card, |record| {
            self.walled(card, record)?;
            self.bury(card, record);
            self.walled(card, record)
        })
    }

    /// The same with the card's lock, the dead of the cgroup among those who hold.
    pub(crate) fn walled(&self, card: usize, record: &Card) -> Option<Limit> {
        let own = self.shared().slots[self.slot()].cgroup.load(Relaxed);
        let wall = set(record).find(|wall| wall.is_of(own))?;
        Some(self.limit(card, wall))
    }

    fn limit(&self, card: usize, wall: &Wall) -> Limit {
        let held = |slot: &Slot| {
            let holding = &slot.holdings[card];
            // What may move to the host is not the device's.
            let managed = holding.managed.load(Relaxed);
            holding.used.load(Relaxed).saturating_sub(managed)
        };
        let all = self.shared().claimed().map(|(_, slot)| slot);
        let own = all.filter(|slot| wall.is_of(slot.cgroup.load(Relaxed)));
        Limit {
            soft: wall.soft.load(Relaxed),
            hard: wall.hard.load(Relaxed),
            used: own.map(held).sum(),
        }
    }
}

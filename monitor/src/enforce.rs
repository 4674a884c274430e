//! What holds each share to its memory, behind one trait: the library in its container, MPS, and
//! the driver's own limits of cgroups, the only wall that no program gets around.
//!
//! Fed by: a look. Must not: let go of one because another holds, or limit what may have all of
//! its card.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::inventory::Mode;
use aliquot_nvml::{LimitError, MemoryLimits};

use crate::judge::Look;
use crate::seats::{Device, Seat};

/// Where cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// A card that offers no limits is asked again after this: it may have been cut. A limit that was
/// set is set anew: a reset of the card, or somebody else, may have taken it away.
const AGAIN: Duration = Duration::from_mins(1);

/// What holds each device of each seat, by name.
pub type Held = Vec<Vec<Vec<&'static str>>>;

/// One device of one container.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// The container.
    pub seat: &'a Seat,
    /// The device.
    pub device: &'a Device,
    /// Bytes that it may hold; 0: unknown.
    pub limit: u64,
    /// The container's cgroups, by their paths below the root of the hierarchy.
    pub cgroups: &'a BTreeSet<String>,
}

/// Something that holds shares to their memory.
pub trait Enforcement: Send {
    /// As metrics say it.
    fn name(&self) -> &'static str;

    /// Holds a share from now on, as far as it can; whether it does.
    fn hold(&mut self, share: Share<'_>) -> bool;

    /// Whether cards let it hold shares of them, by uuid, as far as that was tried.
    fn offered(&self) -> BTreeMap<String, bool> {
        BTreeMap::new()
    }

    /// These are the cgroups of all shares; what was known of others is forgotten.
    fn keep(&mut self, _cgroups: &BTreeSet<&String>) {}
}

/// The library in the container, which the agent put there.
#[derive(Debug)]
pub struct Library;

impl Enforcement for Library {
    fn name(&self) -> &'static str {
        "library"
    }

    fn hold(&mut self, share: Share<'_>) -> bool {
        share.seat.limited && share.limit > 0
    }
}

/// The limit of each client of an MPS daemon, which the agent set.
#[derive(Debug)]
pub struct Mps;

impl Enforcement for Mps {
    fn name(&self) -> &'static str {
        "mps"
    }

    fn hold(&mut self, share: Share<'_>) -> bool {
        share.device.mode == Mode::Mps && share.device.memory.0 > 0
    }
}

/// The driver's limits of cgroups.
pub struct Driver {
    asked: Arc<dyn MemoryLimits>,
    /// Bytes and when they were set, by card and cgroup.
    set: BTreeMap<(String, String), (u64, Instant)>,
    /// Cgroups that ended: nobody is in them.
    gone: BTreeSet<(String, String)>,
    /// Cards without limits, and when that was found.
    without: BTreeMap<String, Instant>,
    /// Those that could not be set were told.
    told: BTreeSet<(String, String)>,
}

/// Whether a cgroup is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limited {
    Yes,
    No,
    /// Nobody is in it.
    Gone,
}

impl Driver {
    /// Of this driver.
    pub fn new(driver: Arc<dyn MemoryLimits>) -> Self {
        Self {
            asked: driver,
            set: BTreeMap::new(),
            gone: BTreeSet::new(),
            without: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    fn limit(&mut self, card: &str, cgroup: &str, bytes: u64) -> Limited {
        let key = (card.to_owned(), cgroup.to_owned());
        let before = self.set.get(&key).filter(|(set, _)| *set == bytes);
        let (is_known, then) = (before.is_some(), before.map(|(_, then)| *then));
        if then.is_some_and(|then| then.elapsed() < AGAIN) {
            return Limited::Yes;
        }
        if self.gone.contains(&key) {
            return Limited::Gone;
        }
        let path = format!("{CGROUPS}{cgroup}");
        let answer = self.asked.limit_memory(card, Path::new(&path), bytes);
        if answer.is_err() {
            self.set.remove(&key);
        }
        match answer {
            Ok(()) => {
                if !is_known {
                    tracing::info!(card, cgroup, bytes, "the driver holds a container");
                }
                self.told.remove(&key);
                self.set.insert(key, (bytes, Instant::now()));
                Limited::Yes
            }
            Err(LimitError::NotOffered(_)) => {
                let known = self.without.insert(card.to_owned(), Instant::now());
                if known.is_none() {
                    tracing::info!(
                        card,
                        "the driver has no memory limits of cgroups; shares are held without them"
                    );
                }
                Limited::No
            }
            Err(LimitError::NoCgroup(_)) if !Path::new(&path).is_dir() => {
                self.gone.insert(key);
                Limited::Gone
            }
            Err(error) => {
                if self.told.insert(key) {
                    tracing::warn!(%error, "the driver does not hold a container");
                }
                Limited::No
            }
        }
    }
}

impl Enforcement for Driver {
    fn name(&self) -> &'static str {
        "driver"
    }

    fn hold(&mut self, share: Share<'_>) -> bool {
        let (device, card) = (share.device, share.device.uuid.as_str());
        let is_part = matches!(device.mode, Mode::Vgpu | Mode::Mps);
        // An instance is a wall by itself.
        let is_card = device.profile.is_none() && !card.starts_with("MIG-");
        let has_limit = share.limit > 0 && !share.seat.effective.uncontrolled;
        let asked = self.without.get(card);
        if asked.is_some_and(|then| then.elapsed() < AGAIN) || share.cgroups.is_empty() {
            return false;
        }
        if !(is_part && is_card && has_limit) {
            return false;
        }
        // Each is tried: one that cannot be limited keeps no other from it.
        let cgroups = share.cgroups.iter();
        let all: Vec<Limited> = cgroups
            .map(|cgroup| self.limit(card, cgroup, share.limit))
            .collect();
        all.contains(&Limited::Yes) && !all.contains(&Limited::No)
    }

    fn offered(&self) -> BTreeMap<String, bool> {
        let without = self.without.keys().map(|card| (card.clone(), false));
        let with = self.set.keys().map(|(card, _)| (card.clone(), true));
        without.chain(with).collect()
    }

    fn keep(&mut self, cgroups: &BTreeSet<&String>) {
        self.set.retain(|(_, cgroup), _| cgroups.contains(cgroup));
        self.told.retain(|(_, cgroup)| cgroups.contains(cgroup));
        self.gone.retain(|(_, cgroup)| cgroups.contains(cgroup));
    }
}

/// All of them.
pub struct Enforcements(Vec<Box<dyn Enforcement>>);

impl Enforcements {
    /// With this driver.
    pub fn new(driver: Arc<dyn MemoryLimits>) -> Self {
        Self(vec![
            Box::new(Library),
            Box::new(Mps),
            Box::new(Driver::new(driver)),
        ])
    }

    /// Whether the driver has limits of its own, by card, as far as that was tried.
    pub fn offered(&self) -> BTreeMap<String, bool> {
        self.0.iter().flat_map(|one| one.offered()).collect()
    }

    /// Holds the shares of a look, and says by what each is held. Blocks.
    pub fn hold(&mut self, look: &Look) -> Held {
        let none = BTreeSet::new();
        let both = look.cgroups.values().chain(look.early.values());
        let all: BTreeSet<&String> = both.flatten().collect();
        for one in &mut self.0 {
            one.keep(&all);
        }
        let mut held = Held::new();
        for (at, seat) in look.seats.all.iter().enumerate() {
            let key = (seat.pod.clone(), seat.container.clone());
            let cgroups = look.cgroups.get(&key).unwrap_or(&none);
            let limits = look.limits.get(at);
            let devices = seat.devices.iter().enumerate().map(|(place, device)| {
                let limit = limits.and_then(|limits| limits.get(place));
                let share = Share {
                    seat,
                    device,
                    limit: limit.copied().unwrap_or(0),
                    cgroups,
                };
                if let Some(cgroups) = look.early.get(&key) {
                    // Which of them it is will be known when it was told; none may hold more.
                    for one in &mut self.0 {
                        one.hold(Share { cgroups, ..share });
                    }
                }
                let holds = self.0.iter_mut().filter_map(|one| {
                    let name = one.name();
                    one.hold(share).then_some(name)
                });
                holds.collect()
            });
            held.push(devices.collect());
        }
        held
    }
}

#[cfg(test)]
#[path = "enforce_tests.rs"]
mod tests;

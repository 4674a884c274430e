//! The seats of this node: one for each container that was given a share, from what the device
//! plugin left on disk, so that figures need no API server.
//!
//! Fed by: the accepted shares (`accepted/<pod>.json`) and the seats' folders below the agent's
//! state directory. Must not: write there, or let one file that cannot be read hide the others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::inventory::Mode;
use aliquot_core::{Allocation, GpuUuid, Grant, Mib, Percent, PodUid};
use serde::Deserialize;
use tokio::sync::watch;

/// The version of an accepted share that is read.
const VERSION: u32 = 1;
/// A folder that changed within this time may change again without a new time of change.
const SETTLED: Duration = Duration::from_secs(2);

/// When the compute share holds (`GPU_CORE_UTILIZATION_POLICY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Utilization {
    /// Unless the container is alone on the card.
    #[default]
    Default,
    /// Always.
    Force,
    /// Never.
    Disable,
}

/// What holds for a container besides its grants, as the device plugin accepted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Effective {
    /// When the compute share holds.
    pub utilization: Utilization,
    /// Whoever grew last is killed when the container passes its memory.
    pub oom_killer: bool,
    /// More memory than a card of its has may be promised.
    pub oversubscribe: bool,
    /// No limit holds.
    pub uncontrolled: bool,
}

/// One card, or instance of one, of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its uuid as the limits page has it: `GPU-…`, or `MIG-…` of an instance that is there for
    /// good.
    pub uuid: GpuUuid,
    /// Memory that was granted; nothing where shares take turns.
    pub memory: Mib,
    /// Compute that was granted; 0 and 100: no limit.
    pub cores: Percent,
    /// How it was shared when the pod was accepted.
    pub mode: Mode,
    /// The profile of an instance that was made for it.
    pub profile: Option<String>,
}

/// A container's seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Name of its folder, new for every start that the kubelet prepared.
    pub name: String,
    /// The pod, by the kubelet's uid.
    pub pod: PodUid,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod_name: String,
    /// The container.
    pub container: String,
    /// Its cards, in the order of the limits page and of the counters file.
    pub devices: Vec<Device>,
    /// 0 high, 1 low.
    pub priority: u8,
    /// What else holds for it.
    pub effective: Effective,
    /// libvgpu.so holds it: each of its processes on a card has a slot.
    pub limited: bool,
    /// Its folder on the host, which the container has read-only.
    pub folder: PathBuf,
}

impl Seat {
    /// Its limits page: the host's file ([`aliquot_region::limits::Measured`]).
    pub fn limits(&self) -> PathBuf {
        self.folder.join("limits")
    }

    /// Its counters file, which the tenant writes: only for [`aliquot_region::host::read`].
    pub fn counters(&self) -> PathBuf {
        self.folder.join("counters/slots")
    }

    /// The list of its processes, which the host writes.
    pub fn processes(&self) -> PathBuf {
        self.folder.join("processes")
    }
}

/// An accepted share that says nothing of seats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// All seats at one moment, by folder name; one for each container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seats {
    /// Those that could be read.
    pub all: Vec<Seat>,
    /// Shares that could not.
    pub faults: Vec<Fault>,
    /// Pods that were given a share, these among them.
    pub accepted: BTreeSet<PodUid>,
    /// Shares may be there that are not known: their list cannot be read, or is gone.
    pub unlisted: bool,
}

/// The newest list, for who looks more often than it changes.
pub type Shown = watch::Receiver<Arc<Seats>>;

/// What is read of an accepted share: a part of what the device plugin writes.
#[derive(Deserialize)]
struct Stored {
    v: u32,
    pod: PodUid,
    namespace: String,
    name: String,
    allocation: Allocation,
    containers: Vec<Container>,
    names: BTreeSet<String>,
    #[serde(default)]
    seats: BTreeMap<String, String>,
    #[serde(default)]
    order: BTreeMap<String, u64>,
    #[serde(default)]
    modes: BTreeMap<GpuUuid, Mode>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    effective: Effective,
}

/// Reads the seats when they may have changed.
#[derive(Debug)]
pub struct Reader {
    state: PathBuf,
    last: Option<([SystemTime; 2], Arc<Seats>)>,
}

impl Reader {
    /// Of the agent's state directory.
    pub fn new(state: PathBuf) -> Self {
        Self { state, last: None }
    }

    /// The seats now. Blocks.
    pub fn read(&mut self) -> Arc<Seats> {
        let changed = ["accepted", "seats"].map(|folder| changed(&self.state.join(folder)));
        if let Some((then, seats)) = &self.last
            && *then == changed
            && changed.iter().all(|time| is_settled(*time))
            && is_whole(seats)
        {
            return Arc::clone(seats);
        }
        let mut found = read(&self.state);
        let (last, there) = (self.last.as_ref(), self.state.join("accepted").is_dir());
        // A folder that is gone again took with it what is not known now.
        found.unlisted |=
            !there && last.is_some_and(|(_, last)| last.unlisted || !last.accepted.is_empty());
        let mut seats = Arc::new(found);
        if let Some((_, last)) = &self.last
            && **last == *seats
        {
            seats = Arc::clone(last);
        }
        self.last = Some((changed, Arc::clone(&seats)));
        seats
    }
}

/// Nothing failed, and no seat got its library since: that shows in no time of change.
fn is_whole(seats: &Seats) -> bool {
    let without = seats.all.iter().filter(|seat| !seat.limited);
    let got_it = |seat: &Seat| has_library(seat.effective, &seat.folder);
    seats.faults.is_empty() && !seats.unlisted && !without.into_iter().any(got_it)
}

/// The agent puts it there last.
fn has_library(effective: Effective, folder: &Path) -> bool {
    !effective.uncontrolled && folder.join("lib").is_dir()
}

fn changed(folder: &Path) -> SystemTime {
    let found = fs::metadata(folder).and_then(|found| found.modified());
    found.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_settled(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|age| age > SETTLED)
}

/// The seats below a state directory, by folder name.
pub fn read(state: &Path) -> Seats {
    let mut seats = Seats::default();
    let folder = state.join("accepted");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return seats,
        Err(error) => {
            seats.unlisted = true;
            seats.faults.push(fault(&folder, &error));
            return seats;
        }
    };
    for entry in entries {
        let file = match entry {
            Ok(entry) => entry.path(),
            Err(error) => {
                seats.unlisted = true;
                seats.faults.push(fault(&folder, &error));
                continue;
            }
        };
        if file.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let pod = file.file_stem().and_then(|stem| stem.to_str());
        seats.accepted.extend(pod.map(PodUid::from));
        match fs::read(&file) {
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => seats.faults.push(fault(&file, &error)),
            // A power cut left it so, and its pod is judged again.
            Ok(text) if text.iter().all(|byte| *byte == 0) => {}
            Ok(text) => match of_share(&text, &state.join("seats")) {
                Ok(found) => seats.all.extend(found),
                Err(problem) => seats.faults.push(Fault { file, problem }),
            },
        }
    }
    seats.all.sort_by(|a, b| a.name.cmp(&b.name));
    seats.faults.sort_by(|a, b| a.file.cmp(&b.file));
    seats
}

/// A container that was prepared anew, as after a reboot, has a new folder; it runs with that. An
/// earlier release did not note the order: then the time when they were made says it.
fn keep_newest(seats: &mut Vec<Seat>, order: &BTreeMap<String, u64>) {
    seats.sort_by_cached_key(|seat| {
        let newest = Reverse((order.get(&seat.name).copied(), made(&seat.folder)));
        (seat.container.clone(), newest)
    });
    seats.dedup_by(|later, first| later.container == first.container);
}

fn made(folder: &Path) -> SystemTime {
    let found =
        fs::metadata(folder).and_then(|found| found.created().or_else(|_| found.modified()));
    found.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn fault(file: &Path, error: &io::Error) -> Fault {
    Fault {
        file: file.to_owned(),
        problem: error.to_string(),
    }
}

fn of_share(text: &[u8], folders: &Path) -> Result<Vec<Seat>, String> {
    let stored: Stored = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if stored.v != VERSION {
        return Err(format!("version {}; accepted: {VERSION}", stored.v));
    }
    let only = match stored.containers.as_slice() {
        [only] => Some(only.name.clone()),
        _ => None,
    };
    let mut seats = Vec::new();
    for name in &stored.names {
        let folder = folders.join(name);
        // A container's further names have no folder, nor has one that was collected.
        if !folder.is_dir() {
            continue;
        }
        let Some(container) = stored.seats.get(name).or(only.as_ref()) else {
            return Err(format!("it does not say whose {name} is"));
        };
        let known = stored.containers.iter().find(|one| one.name == *container);
        let grants = stored.allocation.grants(container);
        let (Some(known), Some(grants)) = (known, grants) else {
            return Err(format!("container {container} has no share"));
        };
        let devices: Vec<Device> = grants
            .iter()
            .map(|one| device(one, &stored.modes))
            .collect();
        seats.push(Seat {
            name: name.clone(),
            pod: stored.pod.clone(),
            namespace: stored.namespace.clone(),
            pod_name: stored.name.clone(),
            container: container.clone(),
            devices,
            priority: stored.allocation.priority,
            effective: known.effective,
            limited: has_library(known.effective, &folder),
            folder,
        });
    }
    keep_newest(&mut seats, &stored.order);
    Ok(seats)
}

fn device(grant: &Grant, modes: &BTreeMap<GpuUuid, Mode>) -> Device {
    Device {
        uuid: grant.gpu.clone(),
        memory: grant.memory,
        cores: grant.cores,
        mode: modes.get(&grant.gpu).copied().unwrap_or(Mode::Vgpu),
        profile: grant.mig.as_ref().map(|placed| placed.profile.clone()),
    }
}

#[cfg(test)]
#[path = "seats_tests.rs"]
mod tests;

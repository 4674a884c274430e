//! The containers with a share on this node, from what the device plugin wrote below its state
//! directory: the accepted allocations and the container directories. Needs no API server. A file
//! that cannot be read does not hide the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_core::inventory::Mode;
use aliquot_core::{GpuUuid, Grant, Mib, Percent, PodUid};
use aliquot_node_state::accepted::{self, AcceptedAllocation};
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_node_state::state::StateDirectory;
use tokio::sync::watch;

/// A directory that changed within this time may change again with the same modification time.
const RECENT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDevice {
    /// Its uuid, as on the limits page: `GPU-…`, or `MIG-…` for an instance of a fixed layout.
    pub uuid: GpuUuid,
    /// Memory that was granted; 0 with time-slicing.
    pub memory: Mib,
    /// Compute that was granted; 0 and 100: no limit.
    pub cores: Percent,
    pub mode: Mode,
    /// The MIG profile of an instance that was created for it.
    pub profile: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedContainer {
    /// Name of its directory, new for each start that the kubelet prepares.
    pub id: String,
    pub pod: PodUid,
    pub namespace: String,
    pub pod_name: String,
    pub name: String,
    /// Its devices, in the order of the limits page and the counters file.
    pub devices: Vec<ContainerDevice>,
    pub effective: EffectiveLimits,
    /// It has the limiter: each of its processes on a GPU has a process slot.
    pub limited: bool,
    pub directory: ContainerDirectory,
}

/// The containers with a share at one moment, ordered by directory name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedContainers {
    pub all: Vec<ManagedContainer>,
    /// Files of accepted allocations that cannot be read, and why.
    pub unreadable: BTreeMap<PathBuf, String>,
    /// All pods with a share, including those.
    pub accepted: BTreeSet<PodUid>,
    /// There may be more shares: their list cannot be read, or is gone.
    pub unlisted: bool,
}

impl ManagedContainers {
    pub fn ids(&self) -> BTreeSet<&str> {
        self.all.iter().map(|one| one.id.as_str()).collect()
    }
}

pub type ContainersReceiver = watch::Receiver<Arc<ManagedContainers>>;

/// Reads the containers when they may have changed.
#[derive(Debug)]
pub struct ContainerReader {
    state: PathBuf,
    last: Option<([SystemTime; 2], Arc<ManagedContainers>)>,
}

impl ContainerReader {
    pub fn new(state: PathBuf) -> Self {
        Self { state, last: None }
    }

    pub fn read(&mut self) -> Arc<ManagedContainers> {
        let state = StateDirectory(&self.state);
        let changed =
            [state.accepted(), state.container_directories()].map(|folder| changed(&folder));
        if let Some((then, containers)) = &self.last
            && *then == changed
            && changed.iter().all(|time| is_old(*time))
            && is_complete(containers)
        {
            return Arc::clone(containers);
        }
        let mut found = read(&self.state);
        let last = self.last.as_ref().map(|(_, last)| last);
        // If the directory is gone, earlier shares are unknown now.
        let had_shares = |last: &Arc<ManagedContainers>| last.unlisted || !last.accepted.is_empty();
        found.unlisted |= !state.accepted().is_dir() && last.is_some_and(had_shares);
        for (file, problem) in &found.unreadable {
            let known = last.and_then(|last| last.unreadable.get(file));
            if known != Some(problem) {
                let file = file.display();
                tracing::warn!(%file, problem, "cannot read an accepted allocation");
            }
        }
        let containers = match last {
            Some(last) if **last == found => Arc::clone(last),
            _ => Arc::new(found),
        };
        self.last = Some((changed, Arc::clone(&containers)));
        containers
    }
}

/// Whether nothing failed and no container got its limiter since then, which changes no
/// modification time.
fn is_complete(containers: &ManagedContainers) -> bool {
    let without = containers.all.iter().filter(|container| !container.limited);
    let got_it =
        |container: &ManagedContainer| has_limiter(container.effective, &container.directory);
    containers.unreadable.is_empty() && !containers.unlisted && !without.into_iter().any(got_it)
}

/// The agent adds it last.
fn has_limiter(effective: EffectiveLimits, directory: &ContainerDirectory) -> bool {
    !effective.uncontrolled && directory.has_limiter()
}

fn changed(folder: &Path) -> SystemTime {
    let found = fs::metadata(folder).and_then(|found| found.modified());
    found.unwrap_or(SystemTime::UNIX_EPOCH)
}

fn is_old(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|age| age > RECENT)
}

/// Reads the containers below a state directory, ordered by directory name.
pub fn read(state: &Path) -> ManagedContainers {
    let mut containers = ManagedContainers::default();
    let folder = StateDirectory(state).accepted();
    let directories = StateDirectory(state).container_directories();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries.collect::<Vec<_>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return containers,
        Err(error) => vec![Err(error)],
    };
    for entry in entries {
        let file = match entry {
            Ok(entry) => entry.path(),
            Err(error) => {
                containers.unlisted = true;
                let problem = error.to_string();
                containers.unreadable.insert(folder.clone(), problem);
                continue;
            }
        };
        let name = file.file_name().and_then(|name| name.to_str());
        let Some(pod) = name.and_then(accepted::pod_of_file) else {
            continue;
        };
        containers.accepted.insert(pod);
        let found = match fs::read(&file) {
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => Err(error.to_string()),
            Ok(text) => read_share(&text, &directories),
        };
        match found {
            Ok(found) => containers.all.extend(found),
            Err(problem) => drop(containers.unreadable.insert(file, problem)),
        }
    }
    containers.all.sort_by(|a, b| a.id.cmp(&b.id));
    containers
}

fn read_share(text: &[u8], folders: &Path) -> Result<Vec<ManagedContainer>, String> {
    let stored = AcceptedAllocation::decode(text).map_err(|error| error.to_string())?;
    let Some(stored) = stored else {
        return Ok(Vec::new());
    };
    let mut containers = Vec::new();
    for (container, (name, directory)) in stored.running_directories(folders) {
        let effective = stored.effective(container);
        let grants = stored.allocation.grants(container);
        let (Some(effective), Some(grants)) = (effective, grants) else {
            return Err(format!("container {container} has no allocation"));
        };
        let devices: Vec<ContainerDevice> =
            grants.iter().map(|grant| device(grant, &stored)).collect();
        containers.push(ManagedContainer {
            id: name.to_owned(),
            pod: stored.pod.clone(),
            namespace: stored.namespace.clone(),
            pod_name: stored.pod_name.clone(),
            name: container.to_owned(),
            devices,
            effective,
            limited: has_limiter(effective, &directory),
            directory,
        });
    }
    Ok(containers)
}

fn device(grant: &Grant, stored: &AcceptedAllocation) -> ContainerDevice {
    ContainerDevice {
        uuid: grant.gpu.clone(),
        memory: grant.memory,
        cores: grant.cores,
        mode: stored.mode(&grant.gpu),
        profile: grant.mig.as_ref().map(|placed| placed.profile.clone()),
    }
}

#[cfg(test)]
#[path = "managed_containers_tests.rs"]
mod tests;

//! The driver's memory limits for the cgroup of a container, set before its first program runs
//! (docs/guides/monitor.md). Where that fails, the container starts nevertheless: the monitor sets
//! the limits at its next sample, and reports what started without them.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use aliquot_node_state::cgroup;
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_nvml::{
    CgroupLimits, DriverAccess, LimitError, MemoryLimits as _, Nvml, NvmlError, Options,
};
use aliquot_region::limits::{HostLimitsPage, LimitsError};
use serde_json::Value;
use thiserror::Error;

const CGROUPS: &str = "/sys/fs/cgroup";
/// The longest wait for the driver: the runtime gives a container up whose hook takes ten seconds.
const LONGEST: Duration = Duration::from_secs(5);

/// Why a container starts without the driver's limits.
#[derive(Debug, Error)]
pub enum LimitFailure {
    #[error("cannot read the container state from standard input: {0}")]
    State(#[from] serde_json::Error),
    #[error("the container state has no pid")]
    NoProcess,
    #[error("cannot read {}: {source}", path.display())]
    Process { path: PathBuf, source: io::Error },
    /// A limit of any other cgroup would be that of several containers.
    #[error("process {0} is in no cgroup of a container")]
    NoCgroup(u64),
    #[error("cannot register as a user of the driver: {0}")]
    Access(#[source] io::Error),
    /// The node agent needs the driver for itself.
    #[error("the node agent changes the MIG mode of a GPU")]
    Busy,
    #[error("the driver did not answer within {} s", LONGEST.as_secs())]
    Slow,
    #[error(transparent)]
    Page(#[from] LimitsError),
    #[error(transparent)]
    Driver(#[from] NvmlError),
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Reads the container state from `state`, and limits the cgroup of its process: see [`limit`].
pub fn run(
    state: impl Read,
    library: &Path,
    directory: &Path,
    gpus: &[&str],
) -> Result<(), LimitFailure> {
    let state: Value = serde_json::from_reader(state)?;
    let pid = state["pid"].as_u64().ok_or(LimitFailure::NoProcess)?;
    let path = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let cgroups =
        fs::read_to_string(&path).map_err(|source| LimitFailure::Process { path, source })?;
    let location = cgroup::location(&cgroups);
    if location.container.is_none() {
        return Err(LimitFailure::NoCgroup(pid));
    }
    let cgroup = PathBuf::from(format!("{CGROUPS}{}", location.path));
    let (library, directory) = (library.to_owned(), directory.to_owned());
    let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
    let limited = within(LONGEST, move || {
        let gpus: Vec<&str> = gpus.iter().map(String::as_str).collect();
        limit(&cgroup, &library, &directory, &gpus)
    });
    limited.unwrap_or(Err(LimitFailure::Slow))
}

/// What `act` returns; `None` if that takes longer: then it is left to itself.
fn within<T: Send + 'static>(
    longest: Duration,
    act: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(act());
    });
    receiver.recv_timeout(longest).ok()
}

/// Limits a cgroup on these GPUs as the limits page in this container directory says; `library` is
/// the driver's NVML.
pub fn limit(
    cgroup: &Path,
    library: &Path,
    directory: &Path,
    gpus: &[&str],
) -> Result<(), LimitFailure> {
    // The container directories are in a folder of the state directory.
    let state = directory.ancestors().nth(2).unwrap_or(directory);
    let registered = DriverAccess::new(state).join();
    let _registered = registered
        .map_err(LimitFailure::Access)?
        .ok_or(LimitFailure::Busy)?;
    let page = HostLimitsPage::open(&ContainerDirectory::new(directory).limits())?;
    let nvml = Nvml::open(Options {
        library: library.into(),
        ..Options::default()
    })?;
    for (i, uuid) in page.uuids().enumerate() {
        // On the page 0 means no limit; to the driver it would mean not a byte.
        if gpus.contains(&uuid.as_str()) && page.page().memory(i) > 0 {
            let limits = CgroupLimits {
                soft: page.page().guaranteed(i),
                hard: page.page().memory(i),
            };
            nvml.limit_memory(&uuid, cgroup, limits)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_starts_while_driver_hangs() {
        let (never, driver) = mpsc::channel::<()>();
        let hangs = within(Duration::from_millis(50), move || driver.recv());
        assert_eq!(hangs, None);
        drop(never);
        assert_eq!(within(LONGEST, || 7), Some(7));
    }
}

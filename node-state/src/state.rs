//! The agent's state directory (`--state-dir`), through which agent, monitor and MPS supervisor
//! communicate.

use std::path::{Path, PathBuf};

/// The paths in a state directory.
#[derive(Clone, Copy, Debug)]
pub struct StateDirectory<'a>(pub &'a Path);

impl StateDirectory<'_> {
    /// The accepted allocations, one file for each pod ([`crate::accepted`]).
    pub fn accepted(self) -> PathBuf {
        self.0.join("accepted")
    }

    /// The container directories, by answer name ([`crate::container_directory`]).
    pub fn container_directories(self) -> PathBuf {
        self.0.join("containers")
    }

    /// The MPS daemons, a directory for each device ([`crate::mps`]).
    pub fn mps(self) -> PathBuf {
        self.0.join("mps")
    }

    /// The GPUs on which the monitor does not correct compute shares.
    pub fn uncorrected(self) -> PathBuf {
        self.0.join("uncorrected.json")
    }

    /// The GPUs with processes whose memory the driver does not report to the monitor.
    pub fn unmeasured(self) -> PathBuf {
        self.0.join("unmeasured.json")
    }

    /// The memory that processes outside every share hold of each GPU.
    pub fn unmanaged(self) -> PathBuf {
        self.0.join("unmanaged.json")
    }

    /// The names of containers by the runtime's ids, which only the monitor reads and writes.
    pub fn container_names(self) -> PathBuf {
        self.0.join("containers.json")
    }
}

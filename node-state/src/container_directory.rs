//! The directory of one container, named after its Allocate answer, which the container has
//! read-only except for its counters file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Where the directory is in its container.
pub const IN_CONTAINER: &str = "/.aliquot";
/// Where the counters file is in its container.
pub const COUNTERS_IN_CONTAINER: &str = "/.aliquot/counters/slots";
/// Where the list of preloads is mounted, over the image's own.
pub const PRELOAD_IN_CONTAINER: &str = "/etc/ld.so.preload";

/// The limits page, which only the host writes ([`aliquot_region::limits`]).
pub const LIMITS: &str = "limits";
/// The folder of the counters file, on which a small file system is mounted.
pub const COUNTERS_FOLDER: &str = "counters";
/// The counters file, which the tenant writes ([`aliquot_region::counters`]).
pub const COUNTERS: &str = "counters/slots";
/// The folder of the limiter and the shim libraries; only in the directory of a container with the
/// limiter, added last.
pub const LIB: &str = "lib";
pub const PRELOAD_LIST: &str = "ld.so.preload";
/// The list of the container's processes, which the monitor writes.
const PROCESSES: &str = "processes";

/// What the container is to free of each device, which the monitor writes if the pod asked for it
/// (`aliquot.dev/burst: yield`).
const CALL_BACK: &str = "call-back";

/// The directory of a container on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDirectory(PathBuf);

impl ContainerDirectory {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn limits(&self) -> PathBuf {
        self.0.join(LIMITS)
    }

    /// Its counters file: only for [`aliquot_region::host`], which believes nothing in it.
    pub fn counters(&self) -> PathBuf {
        self.0.join(COUNTERS)
    }

    /// Its list of processes ([`process_list`]).
    pub fn processes(&self) -> PathBuf {
        self.0.join(PROCESSES)
    }

    /// The file with what it is to free: UUID of the device and bytes, one device a line.
    pub fn call_back(&self) -> PathBuf {
        self.0.join(CALL_BACK)
    }

    pub fn has_limiter(&self) -> bool {
        self.0.join(LIB).is_dir()
    }
}

/// A process of a container on one of its devices: pid in the container, index of the device, bytes
/// as far as the driver reports them.
pub type ListedProcess = (u32, usize, Option<u64>);

/// The content of the list of processes: pid, device and bytes or `unknown`, one process a line.
pub fn process_list(processes: &[ListedProcess]) -> String {
    let mut text = String::new();
    for (pid, device, bytes) in processes {
        let bytes = bytes.map_or_else(|| "unknown".to_owned(), |bytes| bytes.to_string());
        let _ = writeln!(text, "{pid} {device} {bytes}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_processes_one_a_line() {
        let list = process_list(&[(7, 0, Some(1024)), (12, 1, None)]);
        assert_eq!(list, "7 0 1024\n12 1 unknown\n");
    }
}

//! The files of one device below the state directory's `mps`, through which agent and MPS supervisor
//! communicate, and in which the monitor reads which processes are MPS servers.

use std::path::Path;

use aliquot_core::{Mib, Percent};
use serde::{Deserialize, Serialize};

/// Version of these files.
pub const VERSION: u32 = 1;

/// The directory of all specs, `<device>.json`.
pub const SPECS: &str = "specs";
/// The status, in the directory of a device.
pub const STATUS: &str = "status.json";
/// The directory of a daemon's sockets, which its clients have mounted and may write.
pub const PIPE: &str = "pipe";
/// Where the memory is mounted that a daemon and its clients have at `/dev/shm`.
pub const SHM: &str = "shm";

/// The daemon that a device should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonSpec {
    pub v: u32,
    /// The only device that the daemon sees: `GPU-…` or `MIG-…`.
    pub device: String,
    /// The GPU that only the daemon's server may open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<String>,
    /// The most memory that a client may have.
    pub memory: Mib,
    /// The most compute that a client may have.
    pub threads: Percent,
}

impl DaemonSpec {
    /// The same spec with limits of at least these: a client can only lower them. 0 asks for no
    /// more than there is.
    #[must_use]
    pub fn with_at_least(&self, memory: Mib, threads: Percent) -> Self {
        Self {
            memory: self.memory.max(memory),
            threads: self.threads.max(threads),
            ..self.clone()
        }
    }

    /// Whether a daemon with this spec allows clients what `other` asks for.
    pub fn satisfies(&self, other: &Self) -> bool {
        (&self.device, &self.exclusive) == (&other.device, &other.exclusive)
            && self.with_at_least(other.memory, other.threads) == *self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DaemonPhase {
    /// It runs by the spec in the status.
    Running,
    /// It does not run; the text says why.
    Down(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    pub v: u32,
    pub phase: DaemonPhase,
    /// The spec that it runs by.
    pub spec: Option<DaemonSpec>,
    pub daemon: Option<u32>,
    /// Seconds since 1970 at which this daemon started.
    pub since: u64,
    pub restarts: u64,
    /// How often clients lost their server, with or without the daemon.
    pub losses: u64,
    /// How often the fault of one client hit all clients.
    pub faults: u64,
    pub servers: Vec<MpsServer>,
    /// It could not be started for the clients of all users: clients of other users wait while
    /// those of one run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_user: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MpsServer {
    pub pid: u32,
    /// Process ids as the supervisor sees them.
    pub clients: Vec<u32>,
    /// A client faulted, and not all clients have exited since.
    #[serde(default)]
    pub fault: bool,
}

impl DaemonStatus {
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let servers = self.servers.iter().map(|server| server.pid);
        self.daemon.into_iter().chain(servers)
    }
}

/// The statuses of all daemons below `root` that can be read.
pub fn statuses(root: &Path) -> impl Iterator<Item = DaemonStatus> {
    let directories = std::fs::read_dir(root).into_iter().flatten().flatten();
    directories.filter_map(|directory| {
        let text = std::fs::read(directory.path().join(STATUS)).ok()?;
        serde_json::from_slice(&text).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mps_status_matches_golden_file() {
        let golden = include_str!("mps_status.golden.json").trim_end();
        let status: DaemonStatus = serde_json::from_str(golden).expect("read");
        assert_eq!(serde_json::to_string(&status).expect("json"), golden);
        let spec = status.spec.as_ref().expect("a spec");
        assert_eq!((spec.memory, spec.threads), (Mib(10_240), Percent(25)));
        assert_eq!(status.phase, DaemonPhase::Running);
        let counts = [status.restarts, status.losses, status.faults];
        assert_eq!(counts, [1, 2, 3]);
        assert_eq!(status.servers[0].clients, [9, 10]);
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("GPU-a")).expect("made");
        std::fs::create_dir(root.path().join(SPECS)).expect("made");
        std::fs::write(root.path().join("GPU-a").join(STATUS), golden).expect("written");
        let found: Vec<DaemonStatus> = statuses(root.path()).collect();
        assert_eq!(found, [status]);
        assert_eq!(found[0].processes().collect::<Vec<_>>(), [7, 8]);
        let down = DaemonPhase::Down("why".to_owned());
        let down = serde_json::to_string(&down).expect("json");
        assert_eq!(down, r#"{"down":"why"}"#);
    }
}

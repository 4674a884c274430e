//! Where the agent finds and stores files on its node.

use std::path::PathBuf;

/// The host's root, for a process in the host's PID namespace.
pub const HOST: &str = "/proc/1/root";
/// Paths on this node.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The kubelet's device-plugins directory.
    pub plugins: PathBuf,
    /// The kubelet's device checkpoint.
    pub checkpoint: PathBuf,
    /// Where our CDI specs go.
    pub cdi: PathBuf,
    /// Where NVIDIA's CDI specs are.
    pub nvidia_cdi: SpecFolders,
    /// One file for each accepted pod.
    pub accepted: PathBuf,
    /// The stored layout of the GPUs.
    pub layout: PathBuf,
    /// The GPUs on which the monitor does not correct compute shares.
    pub uncorrected: PathBuf,
    /// The GPUs with processes whose memory the driver does not report to the monitor.
    pub unmeasured: PathBuf,
    /// The container directories, by answer name.
    pub container_directories: PathBuf,
    /// Where an earlier release preallocated container directories.
    pub preallocated: PathBuf,
    /// One directory for each version of the limiter.
    pub limiter: PathBuf,
    /// One directory for each version of the OCI hook, which the host runs.
    pub programs: PathBuf,
    /// Pipes and desired states of MPS daemons.
    pub mps: PathBuf,
    /// Where the driver lists the device nodes of MIG instances.
    pub capabilities: PathBuf,
    /// The kernel's list of device drivers and their major numbers.
    pub proc_devices: PathBuf,
    /// Where the driver's files are, if not on the host itself.
    pub driver_root: Option<DriverRoot>,
}

/// Where NVIDIA's CDI specs are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecFolders {
    /// The folder with the spec that the agent generated; no runtime reads it.
    pub generated: PathBuf,
    /// Folders that the runtime reads; a later one takes precedence, as with CDI.
    pub directories: Vec<PathBuf>,
    /// The host's root, below which the files are that specs name.
    pub host_root: PathBuf,
}

/// Where the driver's files are: on the host itself, or below a root of their own, such as that of a
/// driver container. CDI specs name only the host's paths: the container runtime knows no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverRoot {
    /// Its path in this container.
    pub here: PathBuf,
    /// Its path on the host.
    pub host: PathBuf,
}

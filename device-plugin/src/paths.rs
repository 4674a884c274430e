//! Where the agent finds and stores files on its node.

use std::path::PathBuf;

/// The host's root, for a process in the host's PID namespace.
pub const HOST: &str = "/proc/1/root";
#[derive(Clone, Debug)]
pub struct Paths {
    /// The kubelet's device-plugins directory.
    pub plugins: PathBuf,
    pub checkpoint: PathBuf,
    /// Where our CDI specs go.
    pub cdi: PathBuf,
    /// NVIDIA's CDI spec, which the agent generates; no runtime reads it.
    pub driver_spec: PathBuf,
    /// The host's root as this process sees it.
    pub host_root: PathBuf,
    /// One file for each accepted pod.
    pub accepted: PathBuf,
    /// The stored layout of the GPUs.
    pub layout: PathBuf,
    /// The GPUs on which the monitor does not correct compute shares.
    pub uncorrected: PathBuf,
    /// The GPUs with processes whose memory the driver does not report to the monitor.
    pub unmeasured: PathBuf,
    /// The memory that processes outside every share hold; `None`: it is not published.
    pub unmanaged: Option<PathBuf>,
    /// The container directories, by answer name.
    pub container_directories: PathBuf,
    /// One directory for each version of the limiter.
    pub limiter: PathBuf,
    /// One directory for each version of the OCI hook, which the host runs.
    pub programs: PathBuf,
    /// NVIDIA's programs of our image, which the host runs.
    pub toolkit: PathBuf,
    /// Pipes and desired states of MPS daemons.
    pub mps: PathBuf,
    /// Where the driver lists the device nodes of MIG instances.
    pub capabilities: PathBuf,
    /// The kernel's list of device drivers and their major numbers.
    pub proc_devices: PathBuf,
    /// Where the driver's files are, if not on the host itself.
    pub driver_root: Option<DriverRoot>,
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

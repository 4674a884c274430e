//! The MPS supervisor: `aliquot-device-plugin mps-supervisor`, in a pod of its own. It gives each
//! device with a spec its daemon, and restores each device without one.
//!
//! The daemons are its children: the end of its container ends them all, and the next supervisor ends
//! what is left of them before it starts new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aliquot_core::Mib;
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::ComputeModes;
use clap::Parser;
use tokio_util::sync::CancellationToken;

use super::control::MpsControl;
use super::daemon::SupervisedDaemon;
use super::directory::{self, DaemonDirectory};
use super::program::ProgramSearch;

const POLL: Duration = Duration::from_millis(250);
/// Where the driver's root is if none is set: the host's own, and that of a driver container. For a
/// process in the host's PID namespace.
const ROOTS: [&str; 2] = ["/proc/1/root", "/proc/1/root/run/nvidia/driver"];

/// Runs the MPS daemons of this node; run it beside the agent.
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-device-plugin mps-supervisor", version, about)]
pub struct SupervisorSettings {
    /// The agent's --state-dir, mounted at the same path, where mounts reach the container runtime
    #[arg(long, env = "ALIQUOT_STATE_DIR", default_value = "/var/lib/aliquot")]
    pub state_dir: PathBuf,
    /// NVML library to load
    #[arg(
        long,
        env = "ALIQUOT_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1"
    )]
    pub nvml_library: PathBuf,
    /// Where the driver's files are in this container; a library without a path is searched below
    /// it
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// NVIDIA's program that runs the daemon and talks to it: a path, or a name, which is searched on
    /// PATH and then below --driver-root, or without it below the host's root and /run/nvidia/driver
    #[arg(
        long,
        env = "ALIQUOT_MPS_CONTROL",
        default_value = "nvidia-cuda-mps-control"
    )]
    pub mps_control: PathBuf,
    /// MiB of memory at /dev/shm of each daemon and its clients; without it half of the node's
    /// memory
    #[arg(long, env = "ALIQUOT_MPS_SHM_SIZE",
          value_parser = clap::value_parser!(u64).range(1..=16_777_216))]
    pub shm_size: Option<u64>,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_device_plugin=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

/// How to run the control program by these settings.
fn control(settings: &SupervisorSettings) -> MpsControl {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let roots = match &settings.driver_root {
        Some(root) => vec![root.clone()],
        None => ROOTS.map(PathBuf::from).to_vec(),
    };
    MpsControl {
        program: ProgramSearch {
            program: settings.mps_control.clone(),
            path: std::env::split_paths(&path).collect(),
            roots,
            libraries: StateDirectory(&settings.state_dir).mps().join("driver"),
        },
        shm_size: settings.shm_size.map(Mib),
    }
}

/// Supervises the devices until `stop`. Blocks.
pub fn run(
    settings: &SupervisorSettings,
    driver: &Arc<dyn ComputeModes>,
    stop: &CancellationToken,
) {
    let root = StateDirectory(&settings.state_dir).mps();
    let control = control(settings);
    let mut running: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    while !stop.is_cancelled() {
        running.retain(|_, thread| !thread.is_finished());
        for device in devices(&root) {
            running.entry(device).or_insert_with_key(|device| {
                let (directory, control) = (DaemonDirectory::new(&root, device), control.clone());
                let (driver, stop) = (Arc::clone(driver), stop.clone());
                std::thread::spawn(move || supervise(directory, &control, driver.as_ref(), &stop))
            });
        }
        std::thread::park_timeout(POLL);
    }
    for (_, thread) in running {
        // A panic has been logged by its thread.
        let _ = thread.join();
    }
}

fn supervise(
    directory: DaemonDirectory,
    control: &MpsControl,
    driver: &dyn ComputeModes,
    stop: &CancellationToken,
) {
    let mut device = SupervisedDaemon::new(directory, control, driver);
    while !stop.is_cancelled() && !device.step() {
        std::thread::park_timeout(POLL);
    }
}

fn devices(root: &Path) -> BTreeSet<String> {
    directory::devices(root).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the specs of the MPS daemons");
        BTreeSet::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &[&str]) -> Result<SupervisorSettings, String> {
        let line = ["mps-supervisor"].iter().chain(flags);
        SupervisorSettings::try_parse_from(line).map_err(|error| error.to_string())
    }

    #[test]
    fn searches_control_program_below_driver_root_or_host() {
        let roots = |flags: &[&str]| control(&parsed(flags).expect("good flags")).program.roots;
        let host = ["/proc/1/root", "/proc/1/root/run/nvidia/driver"];
        assert_eq!(roots(&[]), host.map(PathBuf::from));
        let own = roots(&["--driver-root=/driver-root"]);
        assert_eq!(own, [PathBuf::from("/driver-root")]);
    }
}

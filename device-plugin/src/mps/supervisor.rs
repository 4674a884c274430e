//! The MPS supervisor: `aliquot-device-plugin mps-keeper`, a container beside the agent's. It gives
//! each device with a spec its daemon, and restores each device without one.
//!
//! When it exits it ends no daemon; the next supervisor takes them over.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aliquot_nvml::ComputeModes;
use clap::Parser;
use tokio_util::sync::CancellationToken;

use super::control::MpsControl;
use super::daemon::SupervisedDaemon;
use super::directory::{self, DaemonDirectory};

/// The interval at which specs and daemons are polled.
const POLL: Duration = Duration::from_millis(250);

/// Runs the MPS daemons of this node; run it beside the agent.
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-device-plugin mps-keeper", version, about)]
pub struct SupervisorSettings {
    /// The agent's --state-dir, mounted at the same path
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
    /// NVIDIA's program that runs the daemon and talks to it
    #[arg(
        long,
        env = "ALIQUOT_MPS_CONTROL",
        default_value = "nvidia-cuda-mps-control"
    )]
    pub mps_control: PathBuf,
    /// Arguments of a daemon besides -d
    #[arg(long, env = "ALIQUOT_MPS_ARGUMENTS", value_delimiter = ' ')]
    pub mps_arguments: Vec<OsString>,
    /// The host directory that is mounted at /dev/shm in this container; clients get it there too
    #[arg(long, env = "ALIQUOT_MPS_SHM_DIR")]
    pub shm_dir: Option<PathBuf>,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_device_plugin=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

/// Where the directories of the devices are in the agent's state.
pub fn root(state: &Path) -> PathBuf {
    state.join("mps")
}

/// Supervises the devices until `stop`. Blocks.
pub fn run(
    settings: &SupervisorSettings,
    driver: &Arc<dyn ComputeModes>,
    stop: &CancellationToken,
) {
    let root = root(&settings.state_dir);
    let control = MpsControl {
        program: settings.mps_control.clone(),
        arguments: settings.mps_arguments.clone(),
        shm: settings.shm_dir.clone(),
    };
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

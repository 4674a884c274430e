//! The keeper: `aliquot-device-plugin mps-keeper`, a container beside the agent's. It gives each
//! wished unit its daemon and each unit without a wish its state of before.
//!
//! Fed by: the folders of the units. Must not: end a daemon when it ends itself; the next keeper
//! goes on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aliquot_nvml::ComputeModes;
use clap::Parser;
use tokio_util::sync::CancellationToken;

use super::control::Control;
use super::folder::{self, Folder};
use super::unit::Unit;

/// Between two looks at wishes and daemons.
const LOOK: Duration = Duration::from_millis(250);

/// Keeps the MPS daemons of this node; run it beside the agent.
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-device-plugin mps-keeper", version, about)]
pub struct Settings {
    /// The agent's --state-dir, under the same path
    #[arg(long, env = "ALIQUOT_STATE_DIR", default_value = "/var/lib/aliquot")]
    pub state_dir: PathBuf,
    /// NVML library to load
    #[arg(
        long,
        env = "ALIQUOT_NVML_LIBRARY",
        default_value = "libnvidia-ml.so.1"
    )]
    pub nvml_library: PathBuf,
    /// Where the driver's files are, seen from here; a library without a path is looked for below it
    #[arg(long, env = "ALIQUOT_DRIVER_ROOT")]
    pub driver_root: Option<PathBuf>,
    /// NVIDIA's program that is the daemon and talks to it
    #[arg(
        long,
        env = "ALIQUOT_MPS_CONTROL",
        default_value = "nvidia-cuda-mps-control"
    )]
    pub mps_control: PathBuf,
    /// What daemons are started with besides -d
    #[arg(long, env = "ALIQUOT_MPS_ARGUMENTS", value_delimiter = ' ')]
    pub mps_arguments: Vec<OsString>,
    /// The host's folder that is at /dev/shm in this container; clients get it there too
    #[arg(long, env = "ALIQUOT_MPS_SHM_DIR")]
    pub shm_dir: Option<PathBuf>,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_device_plugin=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

/// Where the folders of the units are, in the agent's state.
pub fn root(state: &Path) -> PathBuf {
    state.join("mps")
}

/// Tends the units until `stop`. Blocks.
pub fn run(settings: &Settings, driver: &Arc<dyn ComputeModes>, stop: &CancellationToken) {
    let root = root(&settings.state_dir);
    let control = Control {
        program: settings.mps_control.clone(),
        arguments: settings.mps_arguments.clone(),
        shm: settings.shm_dir.clone(),
    };
    let mut tended: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    while !stop.is_cancelled() {
        tended.retain(|_, thread| !thread.is_finished());
        for unit in units(&root) {
            tended.entry(unit).or_insert_with_key(|unit| {
                let (folder, control) = (Folder::new(&root, unit), control.clone());
                let (driver, stop) = (Arc::clone(driver), stop.clone());
                std::thread::spawn(move || tend(folder, &control, driver.as_ref(), &stop))
            });
        }
        std::thread::park_timeout(LOOK);
    }
    for (_, thread) in tended {
        // A thread that panicked said so.
        let _ = thread.join();
    }
}

fn tend(folder: Folder, control: &Control, driver: &dyn ComputeModes, stop: &CancellationToken) {
    let mut unit = Unit::new(folder, control, driver);
    while !stop.is_cancelled() && !unit.step() {
        std::thread::park_timeout(LOOK);
    }
}

fn units(root: &Path) -> BTreeSet<String> {
    folder::units(root).unwrap_or_else(|error| {
        tracing::warn!(%error, "the wishes for MPS daemons cannot be read");
        BTreeSet::new()
    })
}

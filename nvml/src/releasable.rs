//! The driver of a process that may have it open only while no other process of the node agent needs it
//! alone, and that starts before the driver is loaded.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError as Cause;
use parking_lot::{Mutex, RwLock};

use crate::access::{DriverAccess, DriverUse};
use crate::driver::{Nvml, Options, REOPEN_INTERVAL};
use crate::error::NvmlError;
use crate::facts::DriverInventory;
use crate::limits::{CgroupLimits, LimitError, MemoryLimit, MemoryLimits};
use crate::processes::GpuProcess;
use crate::root;
use crate::usage::{DeviceMemory, GpuUtilization, ProcessUtilization, Usage};

/// A driver that could not be opened is tried again after this.
const RETRY: Duration = Duration::from_secs(2);

/// NVML, open or not. Calls fail with [`NvmlError::Closed`] while it is closed.
pub struct ReleasableNvml {
    library: PathBuf,
    root: Option<PathBuf>,
    access: DriverAccess,
    open: RwLock<Option<OpenNvml>>,
    /// Why it could not be opened, and when.
    failed: Mutex<Option<(Instant, String)>>,
    /// The driver has said so of a GPU since the last use began.
    is_gpu_lost: AtomicBool,
    /// When it was last opened again for that.
    reopened: Mutex<Option<Instant>>,
}

/// In the order in which they are dropped: the driver is reported as closed only after NVML is.
struct OpenNvml {
    nvml: Nvml,
    driver_use: DriverUse,
}

#[derive(Debug, thiserror::Error)]
pub enum ClosedReason {
    #[error("the node agent changes the MIG mode of a GPU")]
    Requested,
    #[error("{0}")]
    Failed(String),
    #[error(
        "cannot lock the files in the state directory that record who has the driver open: {0}"
    )]
    Lock(#[from] std::io::Error),
}

impl ReleasableNvml {
    /// The closed driver of this library, which is searched below `root` if it has no path.
    pub fn new(library: &Path, root: Option<&Path>, access: DriverAccess) -> Self {
        Self {
            library: library.to_owned(),
            root: root.map(Path::to_owned),
            access,
            open: RwLock::new(None),
            failed: Mutex::new(None),
            is_gpu_lost: AtomicBool::new(false),
            reopened: Mutex::new(None),
        }
    }

    /// Opens the driver, or closes it while another process needs it alone; now and then also closes
    /// and opens it while a GPU is lost. Called before each use. Blocks.
    pub fn open_or_release(&self) -> Result<(), ClosedReason> {
        let mut open = self.open.write();
        if self.access.is_requested()? {
            *open = None;
            return Err(ClosedReason::Requested);
        }
        if self.is_reopening_due() {
            *open = None;
        }
        if let Some(open) = &mut *open {
            if !open.driver_use.is_registered()
                && let Some(registered) = self.access.join()?
            {
                open.driver_use = registered;
            }
            return Ok(());
        }
        let mut failed = self.failed.lock();
        if let Some((when, why)) = failed.as_ref()
            && when.elapsed() < RETRY
        {
            return Err(ClosedReason::Failed(why.clone()));
        }
        let driver_use = self.access.join()?.ok_or(ClosedReason::Requested)?;
        match self.open_nvml() {
            Ok(nvml) => {
                *failed = None;
                *open = Some(OpenNvml { nvml, driver_use });
                Ok(())
            }
            Err(error) => {
                *failed = Some((Instant::now(), error.to_string()));
                Err(ClosedReason::Failed(error.to_string()))
            }
        }
    }

    /// Whether to look anew at a lost GPU: one that was reset or put back since may be reported as lost
    /// for as long as NVML stays initialised.
    fn is_reopening_due(&self) -> bool {
        if !self.is_gpu_lost.swap(false, Ordering::Relaxed) {
            return false;
        }
        let mut reopened = self.reopened.lock();
        let is_due = reopened.is_none_or(|last| last.elapsed() >= REOPEN_INTERVAL);
        if is_due {
            *reopened = Some(Instant::now());
        }
        is_due
    }

    fn open_nvml(&self) -> Result<Nvml, NvmlError> {
        Nvml::open(Options {
            library: root::library(&self.library, self.root.as_deref())?,
            ..Options::default()
        })
    }

    fn call<T>(&self, call: impl FnOnce(&Nvml) -> Result<T, NvmlError>) -> Result<T, NvmlError> {
        let called = match &*self.open.read() {
            Some(open) => call(&open.nvml),
            None => Err(NvmlError::Closed),
        };
        if called.as_ref().is_err_and(NvmlError::is_gpu_lost) {
            self.is_gpu_lost.store(true, Ordering::Relaxed);
        }
        called
    }

    fn call_limits<T>(
        &self,
        (step, gpu, cgroup): (&'static str, &str, &Path),
        call: impl FnOnce(&Nvml) -> Result<T, LimitError>,
    ) -> Result<T, LimitError> {
        match &*self.open.read() {
            Some(open) => call(&open.nvml),
            None => Err(LimitError::Step {
                step,
                cgroup: cgroup.display().to_string(),
                gpu: gpu.to_owned(),
                source: Cause::Uninitialized,
            }),
        }
    }
}

impl Usage for ReleasableNvml {
    fn gpus(&self) -> Result<DriverInventory, NvmlError> {
        self.call(Nvml::gpus)
    }

    fn processes(&self, gpu: &str) -> Result<Vec<GpuProcess>, NvmlError> {
        self.call(|nvml| nvml.processes(gpu))
    }

    fn utilization(&self, gpu: &str) -> Result<GpuUtilization, NvmlError> {
        self.call(|nvml| nvml.utilization(gpu))
    }

    fn memory(&self, uuid: &str) -> Result<DeviceMemory, NvmlError> {
        self.call(|nvml| nvml.memory(uuid))
    }

    fn process_utilization(
        &self,
        gpu: &str,
        since: u64,
    ) -> Result<Option<Vec<ProcessUtilization>>, NvmlError> {
        self.call(|nvml| nvml.process_utilization(gpu, since))
    }
}

impl MemoryLimits for ReleasableNvml {
    fn limit_memory(
        &self,
        gpu: &str,
        cgroup: &Path,
        limits: CgroupLimits,
    ) -> Result<(), LimitError> {
        let step = ("set", gpu, cgroup);
        self.call_limits(step, |nvml| nvml.limit_memory(gpu, cgroup, limits))
    }

    fn memory_limit(&self, gpu: &str, cgroup: &Path) -> Result<MemoryLimit, LimitError> {
        let step = ("read", gpu, cgroup);
        self.call_limits(step, |nvml| nvml.memory_limit(gpu, cgroup))
    }
}

//! What Aliquot asks of the NVIDIA driver, behind one trait, and its implementation over NVML
//! (`libnvidia-ml.so.1`).

#![allow(missing_docs, reason = "the names say what most parts are")]

mod access;
mod calls;
mod compute_mode;
mod driver;
mod error;
mod events;
mod fabric;
mod facts;
mod inventory;
mod limits;
mod links;
mod mig;
mod processes;
mod releasable;
pub mod root;
mod usage;
mod xid;

use std::time::Duration;

pub use access::{DriverAccess, DriverUse, ExclusiveAccess};
pub use compute_mode::{ComputeMode, ComputeModes, NvmlPerCall};
pub use driver::{DEFAULT_LIBRARY, Nvml, Options};
pub use error::NvmlError;
pub use facts::{
    DeviceHealth, DriverHealth, DriverInventory, GpuEvent, GpuFacts, Note, RecordedError,
    UnfinishedRegistration,
};
pub use limits::{CgroupLimits, LimitError, MemoryLimit, MemoryLimits, may_limit_memory};
pub use mig::{Activation, GpuInstance, MigDevice, MigError, MigLayout, MigMode};
pub use processes::GpuProcess;
pub use releasable::{ClosedReason, ReleasableNvml};
pub use usage::{DeviceMemory, GpuUtilization, ProcessUtilization, Usage};
pub use xid::{XidAction, XidActions, XidActionsError};

/// Queries and commands to the driver. Calls block: run them on a blocking thread.
pub trait Driver: Send + Sync {
    /// All GPUs, ordered by index. A GPU that fell off the bus is reported as it last answered; one
    /// that never answered appears only in the notes.
    fn inventory(&self) -> Result<DriverInventory, NvmlError>;

    /// The health of each GPU and MIG instance of the last inventory (taken here if there is none).
    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError>;

    /// Waits for events; returns an empty list after the timeout. One caller waits at a time, others
    /// queue. Events between two calls are not lost.
    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError>;

    /// Clears the recorded errors of a GPU and its MIG instances, or of one instance, on the
    /// administrator's request. A recovery that the driver requests still counts.
    fn clear_errors(&self, _uuid: &str) {}

    /// The recorded errors of GPUs and MIG instances.
    fn errors(&self) -> Vec<RecordedError> {
        Vec::new()
    }

    /// Records errors that another process recorded, of GPUs of the last inventory.
    fn restore_errors(&self, _errors: Vec<RecordedError>) {}

    /// MPS clients of a device: process ids in this PID namespace, and bytes allocated.
    fn mps_clients(&self, _uuid: &str) -> Result<Vec<(u32, u64)>, NvmlError> {
        Ok(Vec::new())
    }

    /// The current MIG layout of a GPU. Fails, like all MIG calls, if the driver has no MIG.
    fn mig_layout(&self, gpu: &str) -> Result<MigLayout, MigError> {
        Err(MigError::none(gpu))
    }

    /// Switches MIG mode. All instances must be destroyed before it is switched off.
    fn set_mig(&self, gpu: &str, _on: bool) -> Result<Activation, MigError> {
        Err(MigError::none(gpu))
    }

    /// Creates a GPU instance of this profile at memory slice `start`, with one compute instance
    /// that spans it; both or neither.
    fn create_instance(
        &self,
        gpu: &str,
        _profile: &str,
        _start: u8,
    ) -> Result<GpuInstance, MigError> {
        Err(MigError::none(gpu))
    }

    /// Destroys a GPU instance, by the driver's id, and its compute instances. Fails while a process
    /// uses one of them.
    fn destroy_instance(&self, gpu: &str, _id: u32) -> Result<(), MigError> {
        Err(MigError::none(gpu))
    }
}

//! Failures of the whole driver. A failure of one GPU is a note or its health instead.

use std::path::PathBuf;

use nvml_wrapper::error::NvmlError as Cause;

/// A failed step; the cause is NVML's own.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The library is missing, or the driver is not loaded.
    #[error("cannot load and initialise the driver library {library}: {source}")]
    Open {
        /// The library's path or name.
        library: String,
        /// The reason.
        source: Cause,
    },
    /// This process has closed the driver, because another one needs it alone.
    #[error("the driver is closed while another process needs it alone")]
    Closed,
    /// The driver root has no such library.
    #[error("{library} not found in the driver root {}; searched: {}", root.display(), searched.join(", "))]
    NotInRoot {
        /// Its name.
        library: String,
        /// The root, as mounted here.
        root: PathBuf,
        /// The folders below it that were searched.
        searched: &'static [&'static str],
    },
    /// The driver's version cannot be read.
    #[error("cannot read the driver's version: {0}")]
    DriverVersion(#[source] Cause),
    /// The GPUs cannot be counted.
    #[error("cannot count the GPUs: {0}")]
    Count(#[source] Cause),
    /// An event set cannot be created.
    #[error("cannot create an event set: {0}")]
    EventSet(#[source] Cause),
    /// NVML cannot be initialised again.
    #[error("cannot initialise the driver library again for a lost GPU: {0}")]
    Reopen(#[source] Cause),
    /// The processes on a GPU cannot be listed.
    #[error("cannot list the processes on {uuid}: {source}")]
    Processes {
        /// The GPU.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// The use of a device cannot be read.
    #[error("cannot read the {what} of {uuid}: {source}")]
    Usage {
        /// "utilization", "memory" or "process utilization".
        what: &'static str,
        /// The device.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// A GPU's compute mode cannot be read or set.
    #[error("cannot {step} the compute mode of {uuid}: {source}")]
    ComputeMode {
        /// "read" or "set".
        step: &'static str,
        /// The GPU.
        uuid: String,
        /// The reason.
        source: Cause,
    },
    /// The wait for events failed.
    #[error("cannot wait for events: {0}")]
    Wait(#[source] Cause),
}

impl NvmlError {
    /// Whether the driver says that the GPU is lost.
    pub(crate) fn is_gpu_lost(&self) -> bool {
        let (Self::Processes { source, .. } | Self::Usage { source, .. }) = self else {
            return false;
        };
        matches!(source, Cause::GpuLost)
    }
}

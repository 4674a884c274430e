//! Failures of the whole driver. A failure of one GPU is a note or its health instead.

use std::path::PathBuf;

use nvml_wrapper::error::NvmlError as Cause;

/// A failed step; the cause is NVML's own.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    #[error("cannot load and initialise the driver library {library}: {source}")]
    Open { library: String, source: Cause },
    /// This process has closed the driver, because another one needs it alone.
    #[error("the driver is closed while another process needs it alone")]
    Closed,
    #[error("{library} not found in the driver root {}; searched: {}", root.display(), searched.join(", "))]
    NotInRoot {
        library: String,
        /// The root, as mounted here.
        root: PathBuf,
        /// The folders below it that were searched.
        searched: &'static [&'static str],
    },
    #[error("cannot read the driver's version: {0}")]
    DriverVersion(#[source] Cause),
    #[error("cannot count the GPUs: {0}")]
    Count(#[source] Cause),
    #[error("cannot create an event set: {0}")]
    EventSet(#[source] Cause),
    #[error("cannot initialise the driver library again for a lost GPU: {0}")]
    Reopen(#[source] Cause),
    #[error("cannot list the processes on {uuid}: {source}")]
    Processes { uuid: String, source: Cause },
    #[error("cannot read the {what} of {uuid}: {source}")]
    Usage {
        /// "utilization", "memory" or "process utilization".
        what: &'static str,
        uuid: String,
        source: Cause,
    },
    #[error("cannot {step} the compute mode of {uuid}: {source}")]
    ComputeMode {
        /// "read" or "set".
        step: &'static str,
        uuid: String,
        source: Cause,
    },
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

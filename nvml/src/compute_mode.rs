//! Compute modes of GPUs, for the MPS daemons.

use std::fmt;

use nvml_wrapper::enum_wrappers::device::ComputeMode as Raw;

use crate::driver::{Nvml, Options};
use crate::error::NvmlError;

/// Which processes may have a context on a GPU (`nvmlComputeMode_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any.
    Default,
    /// One thread; removed from newer drivers.
    ExclusiveThread,
    /// None.
    Prohibited,
    /// One process, such as an MPS server with its clients.
    ExclusiveProcess,
}

impl ComputeMode {
    const ALL: [Self; 4] = [
        Self::Default,
        Self::ExclusiveThread,
        Self::Prohibited,
        Self::ExclusiveProcess,
    ];

    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.row().1 == text)
    }

    fn of(raw: Raw) -> Self {
        let found = Self::ALL.into_iter().find(|mode| mode.row().0 == raw);
        found.unwrap_or(Self::Default)
    }

    fn row(self) -> (Raw, &'static str) {
        match self {
            Self::Default => (Raw::Default, "default"),
            Self::ExclusiveThread => (Raw::ExclusiveThread, "exclusive-thread"),
            Self::Prohibited => (Raw::Prohibited, "prohibited"),
            Self::ExclusiveProcess => (Raw::ExclusiveProcess, "exclusive-process"),
        }
    }
}

impl fmt::Display for ComputeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

/// Compute modes by a GPU's uuid. Setting one needs root.
pub trait ComputeModes: Send + Sync {
    fn compute_mode(&self, uuid: &str) -> Result<ComputeMode, NvmlError>;

    /// Sets the mode for every new process; a reboot resets it.
    fn set_compute_mode(&self, uuid: &str, mode: ComputeMode) -> Result<(), NvmlError>;
}

/// Opens NVML for each call only: an open library has the GPUs open and blocks their reset, which
/// some need when MIG is switched.
pub struct NvmlPerCall(Options);

impl NvmlPerCall {
    /// Fails if the library cannot be opened.
    pub fn new(options: Options) -> Result<Self, NvmlError> {
        Nvml::open(options.clone())?;
        Ok(Self(options))
    }
}

impl ComputeModes for NvmlPerCall {
    fn compute_mode(&self, uuid: &str) -> Result<ComputeMode, NvmlError> {
        Nvml::open(self.0.clone())?.compute_mode(uuid)
    }

    fn set_compute_mode(&self, uuid: &str, mode: ComputeMode) -> Result<(), NvmlError> {
        Nvml::open(self.0.clone())?.set_compute_mode(uuid, mode)
    }
}

impl ComputeModes for Nvml {
    fn compute_mode(&self, uuid: &str) -> Result<ComputeMode, NvmlError> {
        let read = || self.library().device_by_uuid(uuid)?.compute_mode();
        let raw = read().map_err(|source| NvmlError::ComputeMode {
            step: "read",
            uuid: uuid.to_owned(),
            source,
        })?;
        Ok(ComputeMode::of(raw))
    }

    fn set_compute_mode(&self, uuid: &str, mode: ComputeMode) -> Result<(), NvmlError> {
        let mut device = self.library().device_by_uuid(uuid);
        let set = match &mut device {
            Ok(device) => device.set_compute_mode(mode.row().0),
            Err(_) => device.map(drop),
        };
        set.map_err(|source| NvmlError::ComputeMode {
            step: "set",
            uuid: uuid.to_owned(),
            source,
        })
    }
}

//! What can fail when a GPU is partitioned: one variant for each step.

use aliquot_core::mig::GeometryError;
use nvml_wrapper::error::NvmlError as Cause;

/// A failed step; the cause is NVML's own.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    /// The GPU does not answer.
    #[error("cannot reach GPU {gpu}: {source}")]
    Unreachable {
        /// Its uuid.
        gpu: String,
        /// The reason.
        source: Cause,
    },
    /// MIG mode cannot be switched.
    #[error("cannot switch MIG {} on GPU {gpu}: {source}", if *on { "on" } else { "off" })]
    Switch {
        /// Its uuid.
        gpu: String,
        /// The desired mode.
        on: bool,
        /// The reason.
        source: Cause,
    },
    /// The profiles cannot be read.
    #[error("cannot read the MIG profiles of GPU {gpu}: {source}")]
    Profiles {
        /// Its uuid.
        gpu: String,
        /// The reason.
        source: Cause,
    },
    /// The reported profiles are inconsistent.
    #[error("the MIG profiles of GPU {gpu} are inconsistent: {source}")]
    Geometry {
        /// Its uuid.
        gpu: String,
        /// What is wrong.
        source: GeometryError,
    },
    /// The current layout cannot be read.
    #[error("cannot read the MIG instances of GPU {gpu}: {source}")]
    Instances {
        /// Its uuid.
        gpu: String,
        /// The reason.
        source: Cause,
    },
    /// The GPU has no such profile.
    #[error("GPU {gpu} has no MIG profile {profile:?}; it has {}", .known.join(", "))]
    NoProfile {
        /// Its uuid.
        gpu: String,
        /// The requested profile.
        profile: String,
        /// The profiles that it has.
        known: Vec<String>,
    },
    /// The slices are in use.
    #[error(
        "cannot create MIG instance {profile} at memory slice {start} of GPU {gpu}: memory or compute slices are in use; expected: a free placement"
    )]
    NoCapacity {
        /// Its uuid.
        gpu: String,
        /// The profile.
        profile: String,
        /// The first memory slice.
        start: u8,
    },
    /// The GPU instance cannot be created.
    #[error("cannot create MIG instance {profile} at memory slice {start} of GPU {gpu}: {source}")]
    Create {
        /// Its uuid.
        gpu: String,
        /// The profile.
        profile: String,
        /// The first memory slice.
        start: u8,
        /// The reason.
        source: Cause,
    },
    /// The compute instance cannot be created; the GPU instance is destroyed again, unless `left`.
    #[error("cannot create the compute instance of {profile} at memory slice {start} of GPU {gpu}: {source}{}", if .left.is_some() { "; its GPU instance could not be destroyed" } else { "" })]
    Compute {
        /// Its uuid.
        gpu: String,
        /// The profile.
        profile: String,
        /// The first memory slice.
        start: u8,
        /// The reason.
        source: Cause,
        /// Why the GPU instance could not be destroyed.
        left: Option<Box<Cause>>,
    },
    /// The GPU has no such instance.
    #[error("GPU {gpu} has no GPU instance {id}")]
    NoInstance {
        /// Its uuid.
        gpu: String,
        /// The driver's id.
        id: u32,
    },
    /// A compute instance cannot be destroyed.
    #[error(
        "cannot destroy the compute instances of GPU instance {gpu_instance} of GPU {gpu}: {source}"
    )]
    DestroyCompute {
        /// Its uuid.
        gpu: String,
        /// The GPU instance.
        gpu_instance: u32,
        /// The reason.
        source: Cause,
    },
    /// A GPU instance cannot be destroyed.
    #[error("cannot destroy GPU instance {id} of GPU {gpu}: {source}")]
    Destroy {
        /// Its uuid.
        gpu: String,
        /// The driver's id.
        id: u32,
        /// The reason.
        source: Cause,
    },
}

impl MigError {
    /// The error of a driver without MIG.
    pub(crate) fn none(gpu: &str) -> Self {
        let gpu = gpu.to_owned();
        let source = Cause::NotSupported;
        Self::Unreachable { gpu, source }
    }

    /// Whether the call failed because a process uses the device.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::Switch {
                source: Cause::InUse,
                ..
            } | Self::DestroyCompute {
                source: Cause::InUse,
                ..
            } | Self::Destroy {
                source: Cause::InUse,
                ..
            }
        )
    }
}

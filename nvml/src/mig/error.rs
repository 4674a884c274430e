//! What can fail when a GPU is partitioned: one variant for each step.

use aliquot_core::mig::GeometryError;
use nvml_wrapper::error::NvmlError as Cause;

/// A failed step; the cause is NVML's own.
#[derive(Debug, thiserror::Error)]
pub enum MigError {
    #[error("cannot reach GPU {gpu}: {source}")]
    Unreachable { gpu: String, source: Cause },
    #[error("cannot switch MIG {} on GPU {gpu}: {source}", if *on { "on" } else { "off" })]
    Switch {
        gpu: String,
        on: bool,
        source: Cause,
    },
    #[error("cannot read the MIG profiles of GPU {gpu}: {source}")]
    Profiles { gpu: String, source: Cause },
    #[error("the MIG profiles of GPU {gpu} are inconsistent: {source}")]
    Geometry { gpu: String, source: GeometryError },
    #[error("cannot read the MIG instances of GPU {gpu}: {source}")]
    Instances { gpu: String, source: Cause },
    #[error("GPU {gpu} has no MIG profile {profile:?}; it has {}", .known.join(", "))]
    NoProfile {
        gpu: String,
        profile: String,
        known: Vec<String>,
    },
    #[error(
        "cannot create MIG instance {profile} at memory slice {start} of GPU {gpu}: memory or compute slices are in use; expected: a free placement"
    )]
    NoCapacity {
        gpu: String,
        profile: String,
        start: u8,
    },
    #[error("cannot create MIG instance {profile} at memory slice {start} of GPU {gpu}: {source}")]
    Create {
        gpu: String,
        profile: String,
        start: u8,
        source: Cause,
    },
    /// The compute instance cannot be created; the GPU instance is destroyed again, unless `left`.
    #[error("cannot create the compute instance of {profile} at memory slice {start} of GPU {gpu}: {source}{}", if .left.is_some() { "; its GPU instance could not be destroyed" } else { "" })]
    Compute {
        gpu: String,
        profile: String,
        start: u8,
        source: Cause,
        /// Why the GPU instance could not be destroyed.
        left: Option<Box<Cause>>,
    },
    #[error("GPU {gpu} has no GPU instance {id}")]
    NoInstance { gpu: String, id: u32 },
    #[error(
        "cannot destroy the compute instances of GPU instance {gpu_instance} of GPU {gpu}: {source}"
    )]
    DestroyCompute {
        gpu: String,
        gpu_instance: u32,
        source: Cause,
    },
    #[error("cannot destroy GPU instance {id} of GPU {gpu}: {source}")]
    Destroy { gpu: String, id: u32, source: Cause },
}

impl MigError {
    /// The error of a driver without MIG.
    pub(crate) fn none(gpu: &str) -> Self {
        let gpu = gpu.to_owned();
        let source = Cause::NotSupported;
        Self::Unreachable { gpu, source }
    }
}

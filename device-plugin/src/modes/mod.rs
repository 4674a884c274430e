//! The sharing modes: what each does to a GPU, and to a container on it. What each advertises is in
//! [`crate::gpus::allocatable`].

use std::path::Path;
use std::sync::Arc;

use aliquot_core::inventory;
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{Grant, PodUid};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::{Driver, DriverAccess, GpuFacts, MigError, NvmlError};
use aliquot_profiles::Mode;
use serde_json::Value;
use thiserror::Error;

use crate::files::FileError;
use crate::gpus::host_device::{HostDevice, InstanceIds};

pub mod mig;
pub mod mps;

/// Switches GPUs into a mode and out of it. Both calls block and are idempotent: they are repeated
/// after a kill at any point of the first attempt, and leave alone what is done already.
pub trait ModeSwitch: Send + Sync {
    /// Sets up the GPU as the settings say. Also called at every start of the agent, for GPUs that
    /// are set up already.
    fn enter(&self, gpu: &GpuFacts, settings: &Mode) -> Result<(), ModeError>;

    /// Undoes what [`Self::enter`] did, as far as it conflicts with the mode that comes next.
    /// Nobody uses the GPU.
    fn leave(&self, gpu: &GpuFacts, settings: &Mode, to: &Mode) -> Result<(), ModeError>;
}

/// Why a GPU cannot change its mode, or a container cannot be set up, now. Both are retried.
#[derive(Debug, Error)]
pub enum ModeError {
    #[error(transparent)]
    Driver(#[from] NvmlError),
    #[error(transparent)]
    Mig(#[from] MigError),
    #[error(transparent)]
    File(#[from] FileError),
    /// The GPU needs an action of the administrator, such as a reset; it is waited for without a
    /// limit.
    #[error("{0}")]
    NeedsAction(String),
    /// Another reason; the text is for the administrator or the pod's user.
    #[error("{0}")]
    Refused(String),
}

/// One grant of a container that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct ContainerGrant<'a> {
    /// The pod, by the kubelet's UID.
    pub pod: &'a PodUid,
    pub container: &'a str,
    pub grant: &'a Grant,
    /// Its index among the container's grants, which is the number of the device in CUDA.
    pub index: usize,
    /// The mode that the device had when the pod was accepted.
    pub mode: inventory::Mode,
    pub device: &'a HostDevice,
    /// The instances of the GPU that others use, under dynamic MIG.
    pub other_instances: &'a [MigPlacement],
}

/// What the sharing modes of its devices need in a container, besides the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModeSetup {
    /// The UUIDs of the devices that the container may use, in the order of the grants.
    pub visible: Vec<String>,
    /// Environment variables, `NAME=value`.
    pub variables: Vec<String>,
    /// Mounts, in CDI's form.
    pub mounts: Vec<Value>,
    /// The limiter enforces a limit; without one it is left out.
    pub limited: bool,
}

pub struct SharingModes {
    plain: NoopSwitch,
    mig: mig::MigPartitioner,
    mps: Arc<mps::MpsDaemons>,
}

impl SharingModes {
    /// `state` is the agent's state directory; each mode has a directory of its own in it.
    pub fn new(driver: &Arc<dyn Driver>, state: &Path) -> Self {
        let mps = Arc::new(mps::MpsDaemons::new(StateDirectory(state).mps()));
        Self {
            plain: NoopSwitch,
            mig: mig::MigPartitioner::new(
                Arc::clone(driver),
                DriverAccess::new(state),
                state.join("mig"),
                Arc::clone(&mps),
            ),
            mps,
        }
    }

    pub fn switch(&self, mode: &Mode) -> &dyn ModeSwitch {
        match mode {
            Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Timeslice(_) | Mode::Unmanaged => {
                &self.plain
            }
            Mode::Mps(_) => &*self.mps,
            Mode::Mig(_) => &self.mig,
        }
    }

    /// Whether MIG instances changed since the last call, so that the driver's facts must be
    /// reread.
    pub fn take_layout_changed(&self) -> bool {
        self.mig.take_layout_changed()
    }

    /// Lowers the limits of MPS daemons for whose largest share no pod is left. `accepted` is all
    /// that is accepted, and nothing more is until this returns. Blocks.
    pub fn lower_mps_limits<'a>(&self, accepted: impl Iterator<Item = &'a AcceptedAllocation>) {
        self.mps.lower(&mps::largest_shares(accepted));
    }

    /// Adds what one grant needs; returns the instance that was created for it. Called at every
    /// start of the container; the same grant needs the same. Blocks.
    pub fn prepare(
        &self,
        share: &ContainerGrant<'_>,
        setup: &mut ModeSetup,
    ) -> Result<Option<InstanceIds>, ModeError> {
        match share.mode {
            inventory::Mode::Vgpu | inventory::Mode::Unknown => {
                setup.limited = true;
                setup.visible.push(share.grant.gpu.to_string());
                // The limits are in the limits page; the variable only informs the user.
                let (place, memory) = (share.index, share.grant.memory_limit().0);
                let variable = format!("CUDA_DEVICE_MEMORY_LIMIT_{place}={memory}m");
                setup.variables.push(variable);
            }
            inventory::Mode::Exclusive | inventory::Mode::Timeslice => {
                setup.visible.push(share.grant.gpu.to_string());
            }
            inventory::Mode::Mps => self.mps.prepare(share, setup)?,
            inventory::Mode::Mig => return self.mig.prepare(share, setup).map(Some),
        }
        Ok(None)
    }
}

/// For modes that need no setup of the GPU.
struct NoopSwitch;

impl ModeSwitch for NoopSwitch {
    fn enter(&self, _: &GpuFacts, _: &Mode) -> Result<(), ModeError> {
        Ok(())
    }

    fn leave(&self, _: &GpuFacts, _: &Mode, _: &Mode) -> Result<(), ModeError> {
        Ok(())
    }
}

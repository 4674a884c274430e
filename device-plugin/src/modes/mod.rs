//! The sharing modes, one file each: what a mode makes of a GPU, and what a container on such a GPU
//! may have and needs. The settings of each mode implement [`SharingMode`].

use std::path::Path;
use std::sync::Arc;

use aliquot_core::inventory::{self, Gpu};
use aliquot_core::mig::published::MigPlacement;
use aliquot_core::{GpuUuid, Grant, Mib, Percent};
use aliquot_node_state::accepted::AcceptedAllocation;
use aliquot_node_state::state::StateDirectory;
use aliquot_nvml::{Driver, DriverAccess, GpuFacts, MigError};
use aliquot_profiles::Mode;
use serde_json::Value;
use thiserror::Error;

use crate::host_device::InstanceIds;
use crate::pods::pod::Container;

mod exclusive;
pub mod mig;
pub mod mps;
mod timeslice;
mod vgpu;

/// A mode, by its settings. [`Self::enter`] and [`Self::leave`] block and are idempotent: after a kill
/// at any point they are repeated, and skip what is already done.
pub trait SharingMode {
    /// The devices that the GPU offers. `whole`: the GPU, or an instance of it, without replicas.
    fn devices(&self, whole: Gpu, gpu: &GpuFacts) -> Vec<Gpu>;

    /// The settings that cannot change while pods use the GPU: all but numbers and names.
    fn setup(&self) -> Option<Mode> {
        None
    }

    /// Whether [`Self::enter`] waits for the MPS supervisor.
    fn needs_mps_supervisor(&self) -> bool {
        false
    }

    /// Sets up the GPU. Also called at every start of the agent, for GPUs that are set up already.
    fn enter(&self, _modes: &SharingModes, _gpu: &GpuFacts) -> Result<(), ModeError> {
        Ok(())
    }

    /// Undoes what [`Self::enter`] did, as far as it conflicts with the mode that comes next.
    /// Nobody uses the GPU.
    fn leave(&self, _modes: &SharingModes, _gpu: &GpuFacts, _to: &Mode) -> Result<(), ModeError> {
        Ok(())
    }

    /// What containers on this device may have of the driver; `None`: what their images ask for.
    fn capabilities(&self, _device: &Gpu) -> Option<Capabilities> {
        None
    }

    /// Whether it enforces amounts of memory and compute, of which a node has a capacity.
    fn enforces_amounts(&self) -> bool {
        true
    }

    /// Whether the share of a running container can be resized.
    fn is_resizable(&self) -> bool {
        false
    }

    /// Why a container may not have a grant; the text is for the pod's user.
    fn validate(&self, _asked: &RequestedGrant<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Adds what a container needs of one device: by default the device, without limits.
    fn edits(&self, share: &ContainerGrant<'_>, setup: &mut ModeSetup) {
        setup.show(share.grant.gpu.as_str(), share.grant.clone());
    }

    /// Prepares one device for a container, and adds what that needs of it. Returns the instance
    /// that was created for it. Called at every start of the container; for the same grant it adds
    /// the same. Blocks.
    fn prepare(
        &self,
        _modes: &SharingModes,
        share: &ContainerGrant<'_>,
        setup: &mut ModeSetup,
    ) -> Result<Option<InstanceIds>, ModeError> {
        self.edits(share, setup);
        Ok(None)
    }
}

pub fn of(mode: &Mode) -> &dyn SharingMode {
    match mode {
        Mode::Vgpu(settings) => settings,
        Mode::Exclusive(settings) => settings,
        Mode::Timeslice(settings) => settings,
        Mode::Mps(settings) => settings,
        Mode::Mig(settings) => settings,
        Mode::Unmanaged => &Unmanaged,
    }
}

/// The mode of a device, for what depends on no settings of its profile. Where it is unknown, what
/// was allocated is enforced.
pub fn of_device(mode: inventory::Mode) -> &'static dyn SharingMode {
    match mode {
        inventory::Mode::Vgpu | inventory::Mode::Unknown => &vgpu::ANY,
        inventory::Mode::Exclusive => &exclusive::ANY,
        inventory::Mode::Timeslice => &timeslice::ANY,
        inventory::Mode::Mps => &mps::ANY,
        inventory::Mode::Mig => &mig::ANY,
    }
}

/// The GPU is not advertised, and left as it is.
struct Unmanaged;

impl SharingMode for Unmanaged {
    fn devices(&self, _: Gpu, _: &GpuFacts) -> Vec<Gpu> {
        Vec::new()
    }
}

/// Why a GPU cannot change its mode now, or a container cannot be set up now.
#[derive(Debug, Error)]
pub enum ModeError {
    #[error(transparent)]
    Mig(#[from] MigError),
    #[error(transparent)]
    Daemon(#[from] mps::directory::DaemonDirectoryError),
    /// The GPU needs an action of the administrator, such as a reset; the agent waits for it
    /// without a limit.
    #[error("{0}")]
    NeedsAction(String),
    /// Another reason, which may be over at the next attempt; the text is for the administrator or
    /// the pod's user.
    #[error("{0}")]
    Failed(String),
    /// The GPU cannot give a container what it was allocated; the text is for the pod's user.
    #[error("{1}")]
    Refused(GpuUuid, String),
}

/// What a container may have of the driver besides compute and utility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    pub graphics: bool,
    pub video: bool,
}

/// One grant of a container whose pod is to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct RequestedGrant<'a> {
    pub container: &'a Container,
    pub grant: &'a Grant,
    /// The container has no other one.
    pub alone: bool,
    pub device: &'a Gpu,
}

impl RequestedGrant<'_> {
    /// The error of a mode in which a grant without amounts would be unlimited.
    fn require_amounts(&self) -> Result<(), String> {
        let even = self.device.even_share;
        if has_amounts(self.grant) || even.is_some_and(|even| even.memory == Mib(0)) {
            return Ok(());
        }
        Err(format!(
            "the pod's allocation of {} has no amounts (timeslice), but the GPU's sharing mode now requires amounts: delete the pod and create it again",
            self.grant.gpu
        ))
    }
}

fn has_amounts(grant: &Grant) -> bool {
    (grant.memory, grant.cores) != (Mib(0), Percent(0))
}

/// One grant of a container that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct ContainerGrant<'a> {
    pub grant: &'a Grant,
    /// The device as it is published now.
    pub device: Option<&'a Gpu>,
    /// The instances of the GPU that others use, under dynamic MIG.
    pub other_instances: &'a [MigPlacement],
}

/// What the sharing modes of its devices need in a container, besides the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModeSetup {
    /// The UUIDs of the devices that the container may use, in the order of the grants.
    pub visible: Vec<String>,
    /// What its limits page and environment show of the grants.
    pub shown: Vec<Grant>,
    /// Environment variables, `NAME=value`.
    pub variables: Vec<String>,
    /// Mounts, in CDI's form.
    pub mounts: Vec<Value>,
    /// The limiter enforces a limit; without one it is left out.
    pub limited: bool,
    /// The GPUs whose memory the driver is to limit.
    pub limited_by_driver: Vec<String>,
}

impl ModeSetup {
    /// Shows the container one more device, with this grant.
    fn show(&mut self, uuid: &str, grant: Grant) {
        self.visible.push(uuid.to_owned());
        self.shown.push(grant);
    }

    /// Has the driver limit the memory of this device, too; a MIG instance limits it itself.
    fn limit_by_driver(&mut self, device: &GpuUuid) {
        if !device.as_str().starts_with("MIG-") {
            self.limited_by_driver.push(device.to_string());
        }
    }
}

/// What several GPUs or containers share in a mode.
pub struct SharingModes {
    mig: mig::MigPartitioner,
    mps: Arc<mps::MpsDaemons>,
}

impl SharingModes {
    /// `state` is the agent's state directory; each mode has a directory of its own in it.
    pub fn new(driver: &Arc<dyn Driver>, state: &Path) -> Self {
        let mps = Arc::new(mps::MpsDaemons::new(StateDirectory(state).mps()));
        Self {
            mig: mig::MigPartitioner::new(
                Arc::clone(driver),
                DriverAccess::new(state),
                state.join("mig"),
                Arc::clone(&mps),
            ),
            mps,
        }
    }

    /// Whether MIG instances changed since the last call, so that the driver's facts must be
    /// reread.
    pub fn take_layout_changed(&self) -> bool {
        self.mig.take_layout_changed()
    }

    /// The GPU of an instance of a layout, which may be gone since.
    pub fn gpu_of_instance(&self, uuid: &GpuUuid) -> Option<GpuUuid> {
        self.mig.gpu_of_instance(uuid.as_str())
    }

    /// [`mps::MpsDaemons::lower`].
    pub fn lower_mps_limits<'a>(&self, accepted: impl Iterator<Item = &'a AcceptedAllocation>) {
        self.mps.lower(accepted);
    }
}

//! The ways to share a card: what each does to a card, and to a container on it.
//!
//! Fed by: a card's facts and settings, a container's grants. Must not: decide which mode a card
//! has ([`crate::units`] is told), or book.

use std::path::Path;
use std::sync::Arc;

use aliquot_core::inventory;
use aliquot_core::mig::published::Placed;
use aliquot_core::{Grant, PodUid};
use aliquot_nvml::{CardFacts, Driver, MigError, NvmlError};
use aliquot_profiles::Mode;
use serde_json::Value;
use thiserror::Error;

use crate::files::FileError;
use crate::host::{Card, Part};
use crate::mps::keeper;

pub mod exclusive;
pub mod mig;
pub mod mps;
pub mod timeslice;
pub mod vgpu;

/// Brings cards into a mode and out of it. Both calls block, and both are asked again after a
/// kill at any point of the first try: what is done already is left as it is.
pub trait Switch: Send + Sync {
    /// Makes the card what the settings say. Also asked of a card that is so already, at every
    /// start of the agent.
    fn enter(&self, card: &CardFacts, settings: &Mode) -> Result<(), ModeError>;

    /// Takes back what [`Self::enter`] did, as far as it is in the way of the mode that comes
    /// next. Nobody is on the card.
    fn leave(&self, card: &CardFacts, settings: &Mode, to: &Mode) -> Result<(), ModeError>;
}

/// Why a card cannot change its mode, or a container cannot be equipped, now. Both are tried again.
#[derive(Debug, Error)]
pub enum ModeError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The card is not cut as it should be.
    #[error(transparent)]
    Mig(#[from] MigError),
    /// A file cannot be written or removed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The card needs something that only its owner does, such as a reset: it is waited for
    /// without end.
    #[error("{0}")]
    Waits(String),
    /// Something else stands in the way; the text is for the node's owner or the pod's user.
    #[error("{0}")]
    Refused(String),
}

/// One grant of a container that is about to start.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// The pod, by the kubelet's uid.
    pub pod: &'a PodUid,
    /// The container.
    pub container: &'a str,
    /// What it was given.
    pub grant: &'a Grant,
    /// Its place among the container's grants: the number of the device that CUDA shows.
    pub place: usize,
    /// The mode that the unit had when the pod was accepted.
    pub mode: inventory::Mode,
    /// How the host names the card.
    pub card: &'a Card,
    /// The instances of the card that others hold, where it is cut as pods come.
    pub beside: &'a [Placed],
}

/// What a container gets besides the driver's own edits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outfit {
    /// What is in `NVIDIA_VISIBLE_DEVICES`, in the order of the grants.
    pub visible: Vec<String>,
    /// Variables, `NAME=value`.
    pub variables: Vec<String>,
    /// Mounts, as CDI writes them.
    pub mounts: Vec<Value>,
    /// The instance that was made of the last grant's card.
    pub part: Option<Part>,
    /// A limit of libvgpu.so holds: without it that library is left out.
    pub limited: bool,
}

/// All modes on this node.
pub struct Modes {
    plain: Plain,
    timeslice: timeslice::Slices,
    mig: mig::Cutter,
    mps: Arc<mps::Daemons>,
}

impl Modes {
    /// `state` is the agent's folder; each mode has its own inside.
    pub fn new(driver: &Arc<dyn Driver>, state: &Path) -> Self {
        let mps = Arc::new(mps::Daemons::new(keeper::root(state)));
        Self {
            plain: Plain,
            timeslice: timeslice::Slices,
            mig: mig::Cutter::new(Arc::clone(driver), state.join("mig"), Arc::clone(&mps)),
            mps,
        }
    }

    /// What switches cards into and out of a mode.
    pub fn switch(&self, mode: &Mode) -> &dyn Switch {
        match mode {
            Mode::Vgpu(_) | Mode::Exclusive(_) | Mode::Unmanaged => &self.plain,
            Mode::Timeslice(_) => &self.timeslice,
            Mode::Mps(_) => &*self.mps,
            Mode::Mig(_) => &self.mig,
        }
    }

    /// Whether cards were cut since this was last asked: the driver's facts are to be read anew.
    pub fn cut_since(&self) -> bool {
        self.mig.cut_since()
    }

    /// Adds what one grant brings. Blocks. Asked at every start of the container; the same share
    /// gives the same outfit.
    pub fn equip(&self, share: &Share<'_>, outfit: &mut Outfit) -> Result<(), ModeError> {
        match share.mode {
            inventory::Mode::Vgpu | inventory::Mode::Unknown => vgpu::equip(share, outfit),
            inventory::Mode::Exclusive | inventory::Mode::Timeslice => {
                outfit.visible.push(share.grant.gpu.to_string());
            }
            inventory::Mode::Mps => self.mps.equip(share, outfit)?,
            inventory::Mode::Mig => self.mig.equip(share, outfit)?,
        }
        Ok(())
    }
}

/// Modes that ask nothing of the card itself.
struct Plain;

impl Switch for Plain {
    fn enter(&self, _: &CardFacts, _: &Mode) -> Result<(), ModeError> {
        Ok(())
    }

    fn leave(&self, _: &CardFacts, _: &Mode, _: &Mode) -> Result<(), ModeError> {
        Ok(())
    }
}

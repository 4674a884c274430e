//! mps: containers at once through NVIDIA's MPS.
//!
//! Fed by: the mode's settings, a grant. Must not: offer a card without a daemon.

use std::path::PathBuf;
use std::sync::Arc;

use aliquot_core::inventory::Gpu;
use aliquot_nvml::{CardFacts, Driver};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mps;

use super::{EquipError, Outfit, Share, Switch, SwitchError};

/// What this release says of a mode that it does not make yet.
const LATER: &str = "this release does not start MPS daemons";

/// The card as a unit.
pub fn units(_: Gpu, _: &Mps) -> Vec<Gpu> {
    Vec::new()
}

/// The daemons of this node.
pub(super) struct Daemons;

impl Daemons {
    pub(super) fn new(_: Arc<dyn Driver>, _: PathBuf) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "what it needs comes with the mode")]
    pub(super) fn equip(&self, _: &Share<'_>, _: &mut Outfit) -> Result<(), EquipError> {
        Err(EquipError::NotReady(LATER.to_owned()))
    }
}

impl Switch for Daemons {
    fn enter(&self, _: &CardFacts, _: &Mode) -> Result<(), SwitchError> {
        Err(SwitchError::Refused(LATER.to_owned()))
    }

    fn leave(&self, _: &CardFacts, _: &Mode) -> Result<(), SwitchError> {
        Ok(())
    }
}

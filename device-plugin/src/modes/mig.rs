//! mig: a card cut into instances.
//!
//! Fed by: the mode's settings, the instances that the driver tells, a grant. Must not: touch an
//! instance that somebody holds.

use std::path::PathBuf;
use std::sync::Arc;

use aliquot_core::inventory::Gpu;
use aliquot_nvml::{CardFacts, Driver};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::Mig;

use super::{EquipError, Outfit, Share, Switch, SwitchError};
use crate::units::Offer;

/// What this release says of a mode that it does not make yet.
const LATER: &str = "this release does not cut cards into instances";

/// The units of a card: `whole` is what they have in common.
pub fn units(_whole: &Gpu, _facts: &CardFacts, _settings: &Mig) -> Vec<Gpu> {
    Vec::new()
}

/// The seats of a card whose instances are made when needed.
pub fn offers(_unit: &Gpu) -> Vec<Offer> {
    Vec::new()
}

/// What cuts cards.
pub(super) struct Cutter;

impl Cutter {
    pub(super) fn new(_: Arc<dyn Driver>, _: PathBuf) -> Self {
        Self
    }

    #[expect(clippy::unused_self, reason = "what it needs comes with the mode")]
    pub(super) fn equip(&self, _: &Share<'_>, _: &mut Outfit) -> Result<(), EquipError> {
        Err(EquipError::NotReady(LATER.to_owned()))
    }
}

impl Switch for Cutter {
    fn enter(&self, _: &CardFacts, _: &Mode) -> Result<(), SwitchError> {
        Err(SwitchError::Refused(LATER.to_owned()))
    }

    fn leave(&self, _: &CardFacts, _: &Mode) -> Result<(), SwitchError> {
        Ok(())
    }
}

//! What a pod demands of cards besides room: models, uuids, modes, one NUMA
//! node, and how full cards are weighed.
//!
//! Fed by: [`crate::wishes`], from a pod's annotations.
//! Must not: know other pods; [`crate::fit`] asks for one card at a time.

use crate::id::GpuUuid;
use crate::inventory::{Gpu, Mode};
use crate::mig::published::{Cut, Mig};
use crate::pin::Pin;
use crate::reason::Reason;
use crate::score::Weights;

/// A model that a pod names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// This one exactly, in any case (`aliquot.dev/…`).
    Is(String),
    /// Every model whose name contains this, in any case (HAMi 4.6: `A10` also
    /// takes the A100).
    Contains(String),
}

impl Model {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Is(model) => model.eq_ignore_ascii_case(name),
            Self::Contains(part) => {
                let contains = |name: &str| {
                    let mut windows = name.as_bytes().windows(part.len());
                    windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
                };
                // HAMi registers every model with the vendor in front.
                let vendor = name.starts_with("NVIDIA");
                contains(name) || (!vendor && contains(&format!("NVIDIA-{name}")))
            }
        }
    }
}

/// A pod's rules for cards. The default demands nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    /// One of these models; any when empty.
    pub use_models: Vec<Model>,
    /// None of these models, whatever `use_models` says.
    pub nouse_models: Vec<Model>,
    /// One of these cards; any when empty.
    pub use_uuids: Vec<GpuUuid>,
    /// None of these cards, whatever `use_uuids` says.
    pub nouse_uuids: Vec<GpuUuid>,
    /// One of these, whatever the lists above say; any when empty.
    pub pins: Vec<Pin>,
    /// Shared in one of these ways; any when empty.
    pub modes: Vec<Mode>,
    /// Where a container asks for several under one resource, they are seats of
    /// one unit and not units of their own.
    pub same_unit: bool,
    /// All cards of a container on one NUMA node.
    pub one_numa: bool,
    /// How slots, compute and memory count where cards are compared.
    pub weights: Weights,
}

impl Rules {
    /// Some card may be refused by them, whatever it carries.
    pub fn choose_cards(&self) -> bool {
        let models = self.use_models.len() + self.nouse_models.len();
        let uuids = self.use_uuids.len() + self.nouse_uuids.len();
        models + uuids + self.modes.len() + self.pins.len() > 0
    }

    /// Why the pod does not want this card (HAMi 4.6 rules 3 and 5).
    pub fn refuse(&self, gpu: &Gpu) -> Option<Reason> {
        let model = |models: &[Model]| models.iter().any(|model| model.matches(&gpu.model));
        let wrong_model =
            model(&self.nouse_models) || !(self.use_models.is_empty() || model(&self.use_models));
        let instance = gpu.mig.is_some() && self.modes.contains(&Mode::Mig);
        let wrong_mode = !(self.modes.is_empty() || self.modes.contains(&gpu.mode) || instance);
        if wrong_model || wrong_mode {
            return Some(Reason::CardTypeMismatch);
        }
        // A card's instances are meant with it.
        let parent = gpu.mig.as_ref().and_then(Mig::part).map(|p| &p.parent);
        let named = |uuids: &[GpuUuid]| {
            let mut uuids = uuids.iter();
            uuids.any(|uuid| *uuid == gpu.uuid || Some(uuid) == parent)
        };
        let wrong_card = named(&self.nouse_uuids)
            || !(self.use_uuids.is_empty() || named(&self.use_uuids) || self.uses_some_of(gpu))
            || !(self.pins.is_empty() || self.pins.iter().any(|pin| pin.may_be(gpu)));
        wrong_card.then_some(Reason::CardUuidMismatch)
    }

    /// Of this card, which is cut as pods come, an instance is named that is there.
    fn uses_some_of(&self, gpu: &Gpu) -> bool {
        let found = gpu.mig.as_ref().and_then(Mig::dynamic);
        let mut made = found.iter().flat_map(|found| &found.instances);
        made.any(|made| self.use_uuids.contains(&made.uuid))
    }

    /// The pod may be given an instance of this profile at this start of a card that
    /// is cut as pods come.
    pub(crate) fn allow_instance(&self, gpu: &Gpu, cut: &Cut, profile: &str, start: u8) -> bool {
        let mut made = cut.instances.iter();
        let made = made.find(|made| made.profile == profile && made.start == start);
        let is_made = |uuid: &GpuUuid| made.is_some_and(|made| made.uuid == *uuid);
        let used = |uuid: &GpuUuid| *uuid == gpu.uuid || is_made(uuid);
        let mut pins = self.pins.iter();
        !self.nouse_uuids.iter().any(is_made)
            && (self.use_uuids.is_empty() || self.use_uuids.iter().any(used))
            && (self.pins.is_empty() || pins.any(|pin| pin.allows(gpu, cut, profile, start)))
    }
}

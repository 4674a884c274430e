//! vgpu: several containers with shares of memory and compute, held by libvgpu.so.
//!
//! Fed by: the mode's settings, a grant. Must not: share a card that is cut into instances.

use aliquot_core::inventory::{Gpu, Mode};
use aliquot_nvml::CardFacts;
use aliquot_profiles::mode::{Scaling, Vgpu};

use super::{Outfit, Share};

/// The card as a unit. `settings` leave nothing open.
pub fn unit(card: Gpu, facts: &CardFacts, settings: &Vgpu) -> Gpu {
    let mut unit = part(card, settings);
    if facts.mig.enabled {
        // A card cut into instances, by others than us, cannot be shared as a whole.
        unit.mode = Mode::Unknown;
    }
    unit
}

/// An instance of a card as a unit.
pub fn part(card: Gpu, settings: &Vgpu) -> Gpu {
    let scaling = settings.memory_scaling.unwrap_or(Scaling::ONE);
    Gpu {
        mode: Mode::Vgpu,
        seats: settings.split.unwrap_or(1),
        scaled: scaling.of(card.memory),
        ..card
    }
}

/// Its limits are in the limits page; the variable tells the user.
pub(super) fn equip(share: &Share<'_>, outfit: &mut Outfit) {
    outfit.limited = true;
    outfit.visible.push(share.grant.gpu.to_string());
    let (place, memory) = (share.place, share.grant.memory.0);
    let variable = format!("CUDA_DEVICE_MEMORY_LIMIT_{place}={memory}m");
    outfit.variables.push(variable);
}

//! exclusive: one container has the whole device, without limits.

use aliquot_core::inventory::{Gpu, Mode};
use aliquot_profiles::mode::Exclusive;

/// The device under this mode.
pub fn device(device: Gpu, settings: &Exclusive) -> Gpu {
    Gpu {
        mode: Mode::Exclusive,
        replicas: 1,
        resource: settings.rename.clone().unwrap_or(device.resource),
        ..device
    }
}

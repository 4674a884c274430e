//! Whether a MIG layout fits on a GPU model, by the model's known geometry.

use aliquot_core::mig::{Geometry, Instance};

use crate::mode::LayoutEntry;

/// Why a layout cannot be created.
pub(crate) enum LayoutError {
    /// The model lacks the profile of this entry of the layout.
    Unknown(usize),
    /// The instances do not fit together.
    DoesNotFit,
}

/// Tries every placement; a GPU has few.
pub(crate) fn check_fit(geometry: &Geometry, layout: &[LayoutEntry]) -> Result<(), LayoutError> {
    let mut requested = Vec::new();
    for (index, slice) in layout.iter().enumerate() {
        let profile = geometry.find(&slice.profile);
        let profile = profile.ok_or(LayoutError::Unknown(index))?;
        requested.extend((0..slice.count).map(|_| profile));
    }
    if can_place(geometry, &requested, &mut Vec::new()) {
        Ok(())
    } else {
        Err(LayoutError::DoesNotFit)
    }
}

fn can_place(geometry: &Geometry, requested: &[usize], placed: &mut Vec<Instance>) -> bool {
    let Some((&profile, rest)) = requested.split_first() else {
        return true;
    };
    let starts: Vec<u8> = geometry.starts(profile, placed).collect();
    starts.into_iter().any(|start| {
        placed.push(Instance {
            profile,
            start,
            busy: true,
        });
        let found = can_place(geometry, rest, placed);
        placed.pop();
        found
    })
}

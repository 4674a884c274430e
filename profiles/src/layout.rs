//! Whether a card can be cut as a layout says.
//!
//! Fed by: the geometry of a known model. Must not: choose where instances go on a
//! living card; it only looks whether some way exists.

use aliquot_core::mig::{Geometry, Instance};

use crate::mode::Slice;

/// Why a layout cannot be made.
pub(crate) enum Refusal {
    /// The model has no such profile: its place in the layout.
    Unknown(usize),
    /// No placement of them all exists.
    TooMuch,
}

/// Looks at every way to place them; a card has few.
pub(crate) fn fits(geometry: &Geometry, layout: &[Slice]) -> Result<(), Refusal> {
    let mut wanted = Vec::new();
    for (place, slice) in layout.iter().enumerate() {
        let profile = geometry.find(&slice.profile);
        let profile = profile.ok_or(Refusal::Unknown(place))?;
        wanted.extend((0..slice.count).map(|_| profile));
    }
    if some_way(geometry, &wanted, &mut Vec::new()) {
        Ok(())
    } else {
        Err(Refusal::TooMuch)
    }
}

fn some_way(geometry: &Geometry, wanted: &[usize], placed: &mut Vec<Instance>) -> bool {
    let Some((&profile, rest)) = wanted.split_first() else {
        return true;
    };
    let starts: Vec<u8> = geometry.starts(profile, placed).collect();
    starts.into_iter().any(|start| {
        placed.push(Instance {
            profile,
            start,
            busy: true,
        });
        let found = some_way(geometry, rest, placed);
        placed.pop();
        found
    })
}

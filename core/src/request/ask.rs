//! A container's share as the books take it: complete, nothing left to fill in.
//!
//! Fed by: [`super::Written`]. Must not: be less than its author wrote.

use crate::units::{Mib, Percent};

/// Memory on each card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// This many MiB.
    Mib(Mib),
    /// This part of the card that is chosen, of its scaled memory.
    Share(Percent),
}

/// A container's share under one resource, complete: on each of `count` different
/// units, or so many seats of one ([`crate::Rules::same_unit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    /// Which of the demand's resources it is asked under; 0 is the usual one.
    pub resource: u8,
    /// Number of units, at least 1.
    pub count: u32,
    /// Memory on each.
    pub memory: Memory,
    /// Compute on each; 100 means alone on the card.
    pub cores: Percent,
    /// What of the two its author wrote; the rest was filled in.
    pub wrote: Wrote,
}

impl Ask {
    /// So much of each of so many cards under the usual resource, as its author wrote.
    pub fn of(count: u32, memory: Memory, cores: Percent) -> Self {
        Self {
            resource: 0,
            count,
            memory,
            cores,
            wrote: Wrote {
                memory: true,
                cores: true,
            },
        }
    }
}

/// What the author of an [`Ask`] wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wrote {
    /// The memory.
    pub memory: bool,
    /// The compute.
    pub cores: bool,
}

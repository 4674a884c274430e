//! MPS as arithmetic: equal parts, and how many clients there may be.
//!
//! Fed by: a profile's settings, a card's facts. Must not: know a daemon.

use aliquot_core::inventory::Even;
use aliquot_core::{Mib, Percent};

use crate::mode::{MOST_CLIENTS, MOST_CLIENTS_BEFORE_VOLTA, Mps, Part};

/// What a seat gets whose container wrote nothing. 0 is no limit.
pub fn even(memory: Mib, settings: &Mps) -> Even {
    let replicas = settings.replicas.max(1);
    Even {
        memory: match settings.memory {
            Part::Even => Mib(memory.0 / u64::from(replicas)),
            Part::Full => Mib(0),
        },
        cores: match settings.threads {
            Part::Even => Percent((100 / replicas).max(1)),
            Part::Full => Percent(0),
        },
    }
}

/// Clients that one daemon serves at once: NVIDIA's limits, and on an instance its part of them.
/// `part`: its compute slices, of how many the card has.
pub fn most_clients(capability: Option<(u32, u32)>, part: Option<(u32, u32)>) -> u64 {
    let most = match capability {
        Some((major, _)) if major < 7 => MOST_CLIENTS_BEFORE_VOLTA.into(),
        _ => MOST_CLIENTS,
    };
    part.map_or(most, |(slices, of)| {
        (most * u64::from(slices) / u64::from(of.max(1))).max(1)
    })
}

//! Arithmetic for MPS: equal shares, and the maximum number of clients.

use aliquot_core::inventory::EvenShare;
use aliquot_core::{Mib, Percent};

use crate::mode::{DefaultShare, MAX_MPS_CLIENTS, MAX_MPS_CLIENTS_BEFORE_VOLTA, Mps};

/// The share of a container that requests none. 0 is no limit.
pub fn even_share(memory: Mib, settings: &Mps) -> EvenShare {
    let replicas = settings.replicas.max(1);
    EvenShare {
        memory: match settings.memory {
            DefaultShare::Even => Mib(memory.0 / u64::from(replicas)),
            DefaultShare::Full => Mib(0),
        },
        cores: match settings.threads {
            DefaultShare::Even => Percent((100 / replicas).max(1)),
            DefaultShare::Full => Percent(0),
        },
    }
}

/// The maximum number of clients of one daemon: NVIDIA's limits, and on a MIG instance its part of
/// them. `part`: the instance's compute slices, and the GPU's.
pub fn max_clients(capability: Option<(u32, u32)>, part: Option<(u32, u32)>) -> u64 {
    let most = match capability {
        Some((major, _)) if major < 7 => MAX_MPS_CLIENTS_BEFORE_VOLTA.into(),
        _ => MAX_MPS_CLIENTS,
    };
    part.map_or(most, |(slices, of)| {
        (most * u64::from(slices) / u64::from(of.max(1))).max(1)
    })
}

//! What is charged to the container's devices.

use crate::process::ProcessState;

pub(crate) mod account;
pub(crate) mod allocations;
pub(crate) mod charge;
pub(crate) mod graphs;
pub(crate) mod pending_frees;
pub(crate) mod pools;

use pending_frees::PendingFrees;
use pools::Pools;

/// Reclaims what pools and graphs released, streams freed, dead processes had, and closed descriptors
/// kept.
pub(crate) fn refresh(process: &'static ProcessState) {
    PendingFrees::of(process).refresh(process);
    Pools::of(process).refresh();
    graphs::refresh(process);
    // An error leaves the totals too high: no more is granted, or reported free, than there is.
    let _ = process.reclaim_dead_slots();
}

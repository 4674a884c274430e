//! What must always be true, as functions: the same ones serve debug
//! assertions, the state-machine test and its model.
//!
//! Fed by: [`crate::ledger`] and tests.
//! Must not: repair anything; they answer yes or no.

use crate::fit::Sums;
use crate::inventory::Gpu;

/// The sums granted on a card stay within what the card may promise.
/// Holds after every reservation; not after a card shrank under running pods.
pub fn within_capacity(gpu: &Gpu, sums: &Sums) -> bool {
    sums.used.seats <= gpu.seats
        && sums.used.memory <= gpu.scaled
        && sums.used.cores <= gpu.cores
        && (!sums.used.alone || sums.pods <= 1)
}

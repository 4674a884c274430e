//! What must always be true, as functions: the same ones serve debug
//! assertions, the state-machine test and its model.
//!
//! Fed by: [`crate::ledger`] and tests.
//! Must not: repair anything; they answer yes or no.

use crate::node::Card;

/// The sums granted on a card stay within what the card may promise.
/// Holds after every reservation; not after a card shrank under running pods.
pub fn within_capacity(card: &Card) -> bool {
    let sums = &card.sums;
    sums.used.seats <= card.seats
        && sums.used.memory <= card.scaled
        && sums.used.cores <= card.cores
        && (!sums.used.alone || sums.pods <= 1)
}

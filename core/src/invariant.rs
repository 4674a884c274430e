//! What must always be true, as functions: the same ones serve debug
//! assertions, the state-machine test and its model.
//!
//! Fed by: [`crate::ledger`] and tests.
//! Must not: repair anything; they answer yes or no.

use crate::inventory::Mode;
use crate::mig::published::Mig;
use crate::node::{Card, NodeState};

/// The sums granted on a card stay within what the card may promise.
/// Holds after every reservation; not after a card shrank under running pods. What
/// instances a card can have is for [`instances_have_their_places`] to say.
pub fn within_capacity(card: &Card) -> bool {
    let sums = &card.sums;
    sums.used.seats <= card.seats
        && (card.mode == Mode::Mig || sums.used.memory <= card.scaled)
        && sums.used.cores <= card.cores
        && (!sums.used.alone || sums.pods <= 1)
}

/// The instances that are held on the node's cards do not overlap, and no card has
/// more of them than it can.
pub fn instances_have_their_places(node: &NodeState) -> bool {
    node.cuts.iter().all(|cut| {
        let gpus = node.inventory.as_ref().map(|inventory| &inventory.gpus);
        let gpu = gpus.and_then(|gpus| gpus.get(cut.card));
        let found = gpu.and_then(|gpu| gpu.mig.as_ref()).and_then(Mig::dynamic);
        found.is_some_and(|found| cut.is_legal(&found.geometry))
    })
}

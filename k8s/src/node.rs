//! A Node as the books see it: its inventory and what it can carry besides.
//!
//! Fed by: watches, calls with Node objects, and `kubectl-aliquot`.
//! Must not: fail; a node whose inventory cannot be read has none.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::GpuUuid;
use aliquot_core::hami::{self, REGISTER};
use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::node::Published;
use k8s_openapi::api::core::v1::Node;

use crate::{compute, seats};

/// Cards taken out by an administrator: a comma list of uuids under our name and
/// HAMi's; both hold.
const CORDON: [&str; 2] = ["aliquot.dev/device-cordon", "hami.io/device-cordon"];

fn cordoned(annotations: Option<&BTreeMap<String, String>>) -> Vec<GpuUuid> {
    let texts = CORDON.iter().filter_map(|key| annotations?.get(*key));
    let items = texts.flat_map(|text| text.split(',')).map(str::trim);
    let mut cards: Vec<GpuUuid> = items
        .filter(|item| !item.is_empty())
        .map(GpuUuid::from)
        .collect();
    cards.sort_unstable();
    cards.dedup();
    cards
}

/// What a Node object says. Where our agent publishes nothing, what HAMi's plugin
/// registered is shown.
pub fn published(node: &Node) -> Published {
    let annotations = node.metadata.annotations.as_ref();
    let text = |key| annotations.and_then(|all| all.get(key));
    let inventory = match text(INVENTORY) {
        Some(text) => Inventory::decode(text),
        None => match text(REGISTER) {
            Some(text) => hami::register(text),
            None => return published_without(node),
        },
    };
    let inventory = match inventory {
        Ok(inventory) => inventory,
        Err(error) => {
            tracing::error!(node = ?node.metadata.name, %error, "inventory cannot be read; the node takes no pods");
            return published_without(node);
        }
    };
    Published {
        seats: seats::offered(node, &inventory),
        inventory: Some(Arc::new(inventory)),
        allocatable: compute::allocatable(node),
        cordoned: cordoned(annotations),
        of_hami: text(INVENTORY).is_none(),
    }
}

fn published_without(node: &Node) -> Published {
    Published {
        allocatable: compute::allocatable(node),
        ..Published::default()
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;

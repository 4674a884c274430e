//! A Node as the books see it: its inventory and what it can carry besides.
//!
//! Fed by: watches, calls with Node objects, and `kubectl-aliquot`.
//! Must not: fail; a node whose inventory cannot be read has none.

use std::sync::Arc;

use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::node::Published;
use k8s_openapi::api::core::v1::Node;

use crate::compute;

/// What a Node object says.
pub fn published(node: &Node) -> Published {
    let annotations = node.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(INVENTORY));
    let inventory = text.and_then(|text| match Inventory::decode(text) {
        Ok(inventory) => Some(Arc::new(inventory)),
        Err(error) => {
            tracing::error!(node = ?node.metadata.name, %error, "inventory cannot be read; the node takes no pods");
            None
        }
    });
    Published {
        inventory,
        allocatable: compute::allocatable(node),
        cordoned: Vec::new(),
    }
}

//! A Node as the ledger sees it: its inventory, and its CPU, memory and replicas. A node
//! with an unreadable inventory has none.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::GpuUuid;
use aliquot_core::inventory::{INVENTORY, Inventory};
use aliquot_core::node::NodePublication;
use aliquot_core::units::HostResources;
use k8s_openapi::api::core::v1::Node;

use crate::pod::host_resources;
use crate::{replicas, selection};

/// Devices that an administrator cordoned: comma-separated UUIDs under Aliquot's name and
/// HAMi's; both apply.
const CORDON: [&str; 2] = ["aliquot.dev/device-cordon", "hami.io/device-cordon"];

/// The label of nodes whose GPUs the scheduler has counted, where it states the need of GPUs to an
/// autoscaler. Placeholders for missing GPUs avoid them.
pub const COUNTED: &str = "aliquot.dev/counted";

/// The longest label value, and the longest key without its prefix.
pub const MAX_LABEL_LENGTH: usize = 63;

/// These words as a label value: spaces become `-`, and other invalid characters are dropped.
pub fn label_value(words: &str) -> String {
    let words = words.replace(' ', "-");
    let accepted = |c: &char| c.is_ascii_alphanumeric() || ['-', '_', '.'].contains(c);
    let valid: String = words
        .chars()
        .filter(accepted)
        .take(MAX_LABEL_LENGTH)
        .collect();
    let end = |c: char| !c.is_ascii_alphanumeric();
    valid.trim_matches(end).to_owned()
}

/// Whether the node's agent, or NVIDIA's, writes this label: no node that an autoscaler could add has
/// it yet.
pub fn is_label_of_agents(key: &str) -> bool {
    key.starts_with("aliquot.dev/") || key.starts_with("nvidia.com/")
}

fn cordoned(annotations: Option<&BTreeMap<String, String>>) -> Vec<GpuUuid> {
    let texts = CORDON.iter().filter_map(|key| annotations?.get(*key));
    let items = texts.flat_map(|text| text.split(',')).map(str::trim);
    let mut devices: Vec<GpuUuid> = items
        .filter(|item| !item.is_empty())
        .map(GpuUuid::from)
        .collect();
    devices.sort_unstable();
    devices.dedup();
    devices
}

pub fn published(node: &Node) -> NodePublication {
    let annotations = node.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(INVENTORY)) else {
        return published_without(node);
    };
    let inventory = match Inventory::decode(text) {
        Ok(inventory) => inventory,
        Err(error) => {
            tracing::error!(node = ?node.metadata.name, %error, "inventory cannot be read; the node takes no pods");
            return published_without(node);
        }
    };
    NodePublication {
        replicas: replicas::offered(node, &inventory),
        inventory: Some(Arc::new(inventory)),
        allocatable: allocatable(node),
        cordoned: cordoned(annotations),
        taints: selection::taints(node),
        counted: node
            .metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(COUNTED)),
    }
}

fn allocatable(node: &Node) -> HostResources {
    let status = node.status.as_ref();
    host_resources(status.and_then(|status| status.allocatable.as_ref()))
}

fn published_without(node: &Node) -> NodePublication {
    NodePublication {
        allocatable: allocatable(node),
        ..NodePublication::default()
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;

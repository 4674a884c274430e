//! The node annotation `aliquot.dev/inventory`: no more of a device is allocated than its
//! text allows.

use aliquot_core::inventory::INVENTORY;
use aliquot_core::node::NodeState;
use aliquot_core::{Inventory, Ledger, NodeName};
use aliquot_k8s::node;
use aliquot_scheduler::views::ledger_report::LedgerReport;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::shapes;

/// Reads the text as a node's inventory and fills its devices.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let decoded = Inventory::decode(text).ok();
    if let Some(inventory) = &decoded {
        let text = inventory.encode().expect("what was read can be written");
        assert_eq!(Inventory::decode(&text).ok().as_ref(), Some(inventory));
    }
    let object = json!({"metadata": {"name": "n1", "annotations": {INVENTORY: text}}});
    let object: Node = serde_json::from_value(object).expect("a Node");
    let published = node::published(&object);
    assert_eq!(published.inventory.as_deref(), decoded.as_ref());

    let state = NodeState::new(&published, &[], published.allocatable);
    let devices = decoded.as_ref().map_or(0, |inventory| inventory.gpus.len());
    assert_eq!(state.devices.len(), devices);
    assert_eq!(state.closed.is_none(), decoded.is_some());

    let name = NodeName::from("n1");
    let mut ledger = Ledger::default();
    ledger.publish(&name, Some(published));
    let first = decoded
        .as_ref()
        .and_then(|inventory| inventory.gpus.first());
    let resource = first.map_or("nvidia.com/gpu", |gpu| gpu.resource.as_str());
    shapes::fill(&mut ledger, &name, resource);
    let statement = serde_json::to_string(&LedgerReport::new(&ledger));
    assert!(statement.is_ok(), "the ledger can be shown");
}

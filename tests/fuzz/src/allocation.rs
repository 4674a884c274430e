//! The pod annotation `aliquot.dev/allocation`: an unreadable text frees nothing.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_core::refusal::Reason;
use aliquot_core::usage::AllocatedUse;
use aliquot_core::{Allocation, NodeName, PodUid};
use aliquot_k8s::pod;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use aliquot_scheduler::ledger_cache::LedgerCache;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::shapes;

/// Two GPUs of 80 GiB.
const INVENTORY_JSON: &str = include_str!("../../../core/golden/inventory-v1.json");

/// Reads the text as a bound pod's allocation and enters it into the ledger.
pub fn check(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let decoded = Allocation::decode(text).ok();
    if let Some(allocation) = &decoded {
        let text = allocation.encode().expect("what was read can be written");
        assert_eq!(Allocation::decode(&text).ok().as_ref(), Some(allocation));
    }
    let (name, uid) = (NodeName::from("n1"), PodUid::from("u"));
    let pod = bound(text);
    let (node, allocated_use) =
        pod::allocated(&pod, &pod::Settings::default()).expect("bound, with an annotation");
    assert_eq!(node, name);
    let readable = decoded.is_some_and(|allocation| allocation.node == name);
    assert_eq!(
        readable,
        allocated_use != AllocatedUse::Unreadable,
        "{text:?}"
    );

    let ledger = LedgerCache::default();
    Index::<Node>::apply(
        &ledger,
        read(json!({
            "metadata": {"name": "n1", "annotations": {INVENTORY: INVENTORY_JSON}},
        })),
    );
    Index::apply(&ledger, pod);
    let mut ledger = ledger.read(Clone::clone);
    assert_eq!(
        ledger.pod_entry(&uid).map(|entry| &entry.allocated),
        Some(&allocated_use)
    );
    let closed = ledger.cluster().node("n1").and_then(|node| node.closed);
    assert_eq!(closed == Some(Reason::NodeAllocationUnreadable), !readable);
    shapes::fill(&mut ledger, &name, "nvidia.com/gpu");
    ledger.release(&uid);
    let empty = ledger.pod_entries().next().is_none();
    let used = ledger
        .cluster()
        .node("n1")
        .map(|node| node.devices[0].allocated);
    assert!(!empty || used.is_some_and(|sums| sums == <_>::default()));
}

fn bound(allocation: &str) -> PodView {
    read(json!({
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": {ALLOCATION: allocation}},
        "spec": {
            "nodeName": "n1",
            "schedulerName": "aliquot-scheduler",
            "initContainers": [{"name": "warm-up"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                {"name": "second"},
            ],
        },
    }))
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of Kubernetes")
}

//! Nodes as the API server encodes them, and what they mean to the books.

use aliquot_core::{Compute, NodeState, Reason};
use serde_json::{Value, json};

use super::*;

fn read(annotations: &Value) -> Published {
    let node = json!({"metadata": {"name": "n", "annotations": annotations}});
    published(&serde_json::from_value(node).unwrap())
}

fn closed(published: &Published) -> Option<Reason> {
    NodeState::of(published, &[], Compute::default()).closed
}

const OURS: &str = r#"{"v":1,"reads":[1],"gpus":[]}"#;
const HAMIS: &str = r#"[{"id":"GPU-1","index":1,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","numa":1,"mode":"hami-core","health":true},{"id":"GPU-0","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","mode":"hami-core"}]"#;

#[test]
fn a_node_that_hami_serves_is_shown_and_takes_none_of_our_pods() {
    let hamis = read(&json!({REGISTER: HAMIS}));
    assert_eq!(closed(&hamis), Some(Reason::NodeServedByHami));
    let shown = hamis.inventory.unwrap();
    let cards: Vec<_> = shown.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    assert_eq!(cards, ["GPU-0", "GPU-1"]);
    let both = read(&json!({REGISTER: HAMIS, INVENTORY: OURS}));
    assert_eq!((closed(&both), both.of_hami), (None, false));
    for text in ["", "{}", "GPU-0,10,81920,100,NVIDIA A100,0,true:"] {
        let damaged = read(&json!({REGISTER: text}));
        assert_eq!(closed(&damaged), Some(Reason::NodeNotRegistered));
    }
}

#[test]
fn cards_are_cordoned_under_either_name() {
    let cordoned = read(&json!({
        INVENTORY: OURS,
        "hami.io/device-cordon": "GPU-2, GPU-1,",
        "aliquot.dev/device-cordon": "GPU-1,GPU-0",
    }));
    let cards: Vec<_> = cordoned.cordoned.iter().map(GpuUuid::as_str).collect();
    assert_eq!(cards, ["GPU-0", "GPU-1", "GPU-2"]);
}

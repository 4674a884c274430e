//! Nodes as the API server encodes them, and what the ledger reads from them.

use aliquot_core::inventory::Health;
use aliquot_core::{HostResources, NodeState, Reason, Replicas};
use serde_json::{Value, json};

use super::*;

fn read(annotations: &Value) -> NodePublication {
    let node = json!({"metadata": {"name": "n", "annotations": annotations}});
    published(&serde_json::from_value(node).unwrap())
}

fn closed(published: &NodePublication) -> Option<Reason> {
    NodeState::of(published, &[], HostResources::default()).closed
}

const OURS: &str = r#"{"v":1,"reads":[1],"gpus":[]}"#;
const HAMIS: &str = r#"[{"id":"GPU-1","index":1,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","numa":1,"mode":"hami-core","health":true},{"id":"GPU-0","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","mode":"hami-core"}]"#;

#[test]
fn hami_node_is_shown_but_takes_no_pods() {
    let hamis = read(&json!({REGISTER: HAMIS}));
    assert_eq!(closed(&hamis), Some(Reason::NodeServedByHami));
    let shown = hamis.inventory.unwrap();
    let uuids: Vec<_> = shown.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    assert_eq!(uuids, ["GPU-0", "GPU-1"]);
    let both = read(&json!({REGISTER: HAMIS, INVENTORY: OURS}));
    assert_eq!((closed(&both), both.served_by_hami), (None, false));
    let old = "GPU-0,10,81920,100,NVIDIA A100,0,true:GPU-1,10,81920,100,NVIDIA A100,1,false:";
    let old = read(&json!({REGISTER: old}));
    assert_eq!(closed(&old), Some(Reason::NodeServedByHami));
    let inventory = old.inventory.unwrap();
    let healthy: Vec<_> = inventory
        .gpus
        .iter()
        .map(|gpu| gpu.health == Health::Ok)
        .collect();
    assert_eq!(healthy, [true, false]);
    for text in ["", "{}", ":", "GPU-0,10,81920,100,NVIDIA A100,0:"] {
        let damaged = read(&json!({REGISTER: text}));
        assert_eq!(closed(&damaged), Some(Reason::NodeNotRegistered));
    }
}

#[test]
fn cordons_gpus_under_either_annotation() {
    let cordoned = read(&json!({
        INVENTORY: OURS,
        "hami.io/device-cordon": "GPU-2, GPU-1,",
        "aliquot.dev/device-cordon": "GPU-1,GPU-0",
    }));
    let uuids: Vec<_> = cordoned.cordoned.iter().map(GpuUuid::as_str).collect();
    assert_eq!(uuids, ["GPU-0", "GPU-1", "GPU-2"]);
}

#[test]
fn reads_offered_replicas_from_node_allocatable() {
    let gpu = r#"{"uuid":"GPU-0","index":0,"model":"m","memory":9,"scaled":9,"cores":100,"seats":10,"mode":"vgpu","resource":"nvidia.com/gpu.shared","health":"ok"}"#;
    let inventory = OURS.replace("[]", &format!("[{gpu}]"));
    let offered = |status: Value| {
        let annotations = json!({INVENTORY: inventory});
        let node = json!({"metadata": {"name": "n", "annotations": annotations}, "status": status});
        published(&serde_json::from_value(node).unwrap()).replicas
    };
    let all = json!({"cpu": "8", "nvidia.com/gpu": "4", "nvidia.com/gpu.shared": "10",
        "nvidia.com/mig-1g.5gb": "0", "nvidia.com/mig-2g.10gb": "3", "example.com/x": "1"});
    let expected = [("nvidia.com/gpu.shared", 10), ("nvidia.com/mig-2g.10gb", 3)];
    let expected = expected.map(|(name, count)| (name.into(), count));
    assert_eq!(
        offered(json!({"allocatable": all})),
        Some(Replicas::from_iter(expected))
    );
    assert_eq!(
        offered(json!({"allocatable": {"cpu": "8"}})),
        Some(Replicas::default())
    );
    assert_eq!(offered(json!({})), None);
}

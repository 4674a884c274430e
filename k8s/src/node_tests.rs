//! Nodes as the API server encodes them, and what the ledger reads from them.

use aliquot_core::Replicas;
use serde_json::{Value, json};

use super::*;

fn read(annotations: &Value) -> NodePublication {
    let node = json!({"metadata": {"name": "n", "annotations": annotations}});
    published(&serde_json::from_value(node).unwrap())
}

const OURS: &str = r#"{"v":1,"reads":[1],"gpus":[]}"#;

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
    let gpu = r#"{"uuid":"GPU-0","index":0,"model":"m","memory":9,"scaled":9,"cores":100,"replicas":10,"mode":"vgpu","resource":"nvidia.com/gpu.shared","health":"ok"}"#;
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

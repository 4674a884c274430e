//! How the node is written.

use super::*;
use crate::gpus::allocatable::AllocatedIds;
use crate::gpus::device_failures::NodeFailures;
use crate::testing::readings;

#[tokio::test]
async fn patches_taint_over_latest_resource_version() {
    // A node of an API server that refuses a write over an older version.
    let node = std::sync::Arc::new(Mutex::new(json!({
        "metadata": {"name": "n1", "resourceVersion": "1"},
        "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
    })));
    let served = std::sync::Arc::clone(&node);
    let client = crate::testing::api_server(move |patch| {
        let mut node = served.lock();
        let version = node["metadata"]["resourceVersion"].clone();
        let over = &patch["metadata"]["resourceVersion"];
        if !over.is_null() && *over != version {
            let refused = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "old"});
            return (409, refused);
        }
        merge(&mut node, &patch);
        let next: u64 = version.as_str().and_then(|v| v.parse().ok()).unwrap_or(0) + 1;
        node["metadata"]["resourceVersion"] = json!(next.to_string());
        (200, node.clone())
    });
    let published = crate::testing::published(&["GPU-a"]);
    let drained = NodeFailures {
        drain_reason: Some("XID 79".to_owned()),
        ..NodeFailures::default()
    };
    published.set_readings(readings(&["GPU-a"], drained), AllocatedIds::new());
    let known: api::Node = serde_json::from_value(node.lock().clone()).expect("a node");
    let writer = NodeWriter {
        nodes: Api::all(client),
        name: "n1".to_owned(),
        published: published.clone(),
        resource: "nvidia.com/gpu".to_owned(),
        capacity: None,
        pods: Pods::default(),
        view: watch::Sender::new(Some(NodeView::read(&known))),
        metrics: Metrics::default(),
        clear: Box::new(|_| Box::pin(async { Ok(()) })),
        taken: Mutex::default(),
    };
    let now = published.get();
    let written = writer.write("{}", &now, None, NodeView::read(&known)).await;
    assert_eq!(written, Ok(()));
    let node = node.lock();
    assert_eq!(node["metadata"]["annotations"][INVENTORY], "{}");
    let taints = node["spec"]["taints"].as_array().expect("taints").iter();
    let keys: Vec<_> = taints.map(|taint| taint["key"].as_str()).collect();
    assert_eq!(keys, [Some("other"), Some(drain::TAINT)]);
}

/// Applies a merge patch.
fn merge(node: &mut Value, patch: &Value) {
    match (node, patch) {
        (Value::Object(node), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(node.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (node @ Value::Null, Value::Object(_)) => {
            *node = json!({});
            merge(node, patch);
        }
        (node, value) => *node = value.clone(),
    }
}

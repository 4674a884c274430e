//! How the node is written.

use super::*;
use crate::gpus::allocatable::AllocatedIds;
use crate::gpus::device_failures::NodeFailures;
use crate::testing::readings;

/// The node of an API server that refuses a write over an older version.
type Served = Arc<Mutex<Value>>;

fn served(metadata: &Value, spec: &Value) -> Served {
    let mut node = json!({"metadata": metadata, "spec": spec});
    node["metadata"]["name"] = json!("n1");
    node["metadata"]["resourceVersion"] = json!("1");
    Arc::new(Mutex::new(node))
}

fn answer(node: &mut Value, patch: &Value) -> (u16, Value) {
    let version = node["metadata"]["resourceVersion"].clone();
    let over = &patch["metadata"]["resourceVersion"];
    if !over.is_null() && *over != version {
        let refused = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "old"});
        return (409, refused);
    }
    merge(node, patch);
    let next: u64 = version.as_str().and_then(|v| v.parse().ok()).unwrap_or(0) + 1;
    node["metadata"]["resourceVersion"] = json!(next.to_string());
    (200, node.clone())
}

/// A writer of this node, and the node as it knows it.
fn writer(node: &Served, clear: ClearErrors) -> (NodeWriter, NodeView) {
    let known: api::Node = serde_json::from_value(node.lock().clone()).expect("a node");
    let known = NodeView::read(&known);
    let served = Arc::clone(node);
    let client = crate::testing::api_server(move |patch| answer(&mut served.lock(), &patch));
    let writer = NodeWriter {
        nodes: Api::all(client),
        name: "n1".to_owned(),
        published: crate::testing::published(&["GPU-a"]),
        resource: "nvidia.com/gpu".to_owned(),
        capacity: None,
        pods: Pods::default(),
        view: watch::Sender::new(Some(known.clone())),
        metrics: Metrics::default(),
        clear,
        taken: Mutex::default(),
    };
    (writer, known)
}

#[tokio::test]
async fn patches_taint_over_latest_resource_version() {
    let spec = json!({"taints": [{"key": "other", "effect": "NoSchedule"}]});
    let node = served(&json!({}), &spec);
    let (writer, known) = writer(&node, Box::new(|_| Box::pin(async { Ok(()) })));
    let drained = NodeFailures {
        drain_reason: Some("XID 79".to_owned()),
        ..NodeFailures::default()
    };
    let readings = readings(&["GPU-a"], drained);
    writer.published.set_readings(readings, AllocatedIds::new());
    let now = writer.published.get();
    let written = writer.write("{}", &now, None, known).await;
    assert_eq!(written, Ok(()));
    let node = node.lock();
    assert_eq!(node["metadata"]["annotations"][INVENTORY], "{}");
    let taints = node["spec"]["taints"].as_array().expect("taints").iter();
    let keys: Vec<_> = taints.map(|taint| taint["key"].as_str()).collect();
    assert_eq!(keys, [Some("other"), Some(drain::TAINT)]);
}

/// The administrator declares a second GPU healthy while the errors of the first are cleared.
#[tokio::test]
async fn removes_no_clearing_that_was_not_acted_on() {
    let node = served(
        &json!({"annotations": {drain::CLEARED: "GPU-a"}}),
        &json!({}),
    );
    let changed = Arc::clone(&node);
    let clear = move |gpus: Vec<String>| -> BoxFuture<'static, Result<(), String>> {
        assert_eq!(gpus, ["GPU-a"]);
        let second = json!({"metadata": {"annotations": {drain::CLEARED: "GPU-b"}}});
        answer(&mut changed.lock(), &second);
        Box::pin(async { Ok(()) })
    };
    let (writer, known) = writer(&node, Box::new(clear));
    let now = writer.published.get();
    let written = writer.write("{}", &now, None, known).await;
    assert!(written.is_err(), "it is tried again");
    let node = node.lock();
    assert_eq!(node["metadata"]["annotations"][drain::CLEARED], "GPU-b");
}

/// The watch shows a later change, such as a label of the administrator, before the answer to a
/// write.
#[tokio::test]
async fn answer_to_a_write_replaces_no_later_version() {
    let node = served(&json!({}), &json!({}));
    let (mut writer, known) = writer(&node, Box::new(|_| Box::pin(async { Ok(()) })));
    let (view, changed) = (writer.view.clone(), Arc::clone(&node));
    writer.nodes = Api::all(crate::testing::api_server(move |patch| {
        let mut node = changed.lock();
        let written = answer(&mut node, &patch);
        let labelled = json!({"metadata": {"labels": {"profile": "a"}}});
        let (_, later) = answer(&mut node, &labelled);
        let later: api::Node = serde_json::from_value(later).expect("a node");
        view.send_replace(Some(NodeView::read(&later)));
        written
    }));
    let now = writer.published.get();
    let written = writer.write("{}", &now, None, known).await;
    assert_eq!(written, Ok(()));
    let latest = node.lock()["metadata"]["resourceVersion"].clone();
    let shown = writer.view.borrow().clone();
    let shown = shown.and_then(|view| view.resource_version);
    assert_eq!(shown.as_deref(), latest.as_str());
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

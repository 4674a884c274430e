//! Removes what the agent wrote to its Node object, and nothing that others wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_core::inventory::INVENTORY;
use k8s_openapi::api::core::v1 as api;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use super::CLEANUP_UNTIL;
use crate::node_view::NodeView;
use crate::publish::capacity;
use crate::publish::conditions;
use crate::publish::drain;
use crate::publish::labels;

/// For each request.
const DEADLINE: Duration = Duration::from_secs(5);
/// Attempts, and the pause between two.
const TRIES: (u32, Duration) = (10, Duration::from_secs(1));

/// Clears the node; the last patch removes the annotation that asked for it.
pub(super) async fn clear(client: &Client, name: &str) {
    let nodes: Api<api::Node> = Api::all(client.clone());
    let mut tries = tokio::time::interval(TRIES.1);
    // The tries after a slow one do not follow at once.
    tries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..TRIES.0 {
        tries.tick().await;
        match tokio::time::timeout(DEADLINE * 4, clear_once(&nodes, name)).await {
            Ok(Ok(())) => {
                tracing::info!(
                    node = name,
                    "removed all fields of Aliquot from the Node object"
                );
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot clear the Node object; retrying"),
            Err(_) => tracing::warn!(
                "cannot clear the Node object: the API server did not answer; retrying"
            ),
        }
    }
    tracing::error!(
        node = name,
        "cannot clear the Node object; annotations, labels and conditions of Aliquot remain on it"
    );
}

async fn clear_once(nodes: &Api<api::Node>, name: &str) -> kube::Result<()> {
    let mut node = nodes.get(name).await?;
    let params = PatchParams {
        field_manager: Some("aliquot-device-plugin".to_owned()),
        ..PatchParams::default()
    };
    if let Some(patch) = status(&node) {
        node = nodes
            .patch_status(name, &params, &Patch::Strategic(patch))
            .await?;
    }
    if let Some(patch) = drain::taint_patch(&NodeView::read(&node), false) {
        nodes.patch(name, &params, &Patch::Merge(patch)).await?;
    }
    nodes
        .patch(name, &params, &Patch::Merge(metadata(&node)))
        .await?;
    Ok(())
}

/// The patch that removes our conditions and the capacity that we published. The kubelet's count of
/// replicas stays: the kubelet would write its 0 again.
fn status(node: &api::Node) -> Option<Value> {
    let existing = node.status.iter();
    let existing = existing.flat_map(|status| status.conditions.iter().flatten());
    let ours = existing.filter(|one| conditions::ALL.contains(&one.type_.as_str()));
    let removed: Vec<Value> = ours
        .map(|one| json!({"type": one.type_, "$patch": "delete"}))
        .collect();
    let mut status = json!({});
    if !removed.is_empty() {
        status["conditions"] = json!(removed);
    }
    let view = NodeView::read(node);
    if let Some(mut patch) = capacity::patch(&BTreeMap::new(), &view, true) {
        let published = patch["status"]["capacity"].take();
        if published.as_object().is_some_and(|keys| !keys.is_empty()) {
            status["capacity"] = published;
        }
    }
    (status != json!({})).then(|| json!({"status": status}))
}

/// The patch that removes our annotations and labels.
fn metadata(node: &api::Node) -> Value {
    let view = NodeView::read(node);
    let labels = labels::patch(&BTreeMap::new(), &view);
    let mut patch = labels.unwrap_or_else(|| json!({"metadata": {"annotations": {}}}));
    for key in [INVENTORY, capacity::OWNED, labels::OWNED, CLEANUP_UNTIL] {
        patch["metadata"]["annotations"][key] = Value::Null;
    }
    patch
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::layout::profile_status::PROFILE;
    use crate::testing::api_server;

    /// Another controller taints the node while it is being cleared.
    #[tokio::test]
    async fn removes_own_taint_over_latest_version_of_the_list() {
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let read = json!({
            "metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {"taints": [taint(drain::TAINT)]},
            "status": {"conditions": [{"type": PROFILE, "status": "True"}]},
        });
        let mut patched = read.clone();
        patched["metadata"]["resourceVersion"] = json!("3");
        patched["spec"]["taints"] = json!([taint(drain::TAINT), taint("other")]);
        let writes = Arc::<Mutex<Vec<Value>>>::default();
        let recorded = Arc::clone(&writes);
        let client = api_server(move |patch| {
            if patch.is_null() {
                return (200, read.clone());
            }
            recorded.lock().push(patch);
            (200, patched.clone())
        });
        let cleared = clear_once(&Api::all(client), "n").await;
        assert!(cleared.is_ok(), "{cleared:?}");
        let expected = json!({
            "metadata": {"resourceVersion": "3"}, "spec": {"taints": [taint("other")]},
        });
        assert_eq!(writes.lock()[1], expected);
    }

    #[test]
    fn removes_only_own_fields_from_node() {
        let node = json!({
            "metadata": {
                "labels": {"aliquot.dev/mode.vgpu": "2", "mine": "1"},
                "annotations": {
                    INVENTORY: "{}", labels::OWNED: "aliquot.dev/mode.vgpu",
                    capacity::OWNED: "nvidia.com/gpumem", CLEANUP_UNTIL: "t", "others": "x",
                },
            },
            "status": {
                "capacity": {"cpu": "2", "nvidia.com/gpumem": "80k"},
                "conditions": [
                    {"type": "Ready", "status": "True"}, {"type": PROFILE, "status": "True"},
                ],
            },
        });
        let node: api::Node = serde_json::from_value(node).expect("a node");
        let expected = json!({"metadata": {
            "labels": {"aliquot.dev/mode.vgpu": null},
            "annotations": {
                INVENTORY: null, labels::OWNED: null, capacity::OWNED: null, CLEANUP_UNTIL: null,
            },
        }});
        assert_eq!(metadata(&node), expected);
        let expected = json!({"status": {
            "conditions": [{"type": PROFILE, "$patch": "delete"}],
            "capacity": {"nvidia.com/gpumem": null},
        }});
        assert_eq!(status(&node), Some(expected));
        assert_eq!(status(&api::Node::default()), None);
    }
}

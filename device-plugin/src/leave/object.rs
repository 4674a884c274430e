//! What the agent wrote on its Node object, taken away.
//!
//! Fed by: the node as it is now. Must not: touch what others wrote.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_core::inventory::INVENTORY;
use k8s_openapi::api::core::v1 as api;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::ASKED;
use crate::capacity;
use crate::labels::owned;
use crate::node::{CHECKPOINT_LOST, GPU_SICK, RUNTIME, Seen};
use crate::profile_status::PROFILE;

/// For each request.
const DEADLINE: Duration = Duration::from_secs(5);
/// Tries, and the pause between two.
const TRIES: (u32, Duration) = (10, Duration::from_secs(1));

/// Clears the node; the annotation that asked for it goes with the last patch.
pub(super) async fn clear(client: &Client, name: &str) {
    let nodes: Api<api::Node> = Api::all(client.clone());
    let mut tries = tokio::time::interval(TRIES.1);
    for _ in 0..TRIES.0 {
        tries.tick().await;
        match tokio::time::timeout(DEADLINE * 4, once(&nodes, name)).await {
            Ok(Ok(())) => {
                tracing::info!(node = name, "nothing of ours is left on the node's object");
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "the node's object is not cleared"),
            Err(_) => tracing::warn!("the node's object is not cleared: no answer"),
        }
    }
    tracing::error!(node = name, "the node's object keeps what we wrote");
}

async fn once(nodes: &Api<api::Node>, name: &str) -> kube::Result<()> {
    let node = nodes.get(name).await?;
    let params = PatchParams {
        field_manager: Some("aliquot-device-plugin".to_owned()),
        ..PatchParams::default()
    };
    if let Some(patch) = status(&node) {
        nodes
            .patch_status(name, &params, &Patch::Strategic(patch))
            .await?;
    }
    if let Some(mut patch) = Seen::read(&node).drain.taint(false) {
        // Our status patch changed the version.
        if let Some(metadata) = patch.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), Value::Null);
        }
        nodes.patch(name, &params, &Patch::Merge(patch)).await?;
    }
    nodes
        .patch(name, &params, &Patch::Merge(metadata(&node)))
        .await?;
    Ok(())
}

/// The conditions, and the capacity that we published. The kubelet's own count of seats is its own:
/// it would write its 0 again.
fn status(node: &api::Node) -> Option<Value> {
    let there = node.status.iter();
    let there = there.flat_map(|status| status.conditions.iter().flatten());
    let ours = [CHECKPOINT_LOST, GPU_SICK, PROFILE, RUNTIME];
    let there = there.filter(|one| ours.contains(&one.type_.as_str()));
    let conditions: Vec<Value> = there
        .map(|one| json!({"type": one.type_, "$patch": "delete"}))
        .collect();
    let seen = Seen::read(node);
    let published = capacity::patch(&BTreeMap::new(), &seen.capacity, true);
    let published = published.map(|mut patch| patch["status"]["capacity"].take());
    let mut status = json!({});
    if !conditions.is_empty() {
        status["conditions"] = json!(conditions);
    }
    if let Some(published) =
        published.filter(|keys| keys.as_object().is_some_and(|k| !k.is_empty()))
    {
        status["capacity"] = published;
    }
    (status != json!({})).then(|| json!({"status": status}))
}

/// The annotations and labels.
fn metadata(node: &api::Node) -> Value {
    let seen = Seen::read(node);
    let labels = owned::patch(&BTreeMap::new(), &seen.labels, owned::Policy::Off);
    let mut patch = labels.unwrap_or_else(|| json!({"metadata": {"annotations": {}}}));
    for key in [INVENTORY, capacity::OWNED, owned::OWNED, ASKED] {
        patch["metadata"]["annotations"][key] = Value::Null;
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_we_wrote_goes_and_what_others_wrote_stays() {
        let node = json!({
            "metadata": {
                "labels": {"nvidia.com/gpu.count": "2", "mine": "1"},
                "annotations": {
                    INVENTORY: "{}", owned::OWNED: "nvidia.com/gpu.count",
                    capacity::OWNED: "nvidia.com/gpumem", ASKED: "t", "others": "x",
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
            "labels": {"nvidia.com/gpu.count": null},
            "annotations": {
                INVENTORY: null, owned::OWNED: null, capacity::OWNED: null, ASKED: null,
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

//! What decides among nodes that fit: our ranks, and a pod's own preferences
//! (docs/guides/scheduling-policies.md).

use std::sync::Arc;

use aliquot_e2e::pool::{Pool, Shape, node_of};
use aliquot_e2e::stack::Stack;
use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cases::{cases, limits, merge};

/// Ranks and each kind of preference decide.
pub(crate) async fn each_decides(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        gpus: 2,
        replicas: 10,
    };
    let names = ["prefer-1", "prefer-2", "prefer-3"];
    let nodes = names.map(|name| (name.to_owned(), shape));
    let pool = Pool::open(&stack, "prefer", &nodes).await?;
    try_join_all(names.map(|name| host(&stack, name))).await?;
    for (name, preference, expected) in cases(names) {
        let mut pod = pool.pod(name, &limits(name));
        merge(&mut pod, preference);
        stack.cluster.create_pod(pod).await?;
        let bound = pool.bound(name).await?;
        let found = node_of(&bound).unwrap_or_default();
        ensure!(
            expected.contains(&found),
            "{name}: {found}, expected {expected:?}"
        );
    }
    pool.close().await
}

/// A host name as affinity sees it; the second node with a taint `PreferNoSchedule`.
async fn host(stack: &Stack, name: &str) -> Result<()> {
    let taint = json!({"key": "shabby", "effect": "PreferNoSchedule"});
    let taints = if name == "prefer-2" {
        json!([taint])
    } else {
        json!([])
    };
    let patch = json!({
        "metadata": {"labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": taints},
    });
    let nodes: Api<Node> = Api::all(stack.cluster.admin()?);
    let patched = nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched
        .map(drop)
        .with_context(|| format!("patch node {name}"))
}

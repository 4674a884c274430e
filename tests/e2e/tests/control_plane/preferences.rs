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
use serde_json::{Value, json};

/// Ranks and each kind of preference decide.
pub(crate) async fn each_decides(stack: Arc<Stack>) -> Result<()> {
    let names = ["prefer-1", "prefer-2", "prefer-3"];
    let nodes = names.map(|name| (name.to_owned(), Shape::of_gpus(2)));
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

/// What the pod of this name requests. The first one's node is the fullest from then on.
fn limits(name: &str) -> [(&'static str, &'static str); 3] {
    match name {
        "required" => [("gpu", "1"), ("gpumem", "40000"), ("gpucores", "50")],
        _ => [("gpu", "1"), ("gpumem", "1000"), ("gpucores", "1")],
    }
}

type Case = (&'static str, Value, Vec<&'static str>);

/// Pods, what each prefers, and on which of three empty nodes it may land when they are created in
/// this order. The second node has a taint `PreferNoSchedule`.
fn cases([first, second, third]: [&'static str; 3]) -> Vec<Case> {
    let affinity = |affinity: Value| json!({"spec": {"affinity": affinity}});
    let required = |node: &str| {
        affinity(
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term(&[node])]}}}),
        )
    };
    let preferred = |preferences: &[(u32, &[&str])]| {
        let terms = preferences
            .iter()
            .map(|(weight, nodes)| json!({"weight": weight, "preference": term(nodes)}));
        let terms: Vec<_> = terms.collect();
        affinity(
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}),
        )
    };
    let policy = |name: &str| json!({"metadata": {"annotations": {"aliquot.dev/node-scheduler-policy": name}}});
    let near = json!({"labelSelector": {"matchLabels": {"app": "twin"}}, "topologyKey": "kubernetes.io/hostname"});
    let twin = |affinity: Value| json!({"metadata": {"labels": {"app": "twin"}}, "spec": {"affinity": affinity}});
    let apart = json!({"weight": 1, "podAffinityTerm": near});
    let apart = twin(
        json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}}),
    );
    let evenly = json!({"metadata": {"labels": {"app": "even"}}, "spec": {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "even"}}}]}});
    vec![
        ("required", required(second), vec![second]),
        // Taint or not: for a pod without preferences only our rank decides.
        ("plain", json!({}), vec![second]),
        ("binpack", policy("binpack"), vec![second]),
        ("spread", policy("spread"), vec![first, third]),
        ("one-preference", preferred(&[(1, &[third])]), vec![third]),
        (
            "two-preferences",
            preferred(&[(100, &[first]), (1, &[third])]),
            vec![first],
        ),
        (
            "faint-preference",
            preferred(&[(100, &[first, second, third]), (5, &[third])]),
            vec![second],
        ),
        ("twin-1", twin(json!({})), vec![second]),
        ("twin-2", apart, vec![first, third]),
        ("even-1", evenly.clone(), vec![second]),
        ("even-2", evenly, vec![first, third]),
    ]
}

fn term(nodes: &[&str]) -> Value {
    json!({"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]})
}

/// Puts the fields of `more` into `into`, objects field by field.
fn merge(into: &mut Value, more: Value) {
    match (into.as_object_mut(), more) {
        (Some(fields), Value::Object(more)) => {
            for (name, value) in more {
                merge(fields.entry(name).or_insert_with(|| json!({})), value);
            }
        }
        (_, more) => *into = more,
    }
}

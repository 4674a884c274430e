//! What decides among nodes that fit: our ranks, and what a pod itself wishes
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

/// Of the first pod: its node is the fullest from then on.
const LARGE: [(&str, &str); 3] = [("gpu", "1"), ("gpumem", "40000"), ("gpucores", "50")];
const SMALL: [(&str, &str); 3] = [("gpu", "1"), ("gpumem", "1000"), ("gpucores", "1")];

/// Issue D2, 8: each has its say.
pub(crate) async fn each_has_its_say(stack: Arc<Stack>) -> Result<()> {
    let shape = Shape {
        cards: 2,
        seats: 10,
    };
    let names = ["say-1", "say-2", "say-3"];
    let nodes = names.map(|name| (name.to_owned(), shape));
    let pool = Pool::open(&stack, "say", &nodes).await?;
    try_join_all(names.map(|name| host(&stack, name))).await?;
    for (name, wish, expected) in cases() {
        let limits = if name == "required" { LARGE } else { SMALL };
        let mut pod = pool.pod(name, &limits);
        merge(&mut pod, wish);
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

/// Pods, what each wishes, and where it may land.
fn cases() -> Vec<(&'static str, Value, &'static [&'static str])> {
    let affinity = |affinity: Value| json!({"spec": {"affinity": affinity}});
    let required = |node: &str| {
        affinity(
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term(&[node])]}}}),
        )
    };
    let preferred = |wishes: &[(u32, &[&str])]| {
        let terms = wishes
            .iter()
            .map(|(weight, nodes)| json!({"weight": weight, "preference": term(nodes)}));
        let terms: Vec<_> = terms.collect();
        affinity(
            json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}),
        )
    };
    let policy =
        json!({"metadata": {"annotations": {"aliquot.dev/node-scheduler-policy": "spread"}}});
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
        ("required", required("say-2"), &["say-2"]),
        // Taint or not: nothing but our rank speaks for a pod without wishes.
        ("binpack", json!({}), &["say-2"]),
        ("spread", policy, &["say-1", "say-3"]),
        ("one-wish", preferred(&[(1, &["say-3"])]), &["say-3"]),
        (
            "two-wishes",
            preferred(&[(100, &["say-1"]), (1, &["say-3"])]),
            &["say-1"],
        ),
        (
            "faint-wish",
            preferred(&[(100, &["say-1", "say-2", "say-3"]), (5, &["say-3"])]),
            &["say-2"],
        ),
        ("twin-1", twin(json!({})), &["say-2"]),
        ("twin-2", apart, &["say-1", "say-3"]),
        ("even-1", evenly.clone(), &["say-2"]),
        ("even-2", evenly, &["say-1", "say-3"]),
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

/// A host name as affinity sees it; the second node with a taint that asks
/// pods to stay away.
async fn host(stack: &Stack, name: &str) -> Result<()> {
    let taint = json!({"key": "shabby", "effect": "PreferNoSchedule"});
    let taints = if name == "say-2" {
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

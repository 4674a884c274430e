//! What pods prefer among three nodes, and where each may land
//! (docs/guides/scheduling-policies.md): nothing, a policy, affinity, a spread. The same for fake
//! and real nodes.

use serde_json::{Value, json};

/// What the pod of this name requests. The first one's node is the fullest from then on.
pub(crate) fn limits(name: &str) -> [(&'static str, &'static str); 3] {
    match name {
        "required" => [("gpu", "1"), ("gpumem", "40000"), ("gpucores", "50")],
        _ => [("gpu", "1"), ("gpumem", "1000"), ("gpucores", "1")],
    }
}

type Case = (&'static str, Value, Vec<&'static str>);

/// Pods, what each prefers, and on which of three empty nodes it may land when they are created in
/// this order. The second node has a taint `PreferNoSchedule`.
pub(crate) fn cases([first, second, third]: [&'static str; 3]) -> Vec<Case> {
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
pub(crate) fn merge(into: &mut Value, more: Value) {
    match (into.as_object_mut(), more) {
        (Some(fields), Value::Object(more)) => {
            for (name, value) in more {
                merge(fields.entry(name).or_insert_with(|| json!({})), value);
            }
        }
        (_, more) => *into = more,
    }
}

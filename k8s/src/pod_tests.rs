//! Pods as the API server encodes them, and what they mean to the books.

use aliquot_core::{Memory, Mib, Percent, Policy};
use serde_json::{Value, json};

use super::*;

fn pod(spec: &Value, annotations: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": annotations},
        "spec": spec,
    }))
    .unwrap()
}

fn limits(values: &Value) -> Value {
    json!({"limits": values})
}

#[test]
fn a_demand_keeps_the_containers_order_and_stages() {
    let spec = json!({
        "initContainers": [
            {"name": "warm", "resources": limits(&json!({"nvidia.com/gpu": "1"}))},
            {"name": "proxy", "restartPolicy": "Always"},
        ],
        "containers": [
            {"name": "main", "resources": {"requests": {"nvidia.com/gpumem": "3k", "nvidia.com/priority": "0"}}},
        ],
    });
    let demand = demand(&pod(&spec, &json!({})), &Settings::default()).unwrap();
    let shown: Vec<_> = demand
        .containers
        .iter()
        .map(|c| (c.name.as_str(), c.stage, c.ask.map(|ask| ask.memory)))
        .collect();
    assert_eq!(
        shown,
        [
            ("warm", Stage::Init, Some(Memory::Mib(Mib(5000)))),
            ("proxy", Stage::Sidecar, None),
            ("main", Stage::App, Some(Memory::Mib(Mib(3000)))),
        ]
    );
    assert_eq!(demand.priority, 0);
}

#[test]
fn an_unreadable_request_names_container_resource_and_value() {
    let spec = json!({"containers": [
        {"name": "main", "resources": limits(&json!({"nvidia.com/gpumem": "16Gi"}))},
    ]});
    let error = demand(&pod(&spec, &json!({})), &Settings::default()).unwrap_err();
    let text = error.to_string();
    for part in ["\"main\"", "nvidia.com/gpumem", "\"16Gi\"", "write 16384"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn our_policy_annotation_wins_over_hamis() {
    let annotations = json!({
        "hami.io/node-scheduler-policy": "binpack",
        "aliquot.dev/node-scheduler-policy": "spread",
        "hami.io/gpu-scheduler-policy": "closest",
    });
    let spec = json!({"containers": []});
    let error = demand(&pod(&spec, &annotations), &Settings::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation hami.io/gpu-scheduler-policy: \"closest\" is not a GPU policy; accepted: one of binpack, spread, fragmentation, or numa, mutex, topology, or several with commas between"
    );
    let spread = json!({"aliquot.dev/node-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "x"});
    let demand = demand(&pod(&spec, &spread), &Settings::default()).unwrap();
    assert_eq!(demand.node_policy, Some(Policy::Spread));
}

#[test]
fn an_allocation_counts_only_with_its_node_and_a_damaged_one_counts_as_everything() {
    let text = r#"{"v":1,"node":"n","containers":{"main":[{"resource":"r","gpu":"GPU-0","memory":3000,"cores":30}]},"priority":1}"#;
    let bound = json!({"nodeName": "n", "containers": [{"name": "main"}]});
    let free = json!({"containers": [{"name": "main"}]});
    let with = |text: &str| json!({"aliquot.dev/allocation": text});

    assert_eq!(held(&pod(&free, &with(text))), None);
    assert_eq!(held(&pod(&bound, &json!({}))), None);
    let Some((_, Held::Uses(uses))) = held(&pod(&bound, &with(text))) else {
        panic!("readable");
    };
    let share = uses.values().next().unwrap();
    assert_eq!((share.memory, share.cores), (Mib(3000), Percent(30)));
    let elsewhere = text.replace("\"n\"", "\"m\"");
    for damaged in ["", "{", "{}", &elsewhere] {
        let held = held(&pod(&bound, &with(damaged)));
        assert_eq!(held, Some(("n".into(), Held::Unreadable)), "{damaged:?}");
    }
}

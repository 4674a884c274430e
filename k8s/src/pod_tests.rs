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
        .map(|c| {
            (
                c.name.as_str(),
                c.stage,
                c.asks.first().map(|ask| ask.memory),
            )
        })
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

    assert_eq!(held(&pod(&free, &with(text)), &Settings::default()), None);
    assert_eq!(held(&pod(&bound, &json!({})), &Settings::default()), None);
    let Some((_, Held::Uses(uses))) = held(&pod(&bound, &with(text)), &Settings::default()) else {
        panic!("readable");
    };
    let share = uses.values().next().unwrap();
    assert_eq!((share.memory, share.cores), (Mib(3000), Percent(30)));
    let elsewhere = text.replace("\"n\"", "\"m\"");
    for damaged in ["", "{", "{}", &elsewhere] {
        let held = held(&pod(&bound, &with(damaged)), &Settings::default());
        assert_eq!(held, Some(("n".into(), Held::Unreadable)), "{damaged:?}");
    }
}

#[test]
fn what_hami_gave_a_bound_pod_counts_unless_we_gave_it_something() {
    let spec = json!({
        "nodeName": "n",
        "initContainers": [{"name": "warm"}],
        "containers": [{"name": "main", "resources": limits(&json!({"nvidia.com/gpu": "1"}))}],
    });
    let settings = Settings::default();
    let held = |annotations: Value| {
        let (_, held) = held(&pod(&spec, &annotations), &settings)?;
        match held {
            Held::Uses(uses) => uses.values().next().map(|used| used.memory),
            Held::Unreadable => Some(Mib(u64::MAX)),
        }
    };
    let text = ";GPU-0,NVIDIA,3000,30:;";
    let full = Some(Mib(u64::MAX));
    assert_eq!(held(json!({hami::ALLOCATED: text})), Some(Mib(3000)));
    assert_eq!(
        held(json!({hami::ALLOCATED: text, hami::NODE: "n"})),
        Some(Mib(3000))
    );
    assert_eq!(held(json!({hami::ALLOCATED: text, hami::NODE: "m"})), full);
    assert_eq!(held(json!({hami::ALLOCATED: "GPU-0,NVIDIA,x,30:;"})), full);
    let ours = r#"{"v":1,"node":"n","containers":{"main":[{"resource":"r","gpu":"GPU-0","memory":1,"cores":0}]},"priority":1}"#;
    assert_eq!(
        held(json!({hami::ALLOCATED: text, ALLOCATION: ours})),
        Some(Mib(1))
    );
    assert_eq!(held(json!({hami::ALLOCATED: text, ALLOCATION: "{"})), full);
}

#[test]
fn a_pod_that_asks_for_no_gpu_cannot_fill_a_node_with_hamis_annotation() {
    let spec = json!({"nodeName": "n", "containers": [{"name": "main"}]});
    let forged = pod(&spec, &json!({hami::ALLOCATED: "damaged"}));
    assert_eq!(held(&forged, &Settings::default()), None);
}

#[test]
fn two_containers_of_one_name_shared_one_grant() {
    let spec = json!({"initContainers": [{"name": "c", "restartPolicy": "Always"}],
        "containers": [{"name": "c"}]});
    let refused = demand(&pod(&spec, &json!({})), &Settings::default());
    let why = "two containers are called \"c\"; accepted: a name of its own for each";
    assert_eq!(refused.unwrap_err().to_string(), why);
}

#[test]
fn mig_20_each_resource_of_a_container_is_an_ask_of_its_own() {
    let settings = Settings {
        extra: vec!["nvidia.com/gpu.shared".to_owned()],
        ..Settings::default()
    };
    let asks = |limits: serde_json::Value, filled: serde_json::Value| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"annotations": {DEFAULTED: filled.to_string()}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }))
        .unwrap();
        let demand = demand(&pod, &settings).unwrap();
        let container = &demand.containers[0];
        let line = |ask: &aliquot_core::Ask| {
            let (name, wrote) = (demand.resource(ask), ask.wrote);
            format!("{} {name} {:?}/{}", ask.count, wrote.memory, wrote.cores)
        };
        container
            .asks
            .iter()
            .map(line)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let check = |limits, filled, expected: &str| assert_eq!(asks(limits, filled), expected);
    let two = json!({"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "2"});
    let found = "1 nvidia.com/mig-1g.5gb false/false, 2 nvidia.com/mig-2g.10gb false/false";
    check(two, json!({}), found);
    // Amounts are of the renamed card, unless a number of usual ones is beside it.
    let shared = json!({"nvidia.com/gpu.shared": "1", "nvidia.com/gpumem": "3000"});
    check(shared, json!({}), "1 nvidia.com/gpu.shared true/false");
    let both =
        json!({"nvidia.com/gpu.shared": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpu": "1"});
    let found = "1 nvidia.com/gpu true/false, 1 nvidia.com/gpu.shared false/false";
    check(both, json!({}), found);
    // What the webhook filled in nobody wrote, unless somebody changed it since.
    let bare =
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5000", "nvidia.com/gpucores": "0"});
    let filled = json!({"main": {"nvidia.com/gpumem": "5000", "nvidia.com/gpucores": "0"}});
    check(bare.clone(), filled, "1 nvidia.com/gpu false/false");
    let filled = json!({"main": {"nvidia.com/gpumem": "4000"}, "other": {}});
    check(bare.clone(), filled, "1 nvidia.com/gpu true/true");
    check(bare, json!("damaged"), "1 nvidia.com/gpu true/true");
    check(json!({"nvidia.com/mig-1g.5gb": "0"}), json!({}), "");
}

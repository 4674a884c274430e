//! Pods as the API server encodes them, and what the ledger reads from them.

use aliquot_core::{Memory, Mib, Percent};
use serde_json::{Value, json};

use super::*;

fn pod(spec: &Value, annotations: &Value) -> PodView {
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
fn demand_preserves_container_order_and_stages() {
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
                c.requests.first().map(|request| request.memory),
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
fn hami_11_reads_requests_by_their_other_names() {
    use aliquot_core::request::Resource;
    let renamed = Resource::ALL.map(|resource| (resource, format!("x/{resource:?}")));
    let settings = Settings {
        names: ResourceNames::with(renamed),
        ..Settings::default()
    };
    let read = |written: Value| {
        let spec = json!({"containers": [{"name": "main", "resources": limits(&written)}]});
        let demand = demand(&pod(&spec, &json!({})), &settings).unwrap();
        let request = demand.containers[0].requests.first().copied();
        let amounts = request.map(|one| (one.count, one.memory, one.cores));
        (amounts, demand.priority)
    };
    let all = json!({"x/Gpu": "2", "x/Memory": "3k", "x/Cores": "30", "x/Priority": "0"});
    let amounts = (2, Memory::Mib(Mib(3000)), Percent(30));
    assert_eq!(read(all), (Some(amounts), 0));
    let part = json!({"x/Gpu": "1", "x/MemoryPercentage": "10"});
    let amounts = (1, Memory::Share(Percent(10)), Percent(0));
    assert_eq!(read(part), (Some(amounts), 1));
    assert_eq!(read(json!({"nvidia.com/gpu": "1"})), (None, 1));
}

#[test]
fn invalid_request_names_container_resource_and_value() {
    let spec = json!({"containers": [
        {"name": "main", "resources": limits(&json!({"nvidia.com/gpumem": "16Gi"}))},
    ]});
    let error = demand(&pod(&spec, &json!({})), &Settings::default()).unwrap_err();
    let text = error.to_string();
    for part in ["\"main\"", "nvidia.com/gpumem", "\"16Gi\"", "write 16384"] {
        assert!(text.contains(part), "{text}");
    }
}

/// As the webhook: the scheduler is also asked about a pod whose count is 0.
#[test]
fn preferences_count_only_with_a_share() {
    let read = |count: &str| {
        let gpu = limits(&json!({"nvidia.com/gpu": count}));
        let spec = json!({"containers": [{"name": "main", "resources": gpu}]});
        let invalid = json!({"aliquot.dev/numa-bind": "1"});
        demand(&pod(&spec, &invalid), &Settings::default())
    };
    assert!(!read("0").unwrap().requests_gpu());
    let error = read("1").unwrap_err();
    assert!(matches!(error, DemandError::Preference(_)), "{error}");
}

/// A placement compares each share with those before it, on every node, and what is remembered of a
/// pod names all of its containers.
#[test]
fn rejects_pod_of_more_than_64_containers_with_shares() {
    let read = |shares: usize, idle: usize| {
        let gpu = limits(&json!({"nvidia.com/gpu": "1"}));
        let share = |index| json!({"name": format!("share{index}"), "resources": gpu});
        let other = |index| json!({"name": format!("idle{index}")});
        let shares: Value = (0..shares).map(share).collect();
        let others: Value = (0..idle).map(other).collect();
        let spec = json!({"initContainers": shares, "containers": others});
        let demand = demand(&pod(&spec, &json!({})), &Settings::default());
        let kept = demand.map(|demand| demand.containers.len());
        kept.map_err(|error| error.to_string())
    };
    assert_eq!(read(64, 192), Ok(256));
    assert_eq!(read(0, 300), Ok(300));
    let text = "65 containers request GPUs; expected: at most 64 in a pod";
    assert_eq!(read(65, 1), Err(text.to_owned()));
    let text = "257 containers; expected: at most 256 in a pod that requests GPUs";
    assert_eq!(read(1, 256), Err(text.to_owned()));
}

#[test]
fn rejects_pod_with_unreadable_request_annotation() {
    let spec = json!({"containers": [
        {"name": "main", "resources": limits(&json!({"nvidia.com/gpu": "1"}))},
    ]});
    let refused = demand(&pod(&spec, &json!({REQUEST: "{}"})), &Settings::default());
    let expected = "annotation aliquot.dev/request: cannot read the annotation: missing field `v`";
    let error = refused.unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn counts_allocation_only_on_its_node_and_fails_closed() {
    let text = r#"{"v":1,"node":"n","containers":{"main":[{"resource":"r","gpu":"GPU-0","memory":3000,"cores":30}]},"priority":1}"#;
    let bound = json!({"nodeName": "n", "schedulerName": SCHEDULER_NAME, "containers": [
        {"name": "main", "resources": limits(&json!({"nvidia.com/gpu": "1"}))}]});
    let free = json!({"containers": [{"name": "main"}]});
    let with = |text: &str| json!({"aliquot.dev/allocation": text});

    assert_eq!(
        allocated(&pod(&free, &with(text)), &Settings::default()),
        None
    );
    assert_eq!(
        allocated(&pod(&bound, &json!({})), &Settings::default()),
        None
    );
    let Some((_, AllocatedUse::Known(uses))) =
        allocated(&pod(&bound, &with(text)), &Settings::default())
    else {
        panic!("readable");
    };
    let share = uses.values().next().unwrap();
    assert_eq!((share.memory, share.cores), (Mib(3000), Percent(30)));
    let elsewhere = text.replace("\"n\"", "\"m\"");
    for damaged in ["", "{", "{}", &elsewhere] {
        let allocated_of = allocated(&pod(&bound, &with(damaged)), &Settings::default());
        assert_eq!(
            allocated_of,
            Some(("n".into(), AllocatedUse::Unreadable)),
            "{damaged:?}"
        );
    }
}

#[test]
fn unreadable_allocation_proves_nothing_unless_we_admitted_pod() {
    let settings = Settings {
        extra: vec!["nvidia.com/gpu.shared".to_owned()],
        ..Settings::default()
    };
    let check = |scheduler: Option<&str>, requested: Value, expected: AllocatedUse| {
        let container = json!({"name": "main", "resources": limits(&requested)});
        let mut spec = json!({"nodeName": "n", "containers": [container]});
        if let Some(scheduler) = scheduler {
            spec["schedulerName"] = json!(scheduler);
        }
        let forged = pod(&spec, &json!({ALLOCATION: "{"}));
        let (_, found) = allocated(&forged, &settings).unwrap();
        assert_eq!(found, expected, "{spec}");
    };
    let ours = Some(SCHEDULER_NAME);
    let gpu = || json!({"nvidia.com/gpu": "1"});
    check(ours, gpu(), AllocatedUse::Unreadable);
    for requested in [
        json!({"nvidia.com/gpumem": "1000"}),
        json!({"nvidia.com/mig-1g.5gb": "1"}),
        json!({"nvidia.com/gpu.shared": "1"}),
        json!({"nvidia.com/gpu": "many"}),
    ] {
        check(ours, requested, AllocatedUse::Unreadable);
    }
    for requested in [json!({}), json!({"nvidia.com/gpu": "0", "cpu": "1"})] {
        check(ours, requested, AllocatedUse::Unproven);
    }
    for other in [Some("default-scheduler"), Some(""), None] {
        check(other, gpu(), AllocatedUse::Unproven);
    }
}

#[test]
fn rejects_duplicate_container_names() {
    let spec = json!({"initContainers": [{"name": "c", "restartPolicy": "Always"}],
        "containers": [{"name": "c"}]});
    let refused = demand(&pod(&spec, &json!({})), &Settings::default());
    let why = "duplicate container name \"c\"; expected: a unique name for each container";
    assert_eq!(refused.unwrap_err().to_string(), why);
}

#[test]
fn mig_20_reads_each_resource_as_a_request_of_its_own() {
    let settings = Settings {
        extra: vec!["nvidia.com/gpu.shared".to_owned()],
        ..Settings::default()
    };
    let requests = |limits: serde_json::Value, filled: serde_json::Value| {
        let pod: PodView = serde_json::from_value(json!({
            "metadata": {"annotations": {DEFAULTED: filled.to_string()}},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }))
        .unwrap();
        let demand = demand(&pod, &settings).unwrap();
        let container = &demand.containers[0];
        let line = |request: &aliquot_core::GpuRequest| {
            let (name, wrote) = (demand.resource(request), request.written);
            format!(
                "{} {name} {:?}/{}",
                request.count, wrote.memory, wrote.cores
            )
        };
        container
            .requests
            .iter()
            .map(line)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let check = |limits, filled, expected: &str| assert_eq!(requests(limits, filled), expected);
    let two = json!({"nvidia.com/mig-1g.5gb": "1", "nvidia.com/mig-2g.10gb": "2"});
    let found = "1 nvidia.com/mig-1g.5gb false/false, 2 nvidia.com/mig-2g.10gb false/false";
    check(two, json!({}), found);
    // Amounts apply to the renamed device, unless a count of the main resource is beside
    // it.
    let shared = json!({"nvidia.com/gpu.shared": "1", "nvidia.com/gpumem": "3000"});
    check(shared, json!({}), "1 nvidia.com/gpu.shared true/false");
    let both =
        json!({"nvidia.com/gpu.shared": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpu": "1"});
    let found = "1 nvidia.com/gpu true/false, 1 nvidia.com/gpu.shared false/false";
    check(both, json!({}), found);
    // Defaulted values do not count as written, unless somebody changed them since.
    let bare =
        json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "5000", "nvidia.com/gpucores": "0"});
    let filled = json!({"main": {"nvidia.com/gpumem": "5000", "nvidia.com/gpucores": "0"}});
    check(bare.clone(), filled, "1 nvidia.com/gpu false/false");
    let filled = json!({"main": {"nvidia.com/gpumem": "4000"}, "other": {}});
    check(bare.clone(), filled, "1 nvidia.com/gpu true/true");
    check(bare, json!("damaged"), "1 nvidia.com/gpu true/true");
    check(json!({"nvidia.com/mig-1g.5gb": "0"}), json!({}), "");
}

fn check_host_resources(spec: &Value, cpu: u64, memory: u64) {
    let pod: PodView = serde_json::from_value(json!({ "spec": spec })).unwrap();
    let sum = requested_host_resources(&pod);
    assert_eq!((sum.cpu.0, sum.memory.0), (cpu, memory), "{spec}");
}

fn container(cpu: &str, memory: &str) -> Value {
    json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}})
}

#[test]
fn requests_follow_kube_scheduler_rule() {
    let (small, large) = (container("250m", "1Gi"), container("2", "64Mi"));
    check_host_resources(&json!({"containers": [{"name": "c"}]}), 0, 0);
    check_host_resources(&json!({"containers": [small, small]}), 500, 2048);
    let mut sidecar = large.clone();
    sidecar["restartPolicy"] = json!("Always");
    check_host_resources(
        &json!({"initContainers": [sidecar, large], "containers": [small]}),
        4000,
        1088,
    );
    check_host_resources(
        &json!({"containers": [small], "overhead": {"cpu": "1"},
            "resources": {"requests": {"memory": "3Gi"}}}),
        1250,
        3072,
    );
}

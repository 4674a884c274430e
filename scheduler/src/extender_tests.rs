//! Calls as kube-scheduler and simulators send them, answered from a small ledger.

use std::sync::Arc;

use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use axum::body::{Body, to_bytes};
use k8s_openapi::api::core::v1::Node;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::ledger_cache::tests::{from, node, pod, pod_json};
use crate::pod_client::tests::{api_server, status};
use crate::requeue::take_requeueable;

/// Nodes `a` of 1000 MiB, `b` of 500 and `c` of 2000, without pods.
fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    let nodes = [("a", 1000), ("b", 500), ("c", 2000)];
    Index::<Node>::reset(&cache, nodes.map(|(name, size)| node(name, size)).to_vec());
    Index::<PodView>::reset(&cache, vec![]);
    cache
}

fn call(pod: &Value, names: &Value) -> Vec<u8> {
    json!({"Pod": pod, "NodeNames": names})
        .to_string()
        .into_bytes()
}

fn asks(name: &str, memory: u64) -> Value {
    pod_json(name, memory, None)
}

fn filter(cache: &LedgerCache, body: &[u8], shortlist: usize) -> Value {
    let (events, _event_rx) = event::queue();
    let call = Call::read(body, cache.settings()).unwrap();
    let (_, answer) = call.filter(cache, &events, shortlist);
    serde_json::to_value(answer).unwrap()
}

fn ranks(cache: &LedgerCache, body: &[u8]) -> Vec<(String, i64)> {
    let call = Call::read(body, cache.settings()).unwrap();
    let lines = call.prioritize(cache).into_iter();
    lines.map(|line| (line.host, line.score)).collect()
}

#[test]
fn returns_all_nodes_without_a_shortlist() {
    let cache = cache();
    let body = call(&asks("p", 100), &json!(["a", "b", "c"]));
    let named = |shortlist| filter(&cache, &body, shortlist)["NodeNames"].clone();
    assert_eq!(named(1), json!(["b"]));
    assert_eq!(named(0), json!(["b", "a", "c"]));
}

#[test]
fn refuses_in_one_entry_and_records_offered_nodes() {
    let cache = cache();
    let answer = filter(&cache, &call(&asks("p", 900), &json!(["b", "gone"])), 64);
    let text = "GPU request fits none of 2 nodes: 1 CardInsufficientMemory, 1 NodeNotRegistered; it needs 900 MiB, and at most 500 MiB are free on one GPU";
    assert_eq!(answer["FailedAndUnresolvableNodes"], json!({"b": text}));
    assert_eq!(answer["FailedNodes"], Value::Null);
    assert_eq!(answer["NodeNames"], json!([]));
    // Capacity on a node that was not offered, for example for a taint, does not count.
    let offered = cache.pending(&"p".into()).unwrap().offered.clone();
    let cluster = cache.snapshot();
    let inside = |name| offered.contains(cluster.slot(name).unwrap());
    assert_eq!(["a", "b", "c"].map(inside), [false, true, false]);
    Index::<Node>::apply(&cache, node("c", 3000));
    assert!(take_requeueable(&cache).is_empty());
    Index::<Node>::apply(&cache, node("b", 3000));
    assert_eq!(take_requeueable(&cache).len(), 1);
}

fn demand(memory: u64) -> Demand {
    pod::demand(&pod("d", memory, None), &pod::Settings::default()).unwrap()
}

/// kube-scheduler's watch is behind ours.
#[test]
fn deleted_pod_is_never_put_back() {
    let deletions: [fn(&LedgerCache); 2] = [
        |cache| Index::delete(cache, pod("p", 100, None)),
        |cache| Index::<PodView>::reset(cache, vec![]),
    ];
    for delete in deletions {
        let cache = cache();
        Index::apply(&cache, pod("p", 100, None));
        delete(&cache);
        for memory in [100, 9000] {
            filter(&cache, &call(&asks("p", memory), &json!(["a"])), 64);
            assert!(cache.pending(&"p".into()).is_none(), "{memory}");
            let assumed = cache.read(|ledger| ledger.assumed(&"p".into()).is_some());
            assert!(!assumed, "{memory}");
        }
    }
}

#[test]
fn ranks_cpu_only_pods_only_in_their_own_entry() {
    let cache = cache();
    assert!(
        cache
            .reserve(&"x".into(), &"d".into(), &"b".into(), &demand(500))
            .is_ok()
    );
    let names = json!(["a", "b", "no-gpu"]);
    let plain =
        json!({"metadata": {"name": "cpu", "uid": "cpu"}, "spec": {"containers": [{"name": "c"}]}});
    let cpu_only = |pod: &Value| {
        let body = call(pod, &names);
        let call = Call::read(&body, cache.settings()).unwrap();
        let ranks = call.prioritize_cpu_only(&cache).into_iter();
        ranks.map(|line| line.score).collect::<Vec<_>>()
    };
    let ranks_of = |pod: &Value| {
        ranks(&cache, &call(pod, &names))
            .into_iter()
            .map(|(_, rank)| rank)
            .collect::<Vec<_>>()
    };
    assert!(cpu_only(&plain)[2] == 10 && cpu_only(&plain)[0] < 10);
    assert_eq!(ranks_of(&plain), [0, 0, 0]);
    assert_eq!(cpu_only(&asks("p", 1)), [0, 0, 0]);
}

/// A pod that pins one MIG instance by its position, bound to it or not.
fn pinned(name: &str, bound: bool) -> Value {
    let mut pod = asks(name, 1);
    let limits = json!({"nvidia.com/mig-3g.20gb": "1"});
    pod["spec"]["containers"] = json!([{"name": "main", "resources": {"limits": limits}}]);
    let mut annotations = json!({"aliquot.dev/use-gpu": "1:4:3g.20gb"});
    if bound {
        pod["spec"]["nodeName"] = json!("a");
        let given = json!({"v": 1, "node": "a", "priority": 1, "containers": {"main": [
            {"resource": "nvidia.com/mig-3g.20gb", "gpu": "GPU-a", "memory": 19968, "cores": 42,
                "mig": {"profile": "3g.20gb", "start": 4}}]}});
        annotations["aliquot.dev/allocation"] = json!(given.to_string());
    }
    pod["metadata"]["annotations"] = annotations;
    pod
}

#[test]
fn reports_what_is_missing_in_a_malformed_call() {
    let settings = pod::Settings::default();
    let check = |body: Value, expected: &str| {
        let body = body.to_string();
        let error = Call::read(body.as_bytes(), &settings).err().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    check(json!({}), "no Pod");
    let nodes = json!({"items": []});
    check(json!({"Pod": {}, "Nodes": nodes}), "nodeCacheCapable: true");
    check(json!({"Pod": 7}), "cannot read the extender call");
    let odd = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": "16Gi"}}}]}});
    check(json!({"Pod": odd, "NodeNames": []}), "16384");
}

/// Node `a` has one GPU with dynamic MIG.
fn cache_with_dynamic_mig() -> LedgerCache {
    let cache = cache();
    let mut object: Node = node("a", 1000);
    let text = json!({"v": 1, "reads": [1], "gpus": [{
        "uuid": "GPU-a", "index": 1, "model": "A100", "memory": 40960, "scaled": 40960,
        "cores": 100, "replicas": 0, "mode": "mig", "resource": "nvidia.com/gpu", "health": "ok",
        "mig": {"compute": 7, "profiles": [{"name": "3g.20gb", "compute": 3, "size": 4,
            "memory": 19968, "starts": [0, 4], "most": 2}], "instances": []},
    }]});
    let annotations = [(
        aliquot_core::inventory::INVENTORY.to_owned(),
        text.to_string(),
    )];
    object.metadata.annotations = Some(annotations.into());
    Index::<Node>::reset(&cache, vec![object]);
    cache
}

#[tokio::test(start_paused = true)]
async fn mig_5_refusal_names_pod_that_has_the_pinned_device() {
    let cache = cache_with_dynamic_mig();
    let names = json!(["a"]);
    let free = filter(&cache, &call(&pinned("first", false), &names), 64);
    assert_eq!(free["NodeNames"], names);
    // Whoever may read the pod reads the refusal, but not the pods of other namespaces.
    for (namespace, named) in [("d", "d/first"), ("other", "1 pod of another namespace")] {
        let mut holder = pinned("first", true);
        holder["metadata"]["namespace"] = json!(namespace);
        Index::<PodView>::reset(&cache, vec![from(holder)]);
        let answer = filter(&cache, &call(&pinned("second", false), &names), 64);
        let text = format!(
            "GPU request does not fit the one node offered: 1 GpuPinned (allocated to {named})"
        );
        assert_eq!(answer["FailedAndUnresolvableNodes"]["a"], text);
    }
}

#[tokio::test]
async fn pod_with_zero_gpus_is_a_pod_without_gpus_in_every_verb() {
    let cache = Arc::new(cache());
    let names = json!(["cpu", "a"]);
    let zero = |resources: Value| {
        let mut pod = asks("p", 100);
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        pod["spec"]["containers"][0]["resources"] = json!({"limits": resources});
        pod
    };
    for resources in [
        json!({"nvidia.com/gpu": "0"}),
        json!({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"}),
        json!({"nvidia.com/mig-1g.5gb": "0"}),
        json!({"nvidia.com/priority": "1"}),
    ] {
        let pod = zero(resources);
        let body = call(&pod, &names);
        assert_eq!(filter(&cache, &body, 1)["NodeNames"], names, "{pod}");
        let expected = [("cpu".to_owned(), 0), ("a".to_owned(), 0)];
        assert_eq!(ranks(&cache, &body), expected);
        let victims = json!({"cpu": {"Pods": [{"UID": "b"}], "NumPDBViolations": 0}});
        let asked = json!({"Pod": pod, "NodeNameToMetaVictims": victims}).to_string();
        let answer = preempt(&cache, asked.as_bytes()).unwrap();
        let answer = serde_json::to_value(answer).unwrap();
        assert_eq!(answer["NodeNameToMetaVictims"], victims);
        // The watch shows it before its Binding.
        Index::<PodView>::apply(&*cache, from(pod.clone()));
        let (client, mut calls) = api_server();
        let server = tokio::spawn(async move {
            let call = calls.next_call().await.expect("a GET");
            call.answer(200, &pod);
            let call = calls.next_call().await.expect("a Binding");
            let posted = call.body.clone();
            call.answer(201, &status(201));
            posted
        });
        let (events, mut event_rx) = event::queue();
        let pods = crate::pod_client::PodClient::new(client);
        let binder = Binder::new(cache.clone(), pods, events, Leader::always());
        let args = ExtenderBindingArgs {
            pod_name: "p".to_owned(),
            pod_namespace: "d".to_owned(),
            pod_uid: "p".to_owned(),
            node: "cpu".to_owned(),
        };
        binder.bind(&args).await.expect("bound");
        let posted = server.await.unwrap();
        assert_eq!(posted["target"]["name"], "cpu");
        assert_eq!(posted["metadata"]["annotations"], json!({}));
        assert!(event_rx.try_recv().is_err(), "no event");
        assert!(cache.read(|ledger| ledger.pod_entry(&"p".into()).is_none()));
    }
}

/// Before its first list every node would be free.
#[tokio::test]
async fn scheduler_without_a_ledger_places_nothing() {
    let (client, _calls) = api_server();
    let (events, _event_rx) = event::queue();
    let cache = Arc::new(cache());
    let pods = crate::pod_client::PodClient::new(client);
    let binder = Binder::new(cache.clone(), pods, events.clone(), Leader::always());
    let router = router(ExtenderState {
        cache,
        leader: Leader::always(),
        binder: Arc::new(binder),
        tasks: TaskTracker::new(),
        events,
        metrics: Metrics::new(&mut Registry::default()),
        readiness: Readiness::new(["pods"]),
        shortlist: 1,
    });
    let named = call(&asks("p", 100), &json!(["a"]));
    let bind = json!({"PodName": "p", "PodNamespace": "d", "PodUID": "p", "Node": "a"});
    let bind = bind.to_string().into_bytes();
    for (path, body, status) in [
        ("/filter", &named, StatusCode::OK),
        ("/prioritize", &named, StatusCode::SERVICE_UNAVAILABLE),
        ("/preempt", &named, StatusCode::SERVICE_UNAVAILABLE),
        ("/bind", &bind, StatusCode::OK),
    ] {
        let request = http::Request::post(path).body(Body::from(body.clone()));
        let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let why = "aliquot-scheduler is not ready: pods: not yet";
        let is_refused = text.contains(why) && !text.contains("\"a\"");
        assert!(is_refused, "{path}: {text}");
    }
}

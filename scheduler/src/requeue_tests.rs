//! What is requeued after which event, and against a scripted API server when.

use aliquot_core::ledger::PodEntry;
use aliquot_core::usage::{AllocatedUse, DeviceUse};
use aliquot_core::{Mib, Percent, Replicas};
use aliquot_k8s::pod::demand;
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::ledger_cache::assumed::FilteredPod;
use crate::ledger_cache::tests::{cache, from, node, pod, pod_with, quota, reserve, with};
use crate::pod_client::DEADLINE;
use crate::pod_client::tests::{api_server, status};

/// The same node, with so many replicas at its kubelet.
fn offering(name: &str, memory: u64, replicas: u32) -> Node {
    let allocatable = json!({"cpu": "8", "nvidia.com/gpu": replicas.to_string()});
    let status = from(json!({ "allocatable": allocatable }));
    Node {
        status: Some(status),
        ..node(name, memory)
    }
}

/// A pod of 600 MiB that filter refused: 900 of the 1000 are taken.
fn full() -> LedgerCache {
    let cache = cache();
    Index::apply(&cache, pod("big", 900, Some("n")));
    refused(&cache, "w", 600, &["n"]);
    cache
}

/// The pod is pending, refused on these nodes.
fn refused(cache: &LedgerCache, name: &str, memory: u64, nodes: &[&str]) {
    let pending = pod(name, memory, None);
    Index::apply(cache, pending.clone());
    let demand = demand(&pending, cache.settings()).unwrap();
    let pending = PendingPod {
        offered: cache.snapshot().set(nodes),
        ..PendingPod::read(&pending, demand, true)
    };
    cache.lock().refuse(&name.into(), pending);
}

/// Filter names this node for a pod of 600 MiB.
fn assume(cache: &LedgerCache, name: &str, node: &str) {
    let pending = pod(name, 600, None);
    let filtered = FilteredPod {
        uid: &pending.uid(),
        namespace: &"d".into(),
        demand: &demand(&pending, cache.settings()).unwrap(),
        gang: None,
    };
    let assumed = cache.lock().assume(filtered, vec![node]);
    assert_eq!(assumed, Ok(vec![node]));
}

/// The pods that are requeued.
fn requeued(cache: &LedgerCache) -> Vec<String> {
    let requeued = take_requeueable(cache);
    requeued.iter().map(|(uid, _)| uid.to_string()).collect()
}

#[test]
fn requeues_refused_pod_only_when_it_fits() {
    let cache = full();
    assert!(take_requeueable(&cache).is_empty());
    Index::delete(&cache, pod("big", 900, Some("n")));
    let alone = ("w".to_owned(), None);
    assert_eq!(nominated(&cache), [alone], "kube-scheduler sees the end");
    assert!(take_requeueable(&cache).is_empty(), "once for each refusal");
}

/// A plan assumes 600 MiB of `n` for the pod `holder`.
fn assume_plan(cache: &LedgerCache) {
    let used = DeviceUse::new(Mib(600), Percent(0));
    let allocated = AllocatedUse::Known([("GPU-n".into(), used)].into());
    let planned = PodEntry::planned(
        "n".into(),
        "d".into(),
        (allocated, Replicas::default()),
        (vec!["victim".into()], false),
    );
    cache.lock().assume_plan(&"holder".into(), planned);
}

#[test]
fn requeues_only_the_pod_with_the_plan() {
    let cache = cache();
    Index::apply(&cache, pod("victim", 900, Some("n")));
    for name in ["holder", "other"] {
        refused(&cache, name, 600, &["n"]);
    }
    assume_plan(&cache);
    Index::delete(&cache, pod("victim", 900, Some("n")));
    assert_eq!(requeued(&cache), ["holder"]);
    assert!(!reserve(&cache, "other", 600) && reserve(&cache, "holder", 600));
    assert!(cache.recompute().count() == 0);
}

#[test]
fn requeues_only_the_pod_with_the_plan_when_a_quota_grows() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("m", 1000));
    Index::apply(&cache, quota("900"));
    Index::apply(&cache, pod("other", 400, Some("m")));
    refused(&cache, "holder", 600, &["n"]);
    refused(&cache, "w", 600, &["m"]);
    assume_plan(&cache);
    assert!(take_requeueable(&cache).is_empty());
    Index::delete(&cache, pod("other", 400, Some("m")));
    assert_eq!(requeued(&cache), ["holder"], "it leaves no more for w");
}

#[test]
fn requeues_for_what_filter_had_assumed_before_a_plan() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("m", 1000));
    assume(&cache, "holder", "m");
    refused(&cache, "w", 600, &["m"]);
    assert!(take_requeueable(&cache).is_empty());
    assume_plan(&cache);
    assert_eq!(requeued(&cache), ["w"]);
}

#[test]
fn requeues_refused_pod_when_node_returns() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("other", 10));
    Index::<Node>::delete(&cache, node("n", 1000));
    refused(&cache, "w", 600, &["other"]);
    assert!(take_requeueable(&cache).is_empty());
    Index::<Node>::apply(&cache, node("n", 1000));
    assert_eq!(take_requeueable(&cache).len(), 1);
}

/// The pod is pending, and kube-scheduler refused it without asking filter.
fn unschedulable(name: &str, memory: u64, cpu: &str, constraint: &Value) -> PodView {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let refused = json!({
        "spec": {"resources": {"requests": {"cpu": cpu}}},
        "status": {"conditions": [condition]},
    });
    let refused = with(refused, json!({ "spec": constraint }));
    pod_with(name, memory, None, refused)
}

/// The pods that are requeued, each with the node that is nominated for it.
fn nominated(cache: &LedgerCache) -> Vec<(String, Option<String>)> {
    let requeued = take_requeueable(cache).into_iter();
    let name = |node: NodeName| node.to_string();
    let requeued = requeued.map(|(uid, r)| (uid.to_string(), r.nominate.map(name)));
    requeued.collect()
}

#[test]
fn requeues_pod_of_kube_scheduler_for_node_that_grew() {
    let cache = cache();
    Index::<Node>::apply(&cache, offering("n", 1000, 10));
    Index::apply(&cache, pod("big", 900, Some("n")));
    assert_eq!(requeued(&cache), [""; 0]);
    Index::apply(&cache, unschedulable("w", 600, "4", &json!({})));
    Index::apply(&cache, unschedulable("greedy", 600, "400", &json!({})));
    Index::delete(&cache, pod("big", 900, Some("n")));
    assert_eq!(requeued(&cache), [""; 0], "kube-scheduler sees the end");
    Index::<Node>::apply(&cache, offering("m", 10, 10));
    assert_eq!(requeued(&cache), [""; 0], "it does not fit there");
    Index::<Node>::apply(&cache, offering("m", 1000, 10));
    let expected = ("w".to_owned(), Some("m".to_owned()));
    assert_eq!(nominated(&cache), [expected]);
    Index::<Node>::apply(&cache, offering("m", 9000, 10));
    assert_eq!(requeued(&cache), [""; 0], "it was requeued just now");
}

/// A node was nominated for the pod, and that withdrawn, after each change of any node and each list.
#[test]
fn nominates_no_node_that_the_pod_does_not_select() {
    let labelled = |memory: u64, pool: &str| {
        let mut node = offering("m", memory, 10);
        node.metadata.labels = Some([("pool".to_owned(), pool.to_owned())].into());
        node
    };
    let required = json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "c"]}]}]});
    for constraint in [
        json!({"nodeSelector": {"pool": "a"}}),
        json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": required}}}),
    ] {
        let cache = cache();
        assert_eq!(requeued(&cache), [""; 0]);
        let waiting = unschedulable("w", 600, "4", &constraint);
        Index::apply(&cache, waiting.clone());
        Index::<Node>::reset(&cache, vec![labelled(999, "b")]);
        assert_eq!(requeued(&cache), [""; 0], "{constraint}");
        Index::<PodView>::reset(&cache, vec![waiting]);
        assert_eq!(requeued(&cache), [""; 0], "{constraint}");
        Index::<Node>::apply(&cache, labelled(1000, "b"));
        assert_eq!(requeued(&cache), [""; 0], "{constraint}");
        Index::<Node>::apply(&cache, labelled(1001, "a"));
        let expected = [("w".to_owned(), Some("m".to_owned()))];
        let again = take_requeueable(&cache)[0].1.again.clone();
        requeue_failed(&cache, &"w".into(), again);
        assert_eq!(nominated(&cache), expected, "{constraint}");
    }
}

#[test]
fn nominates_no_node_whose_taints_the_pod_does_not_tolerate() {
    let cache = cache();
    assert_eq!(requeued(&cache), [""; 0]);
    let tolerates = json!({"tolerations": [{"key": "team", "operator": "Exists"}]});
    Index::apply(&cache, unschedulable("w", 300, "1", &json!({})));
    Index::apply(&cache, unschedulable("of-team", 300, "1", &tolerates));
    let nominee = |name: &str| (name.to_owned(), Some("m".to_owned()));
    let mut tainted = offering("m", 1000, 10);
    let taints = json!([{"key": "team", "value": "a", "effect": "NoSchedule"}]);
    tainted.spec = Some(from(json!({ "taints": taints })));
    Index::<Node>::apply(&cache, tainted);
    assert_eq!(nominated(&cache), [nominee("of-team")]);
    // Nothing else of the node changes.
    Index::<Node>::apply(&cache, offering("m", 1000, 10));
    assert_eq!(nominated(&cache), [nominee("w")]);
}

/// Which nodes it selects is too long to be kept.
#[tokio::test(start_paused = true)]
async fn nominates_seldom_for_a_pod_of_unknown_selection() {
    let cache = cache();
    assert_eq!(requeued(&cache), [""; 0]);
    let pools: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let required = json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": pools}]}]});
    let affinity = json!({"affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
    Index::apply(&cache, unschedulable("w", 600, "4", &affinity));
    let (short, long) = (Duration::from_mins(1), Duration::from_mins(5));
    let mut memory = 1000;
    for (pause, expected) in [(short, 1), (short, 0), (long, 1)] {
        tokio::time::advance(pause).await;
        memory += 1;
        Index::<Node>::apply(&cache, offering("m", memory, 10));
        assert_eq!(nominated(&cache).len(), expected, "{memory}");
    }
}

#[test]
fn requeues_as_many_pods_as_free_kubelet_replicas() {
    let cache = cache();
    Index::<Node>::apply(&cache, offering("n", 1000, 0));
    for name in ["a", "b", "c"] {
        refused(&cache, name, 100, &["n"]);
    }
    Index::<Node>::apply(&cache, offering("n", 1000, 2));
    assert_eq!(requeued(&cache), ["a", "b"]);
    assert!(reserve(&cache, "a", 100) && reserve(&cache, "b", 100));
    assert!(!reserve(&cache, "c", 100));
}

/// Filter names another node for a requeued pod than it was requeued for.
#[test]
fn requeues_for_capacity_that_a_requeued_pod_does_not_take() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("m", 10));
    for name in ["a", "b"] {
        refused(&cache, name, 600, &["m", "n"]);
    }
    assert_eq!(requeued(&cache), ["a"], "n has capacity for one");
    Index::<Node>::apply(&cache, node("m", 1000));
    assume(&cache, "a", "m");
    assert_eq!(requeued(&cache), [""; 0], "n was not freed");
    let over = Instant::now() + CLAIM_LIFETIME;
    cache.lock().events.mark_due(over);
    assert_eq!(requeued(&cache), ["b"]);
}

/// The pod is pending and refused; returns why.
fn refuse(cache: &LedgerCache, pod: &PodView, nodes: &[&str]) -> String {
    let uid = pod.uid();
    let demand = demand(pod, cache.settings()).unwrap();
    Index::apply(cache, pod.clone());
    let filtered = FilteredPod {
        uid: &uid,
        namespace: &"d".into(),
        demand: &demand,
        gang: None,
    };
    let why = cache.lock().best(filtered, nodes, 1);
    let waiting = PendingPod::read(pod, demand, true);
    cache.lock().refuse(&uid, waiting);
    why.map_or_else(|why| why.to_string(), |fits| format!("{fits:?}"))
}

/// A node and a quota of 1000 MiB, 800 of it allocated to `holder`, with pods `a` (300 MiB), `b`
/// (300 MiB) and `c` (200 MiB) pending.
fn waiting_cache() -> LedgerCache {
    let cache = cache();
    Index::apply(&cache, node("m", 9000));
    Index::<ResourceQuota>::reset(&cache, vec![quota("1000")]);
    Index::apply(&cache, pod("holder", 800, Some("n")));
    let refused = "2 ResourceQuotaNotFit (namespace d: limits.nvidia.com/gpumem used 800, \
                   asked 300, limit 1000 of quota q)";
    let both = ["m", "n"];
    for name in ["a", "b"] {
        let why = refuse(&cache, &pod(name, 300, None), &both);
        assert_eq!(why.replace("1 CardInsufficientMemory, 1 R", "2 R"), refused);
    }
    Index::apply(&cache, pod("c", 200, None));
    assert_eq!(requeued(&cache), [""; 0]);
    cache
}

#[test]
fn requeues_pods_that_fit_together_in_raised_quota() {
    let cache = waiting_cache();
    Index::apply(&cache, quota("1000"));
    assert_eq!(requeued(&cache), [""; 0], "nothing changed");
    Index::apply(&cache, quota("1100"));
    assert_eq!(requeued(&cache), ["a"]);
    Index::apply(&cache, quota("1300"));
    assert_eq!(
        requeued(&cache),
        [""; 0],
        "the claim of the first pod counts"
    );
    Index::apply(&cache, quota("1400"));
    assert_eq!(requeued(&cache), ["b"]);
}

/// A quota in the state that Kubernetes counts, of which it shows `used`.
fn counted(used: &Value) -> ResourceQuota {
    let hard = json!({"limits.nvidia.com/gpumem": "1000"});
    from(json!({
        "metadata": {"name": "q", "namespace": "d"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used},
    }))
}

#[test]
fn refusal_names_what_kubernetes_counts_where_it_differs() {
    let key = "limits.nvidia.com/gpumem";
    for (used, expected) in [
        (json!({key: "800"}), "used 800, asked 300"),
        (
            json!({key: "600"}),
            "used 800 (Kubernetes counts 600), asked 300",
        ),
        (json!({}), "used 800 (Kubernetes counts 0), asked 300"),
        (json!({key: "1Gi5"}), "used 800, asked 300"),
    ] {
        let cache = waiting_cache();
        Index::apply(&cache, counted(&used));
        assert_eq!(requeued(&cache), [""; 0], "the limit is the same");
        let why = refuse(&cache, &pod("a", 300, None), &["m"]);
        assert!(why.contains(expected), "{used}: {why}");
        assert_eq!(requeued(&cache), [""; 0]);
        Index::<ResourceQuota>::reset(&cache, vec![counted(&json!({key: "700"}))]);
        let freed = cache.lock().events.take(9);
        assert!(freed.is_empty(), "nor is it a capacity event");
    }
}

/// The events of a new term's list were once lost because they came before this replica led.
#[tokio::test(start_paused = true)]
async fn requeues_on_leading_for_capacity_freed_before() {
    let leader = Leader::replica();
    leader.set_holder("pod-b_1");
    let requeue = check(leader.clone(), &[200], async move || {
        let waited = tokio::time::timeout(DEADLINE, std::future::pending::<()>());
        assert!(waited.await.is_err());
        leader.set_holder("pod-a_1");
    });
    requeue.await;
}

#[tokio::test(start_paused = true)]
async fn requeues_again_after_failed_or_conflicting_patch() {
    check(Leader::always(), &[503, 409, 409, 200], async || {}).await;
}

/// Its owner can make a pod that takes no further annotation; it came first, again and again.
#[tokio::test(start_paused = true)]
async fn pod_that_cannot_be_patched_blocks_no_other() {
    let (client, mut calls) = api_server();
    let cache = Arc::new(cache());
    Index::reset(&*cache, vec![pod("a", 600, None), pod("b", 600, None)]);
    let metrics = Metrics::new(&mut Registry::default());
    let stop = CancellationToken::new();
    let (pods, leader) = (PodClient::new(client), Leader::always());
    let requeue = run(cache, pods, leader, metrics.clone(), stop.clone());
    let requeue = tokio::spawn(requeue);
    for (name, code) in [("a", 422), ("b", 200), ("a", 200)] {
        let call = timeout(REJECTED + RETRY, calls.next_call()).await;
        let call = call.expect("in time").expect("a patch");
        let path = format!("/api/v1/namespaces/d/pods/{name}");
        assert_eq!(call.uri.path(), path);
        call.answer(code, &status(code));
    }
    stop.cancel();
    requeue.await.unwrap();
    assert_eq!(metrics.requeues.get(), 2);
}

/// Another replica leads while the first of two pods is patched; later this one leads again.
#[tokio::test(start_paused = true)]
async fn stops_requeueing_when_another_replica_leads() {
    let (client, mut calls) = api_server();
    let cache = Arc::new(cache());
    Index::reset(&*cache, vec![pod("a", 400, None), pod("b", 400, None)]);
    let metrics = Metrics::new(&mut Registry::default());
    let stop = CancellationToken::new();
    let leader = Leader::replica();
    leader.set_holder("pod-a_1");
    let pods = PodClient::new(client);
    let requeue = run(cache, pods, leader.clone(), metrics.clone(), stop.clone());
    let requeue = tokio::spawn(requeue);
    let call = calls.next_call().await.unwrap();
    assert_eq!(call.uri.path(), "/api/v1/namespaces/d/pods/a");
    leader.set_holder("pod-b_1");
    call.answer(200, &status(200));
    let more = timeout(RETRY * 2, calls.next_call()).await;
    assert!(more.is_err(), "a call of the old leader");
    leader.set_holder("pod-a_1");
    let call = timeout(RETRY * 2, calls.next_call()).await;
    let call = call.expect("in time").expect("a patch");
    assert_eq!(call.uri.path(), "/api/v1/namespaces/d/pods/b");
    call.answer(200, &status(200));
    stop.cancel();
    requeue.await.unwrap();
    assert_eq!(metrics.requeues.get(), 2);
}

/// A refused pod fits from the start; the patches get these status codes after `first`.
async fn check(leader: Leader, codes: &[u16], first: impl AsyncFnOnce()) {
    let (client, mut calls) = api_server();
    let cache = Arc::new(cache());
    Index::reset(&*cache, vec![pod("a", 600, None)]);
    let metrics = Metrics::new(&mut Registry::default());
    let stop = CancellationToken::new();
    let pods = PodClient::new(client);
    let requeue = run(cache, pods, leader, metrics.clone(), stop.clone());
    let requeue = tokio::spawn(requeue);
    first().await;
    for code in codes {
        let call = timeout(RETRY * 2, calls.next_call()).await;
        let call = call.expect("in time").expect("a patch");
        assert_eq!(call.uri.path(), "/api/v1/namespaces/d/pods/a");
        call.answer(*code, &status(*code));
    }
    stop.cancel();
    requeue.await.unwrap();
    assert_eq!(metrics.requeues.get(), 1);
}

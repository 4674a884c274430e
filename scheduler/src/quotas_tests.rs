//! Quotas, fed as the watch feeds them, and pods that wait for them.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;
use crate::ledger_cache::tests::{cache, node, pod};
use crate::pending::PendingPod;

fn quota(memory: &str) -> ResourceQuota {
    serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "d"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": memory}},
    }))
    .unwrap()
}

/// The pod is pending and refused; returns why.
fn refuse(cache: &LedgerCache, pod: &Pod, nodes: &[&str]) -> String {
    let uid = aliquot_k8s::pod::uid(pod);
    let demand = aliquot_k8s::pod::demand(pod, cache.settings()).unwrap();
    Index::apply(cache, pod.clone());
    let events = cache.capacity_event_count();
    let view = cache.view("d");
    let why = cache.fitting(&view, &uid, &demand, nodes);
    cache.refused(&uid, PendingPod::read(pod, demand, true), events);
    why.map_or_else(|why| why.to_string(), |fits| format!("{fits:?}"))
}

fn requeued(cache: &LedgerCache) -> Vec<String> {
    let requeued = cache.take_requeueable().into_iter();
    requeued.map(|(uid, _)| uid.to_string()).collect()
}

/// A node and a quota of 1000 MiB, 800 of it allocated to `holder`, with pods `a` (300 MiB), `b`
/// (300 MiB) and `c` (200 MiB) pending.
fn waiting_cache() -> LedgerCache {
    let cache = cache();
    Index::apply(&cache, node("m", 9000));
    Index::<ResourceQuota>::reset(&cache, vec![quota("1000")]);
    Index::apply(&cache, pod("holder", 800, Some("n")));
    let refused = "2 ResourceQuotaNotFit (namespace d: limits.nvidia.com/gpumem used 800, \
                   asked 300, limit 1k of quota q)";
    let refused = refused.replace("1k", "1000");
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

#[test]
fn requeues_all_pods_of_a_deleted_quota() {
    let cache = waiting_cache();
    Index::delete(&cache, quota("1000"));
    assert_eq!(requeued(&cache), ["a", "b"]);
    let cache = waiting_cache();
    Index::<ResourceQuota>::reset(&cache, vec![]);
    assert_eq!(requeued(&cache), ["a", "b"]);
}

#[test]
fn requeues_for_freed_quota_on_all_nodes() {
    let cache = waiting_cache();
    // Its own node is full of other pods by then.
    let mut other = pod("other", 900, Some("n"));
    other.metadata.namespace = Some("elsewhere".to_owned());
    Index::delete(&cache, pod("holder", 800, Some("n")));
    Index::apply(&cache, other);
    assert_eq!(requeued(&cache), ["a", "b"]);
}

#[test]
fn concurrent_reservations_stay_within_quota() {
    let cache = cache();
    Index::apply(&cache, node("m", 90_000));
    Index::apply(&cache, quota("1000"));
    let taken = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let cache = &cache;
                scope.spawn(move || {
                    let pod = pod(&format!("p{number}"), 300, None);
                    let demand = aliquot_k8s::pod::demand(&pod, cache.settings()).unwrap();
                    let uid = aliquot_k8s::pod::uid(&pod);
                    let reserved = cache.reserve(&uid, &"d".into(), &"m".into(), &demand);
                    usize::from(reserved.is_ok())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap())
            .sum::<usize>()
    });
    assert_eq!(taken, 3);
}

#[test]
fn invalid_quota_limit_allows_nothing_until_corrected() {
    let cache = cache();
    Index::apply(&cache, quota("1Gi"));
    let why = refuse(&cache, &pod("a", 300, None), &["n"]);
    assert!(
        why.contains("limit \"1Gi\" of quota q is unreadable"),
        "{why}"
    );
    Index::apply(&cache, quota("1k"));
    assert_eq!(requeued(&cache), ["a"]);
}

//! Members of gangs, as kube-scheduler's own gang scheduling filters and binds them.

use std::time::Duration;

use aliquot_core::ledger::NotReserved;
use aliquot_k8s::event;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::*;
use crate::ledger_cache::tests::{from, node, pod_json};
use crate::requeue::take_requeueable;

/// One node `n` of 2000 MiB.
fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    Index::<Node>::reset(&cache, vec![node("n", 2000)]);
    Index::<PodView>::reset(&cache, vec![]);
    cache
}

/// A pod of 1000 MiB; a member of the gang where one is named.
fn asks(name: &str, gang: Option<&str>, node: Option<&str>) -> Value {
    let mut pod = pod_json(name, 1000, node);
    if let Some(gang) = gang {
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": gang});
    }
    pod
}

fn observed(pod: Value) -> PodView {
    from(pod)
}

/// The nodes that filter names for the pod.
fn filter(cache: &LedgerCache, name: &str, gang: Option<&str>) -> Vec<String> {
    let body = json!({"Pod": asks(name, gang, None), "NodeNames": ["n", "m"]}).to_string();
    let (events, _event_rx) = event::queue();
    let call = Call::read(body.as_bytes(), cache.settings()).unwrap();
    let (_, answer) = call.filter(cache, &events, 64);
    answer.node_names.unwrap()
}

fn fits(cache: &LedgerCache, name: &str, gang: Option<&str>) -> bool {
    filter(cache, name, gang) == ["n"]
}

fn may_bind(cache: &LedgerCache, name: &str, gang: &str) -> bool {
    let gang = GangName::read(&observed(asks(name, Some(gang), None))).unwrap();
    cache.lock().begin_gang_binding(&gang, &name.into())
}

fn bind(cache: &LedgerCache, name: &str) -> Result<(), NotReserved> {
    let pod = observed(asks(name, None, None));
    let demand = pod::demand(&pod, cache.settings()).unwrap();
    let bound = cache.reserve(&name.into(), &"d".into(), &"n".into(), &demand);
    bound.map(|_| ())
}

fn requeued(cache: &LedgerCache) -> Vec<String> {
    let requeued = take_requeueable(cache).into_iter();
    requeued.map(|(uid, _)| uid.to_string()).collect()
}

fn expire(cache: &LedgerCache, seconds: u64) {
    let later = Instant::now() + Duration::from_secs(seconds);
    cache.lock().expire(later);
}

#[test]
fn filter_assumes_on_one_node_for_each_gang_member() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("m", 2000));
    let first = filter(&cache, "a1", Some("a"));
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(filter(&cache, "a1", Some("a")), first, "counted once");
    for (name, nodes) in [("a2", 1), ("a3", 1), ("a4", 1), ("a5", 0)] {
        assert_eq!(filter(&cache, name, Some("a")).len(), nodes, "{name}");
    }
    assert_eq!(filter(&cache, "other", None).len(), 0);
    Index::delete(&cache, observed(asks("a1", Some("a"), None)));
    assert_eq!(filter(&cache, "a1", Some("a")), first, "a late call");
    assert_eq!(filter(&cache, "other", None), first);
}

#[test]
fn gang_without_a_binding_is_given_back_whole() {
    let cache = cache();
    assert!(fits(&cache, "a1", Some("a")) && fits(&cache, "a2", Some("a")));
    expire(&cache, 4);
    assert!(!fits(&cache, "b1", Some("b")) && !may_bind(&cache, "b1", "b"));
    expire(&cache, 6);
    assert_eq!(requeued(&cache), ["b1"]);
    assert!(!may_bind(&cache, "a1", "a") && !may_bind(&cache, "a2", "a"));
    assert!(fits(&cache, "b1", Some("b")) && fits(&cache, "b2", Some("b")));
    assert!(!fits(&cache, "b3", Some("b")));
    expire(&cache, 2);
    assert!(fits(&cache, "a1", Some("a")), "sooner after a refusal");
}

/// Filter assumes for a member again before what the last attempt had assumed expires.
#[tokio::test(start_paused = true)]
async fn expiry_forgets_nothing_newer_of_a_gang() {
    let cache = cache();
    assert!(fits(&cache, "a1", Some("a")));
    tokio::time::advance(Duration::from_secs(4)).await;
    assert!(fits(&cache, "a1", Some("a")));
    expire(&cache, 4);
    assert!(cache.read(|ledger| ledger.assumed(&"a1".into()).is_some()));
    expire(&cache, 5);
    assert!(cache.read(|ledger| ledger.assumed(&"a1".into()).is_none()));
}

#[test]
fn gang_that_is_being_bound_retains_what_is_assumed() {
    let cache = cache();
    assert!(fits(&cache, "a1", Some("a")) && fits(&cache, "a2", Some("a")));
    assert!(may_bind(&cache, "a1", "a"));
    expire(&cache, 20);
    assert!(!fits(&cache, "other", None));
    assert_eq!(bind(&cache, "a1"), Ok(()));
    cache.cancel(&"a1".into());
    assert!(!fits(&cache, "other", None), "its Binding is repeated");
    assert_eq!(bind(&cache, "a1"), Ok(()));
    assert!(may_bind(&cache, "a2", "a"));
    expire(&cache, 31);
    assert!(fits(&cache, "other", None));
}

/// Its predecessor ended between the Bindings of the gang's members.
#[test]
fn restarted_scheduler_lets_interrupted_gang_go_first() {
    let cache = cache();
    let bound = observed(asks("a1", Some("a"), Some("n")));
    let pending = ["a2", "a3"].map(|name| observed(asks(name, Some("a"), None)));
    let other = observed(asks("other", None, None));
    let pods = [vec![bound, other], pending.to_vec()].concat();
    Index::<PodView>::reset(&cache, pods);
    assert!(!fits(&cache, "other", None));
    assert!(fits(&cache, "a2", Some("a")) && may_bind(&cache, "a2", "a"));
    assert!(!fits(&cache, "a3", Some("a")));
}

#[test]
fn requeues_gang_only_when_all_of_it_fits() {
    let cache = cache();
    Index::apply(&cache, observed(asks("x", None, Some("n"))));
    for name in ["a1", "a2"] {
        Index::apply(&cache, observed(asks(name, Some("a"), None)));
    }
    assert!(fits(&cache, "a1", Some("a")) && !fits(&cache, "a2", Some("a")));
    expire(&cache, 2);
    assert_eq!(requeued(&cache), [""; 0], "only one of two fits");
    Index::delete(&cache, observed(asks("x", None, Some("n"))));
    assert_eq!(requeued(&cache), ["a2"]);
    assert!(fits(&cache, "a1", Some("a")));
    assert_eq!(bind(&cache, "a1"), Ok(()));
    Index::apply(&cache, observed(asks("a1", Some("a"), Some("n"))));
    Index::apply(&cache, observed(asks("x", None, Some("n"))));
    assert!(!fits(&cache, "a2", Some("a")));
    Index::delete(&cache, observed(asks("x", None, Some("n"))));
    assert_eq!(requeued(&cache), ["a2"], "the gang is started");
}

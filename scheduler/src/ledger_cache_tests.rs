//! The ledger cache, fed as the watches feed it, without a stream.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;

pub(crate) fn node(name: &str, memory: u64) -> Node {
    let inventory = json!({"v": 1, "reads": [1], "gpus": [{
        "uuid": format!("GPU-{name}"), "index": 0, "model": "m", "memory": memory, "scaled": memory,
        "cores": 100, "seats": 10, "mode": "vgpu", "resource": "nvidia.com/gpu", "health": "ok",
    }]});
    from(json!({"metadata": {"name": name, "annotations": {INVENTORY: inventory.to_string()}}}))
}

/// The same node, with so many replicas at its kubelet.
fn offering(name: &str, memory: u64, replicas: u32) -> Node {
    let allocatable = json!({"cpu": "8", "nvidia.com/gpu": replicas.to_string()});
    let status = from(json!({ "allocatable": allocatable }));
    Node {
        status: Some(status),
        ..node(name, memory)
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A pod that requests `memory`, bound with its allocation where `node` is given.
pub(crate) fn pod(name: &str, memory: u64, node: Option<&str>) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {
            "nvidia.com/gpu": "1", "nvidia.com/gpumem": memory.to_string()}}}]},
        "status": {"phase": "Pending"},
    });
    if let Some(node) = node {
        let allocation = json!({"v": 1, "node": node, "priority": 1, "containers": {"main": [
            {"resource": "nvidia.com/gpu", "gpu": format!("GPU-{node}"), "memory": memory, "cores": 0}]}});
        pod["spec"]["nodeName"] = json!(node);
        pod["metadata"]["annotations"] = json!({ALLOCATION: allocation.to_string()});
    }
    from(pod)
}

/// One node `n` of 1000 MiB.
pub(crate) fn cache() -> LedgerCache {
    let cache = LedgerCache::default();
    Index::<Node>::reset(&cache, vec![node("n", 1000)]);
    Index::<Pod>::reset(&cache, vec![]);
    cache
}

fn used(cache: &LedgerCache) -> u64 {
    cache.read(|ledger| {
        ledger.cluster().node("n").unwrap().devices[0]
            .allocated
            .used
            .memory
            .0
    })
}

fn reserve(cache: &LedgerCache, name: &str, memory: u64) -> bool {
    let demand = pod::demand(&pod(name, memory, None), cache.settings()).unwrap();
    let reserved = cache.reserve(&name.into(), &"d".into(), &"n".into(), &demand);
    reserved.is_ok()
}

#[test]
fn records_allocation_from_binding_to_pod_end() {
    let cache = cache();
    Index::apply(&cache, pod("a", 600, Some("n")));
    assert_eq!(used(&cache), 600);
    let mut ending = pod("a", 600, Some("n"));
    ending.metadata.deletion_timestamp = Some(from(json!("2026-01-01T00:00:00Z")));
    Index::apply(&cache, ending);
    assert_eq!(used(&cache), 600, "terminating pods keep their share");
    let mut done = pod("a", 600, Some("n"));
    done.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    Index::apply(&cache, done);
    assert_eq!(used(&cache), 0);
    Index::apply(&cache, pod("b", 700, Some("n")));
    Index::delete(&cache, pod("b", 700, Some("n")));
    assert_eq!(used(&cache), 0);
}

#[test]
fn keeps_reservation_over_a_list_without_its_pod() {
    let cache = cache();
    assert!(reserve(&cache, "young", 600));
    Index::<Pod>::reset(&cache, vec![]);
    assert_eq!(used(&cache), 600);
    assert!(!reserve(&cache, "late", 600));
}

#[test]
fn keeps_reservation_of_unbound_pod_shown_again() {
    let cache = cache();
    assert!(reserve(&cache, "a", 600));
    Index::apply(&cache, pod("a", 600, None));
    assert_eq!(used(&cache), 600);
    Index::apply(&cache, pod("a", 600, Some("n")));
    cache.cancel(&"a".into());
    assert_eq!(
        used(&cache),
        600,
        "confirmed allocations cannot be cancelled"
    );
}

#[test]
fn releases_reservation_of_deleted_pod() {
    let cache = cache();
    assert!(reserve(&cache, "a", 600));
    Index::delete(&cache, pod("a", 600, None));
    assert_eq!(used(&cache), 0);
}

#[test]
fn restores_same_ledger_from_list_after_restart() {
    let first = cache();
    let pods = [
        pod("a", 100, Some("n")),
        pod("b", 200, Some("n")),
        pod("c", 5, None),
    ];
    for pod in pods.clone() {
        Index::apply(&first, pod);
    }
    let second = cache();
    Index::<Pod>::reset(&second, pods.to_vec());
    assert!(first.read(|a| second.read(|b| a == b)));
    assert!(first.recompute().count() == 0);
    assert_eq!(
        second.pending_counts(),
        (1, 1),
        "pending pods count as refused after a restart"
    );
}

/// A pod of 600 MiB that filter refused: 900 of the 1000 are taken.
fn full() -> LedgerCache {
    let cache = cache();
    Index::apply(&cache, pod("big", 900, Some("n")));
    let waiting = pod("w", 600, None);
    Index::apply(&cache, waiting.clone());
    let demand = pod::demand(&waiting, cache.settings()).unwrap();
    let waiting = PendingPod::read(&waiting, demand, true);
    cache.refused(&"w".into(), waiting, cache.capacity_event_count());
    cache
}

#[test]
fn requeues_refused_pod_only_when_it_fits() {
    let cache = full();
    assert!(cache.take_requeueable().is_empty());
    let before = cache.capacity_event_count();
    Index::delete(&cache, pod("big", 900, Some("n")));
    assert!(cache.capacity_event_count() > before);
    let requeued = cache.take_requeueable();
    assert_eq!(
        requeued
            .iter()
            .map(|(uid, _)| uid.as_str())
            .collect::<Vec<_>>(),
        ["w"]
    );
    assert!(cache.take_requeueable().is_empty(), "once for each refusal");
}

/// The events were once taken after the snapshot of the nodes, and one in between was lost.
#[test]
fn requeues_for_capacity_freed_during_a_check() {
    for _ in 0..200 {
        let cache = full();
        let gone = pod("big", 900, Some("n"));
        let requeued: usize = std::thread::scope(|scope| {
            let end = scope.spawn(|| Index::delete(&cache, gone));
            let checks =
                std::iter::from_fn(|| (!end.is_finished()).then(|| cache.take_requeueable().len()));
            checks.sum()
        });
        assert_eq!(requeued + cache.take_requeueable().len(), 1);
    }
}

#[test]
fn releases_reservation_of_pod_bound_by_another() {
    let cache = cache();
    assert!(reserve(&cache, "a", 600));
    let mut bound = pod("a", 600, None);
    bound.spec.as_mut().unwrap().node_name = Some("elsewhere".to_owned());
    Index::apply(&cache, bound);
    assert_eq!(used(&cache), 0);
}

#[test]
fn keeps_allocations_of_node_with_unreadable_inventory() {
    let cache = cache();
    Index::apply(&cache, pod("a", 600, Some("n")));
    let broken = from(json!({"metadata": {"name": "n", "annotations": {INVENTORY: "{"}}}));
    Index::<Node>::apply(&cache, broken);
    assert!(!reserve(&cache, "b", 100));
    Index::<Node>::apply(&cache, node("n", 1000));
    assert_eq!(used(&cache), 600);
    assert!(reserve(&cache, "b", 100));
}

#[test]
fn requeues_only_the_pod_with_the_reservation() {
    use aliquot_core::ledger::AllocatedUse;
    use aliquot_core::usage::DeviceUse;
    use aliquot_core::{Mib, Percent};

    let cache = cache();
    Index::apply(&cache, pod("victim", 900, Some("n")));
    for name in ["holder", "other"] {
        let pending_pods = pod(name, 600, None);
        let demand = pod::demand(&pending_pods, cache.settings()).unwrap();
        Index::apply(&cache, pending_pods.clone());
        let offered = cache.snapshot().set(&["n"]);
        let pending_pods = PendingPod {
            offered,
            ..PendingPod::read(&pending_pods, demand, true)
        };
        cache.refused(&name.into(), pending_pods, cache.capacity_event_count());
    }
    let used = DeviceUse::of(Mib(600), Percent(0));
    let reservation = aliquot_core::ledger::PreemptionReservation {
        node: "n".into(),
        allocated: AllocatedUse::Known([("GPU-n".into(), used)].into()),
        replicas: aliquot_core::Replicas::default(),
        recorded: false,
    };
    cache
        .ledger
        .write()
        .reserve_for_preemptor(&"holder".into(), reservation);
    Index::delete(&cache, pod("victim", 900, Some("n")));
    let requeued = cache.take_requeueable();
    let requeued: Vec<_> = requeued.iter().map(|(uid, _)| uid.as_str()).collect();
    assert_eq!(requeued, ["holder"]);
    assert!(!reserve(&cache, "other", 600) && reserve(&cache, "holder", 600));
    assert!(cache.recompute().count() == 0);
}

#[test]
fn requeues_refused_pod_when_node_returns() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("other", 10));
    Index::<Node>::delete(&cache, node("n", 1000));
    let pending_pods = pod("w", 600, None);
    Index::apply(&cache, pending_pods.clone());
    let demand = pod::demand(&pending_pods, cache.settings()).unwrap();
    let pending_pods = PendingPod {
        offered: cache.snapshot().set(&["other"]),
        ..PendingPod::read(&pending_pods, demand, true)
    };
    cache.refused(&"w".into(), pending_pods, cache.capacity_event_count());
    assert!(cache.take_requeueable().is_empty());
    Index::<Node>::apply(&cache, node("n", 1000));
    assert_eq!(cache.take_requeueable().len(), 1);
}

/// The pod is pending, refused on `n`.
fn refused(cache: &LedgerCache, name: &str, memory: u64) {
    let pending_pods = pod(name, memory, None);
    Index::apply(cache, pending_pods.clone());
    let demand = pod::demand(&pending_pods, cache.settings()).unwrap();
    let pending_pods = PendingPod {
        offered: cache.snapshot().set(&["n"]),
        ..PendingPod::read(&pending_pods, demand, true)
    };
    cache.refused(&name.into(), pending_pods, cache.capacity_event_count());
}

fn requeued(cache: &LedgerCache) -> Vec<String> {
    let requeued = cache.take_requeueable();
    requeued.iter().map(|(uid, _)| uid.to_string()).collect()
}

#[test]
fn requeues_pods_when_kubelet_offers_replicas_again() {
    let cache = cache();
    Index::<Node>::apply(&cache, offering("n", 1000, 0));
    assert!(!reserve(&cache, "w", 100));
    refused(&cache, "w", 100);
    assert!(requeued(&cache).is_empty());
    Index::<Node>::apply(&cache, offering("n", 1000, 10));
    assert_eq!(requeued(&cache), ["w"]);
    assert!(reserve(&cache, "w", 100));
}

#[test]
fn requeues_as_many_pods_as_free_kubelet_replicas() {
    let cache = cache();
    Index::<Node>::apply(&cache, offering("n", 1000, 0));
    for name in ["a", "b", "c"] {
        refused(&cache, name, 100);
    }
    Index::<Node>::apply(&cache, offering("n", 1000, 2));
    assert_eq!(requeued(&cache), ["a", "b"]);
    assert!(reserve(&cache, "a", 100) && reserve(&cache, "b", 100));
    assert!(!reserve(&cache, "c", 100));
}

#[test]
fn counts_replica_of_pod_placed_by_other_scheduler() {
    let cache = cache();
    Index::<Node>::apply(&cache, offering("n", 1000, 1));
    let mut other = pod("stranger", 100, None);
    other.spec.as_mut().unwrap().node_name = Some("n".to_owned());
    Index::apply(&cache, other.clone());
    assert_eq!(used(&cache), 0);
    refused(&cache, "w", 100);
    assert!(!reserve(&cache, "w", 100) && requeued(&cache).is_empty());
    let phase = |phase: &str| Some(phase.to_owned());
    other.status.as_mut().unwrap().phase = phase("Running");
    Index::apply(&cache, other.clone());
    assert!(requeued(&cache).is_empty());
    other.status.as_mut().unwrap().phase = phase("Succeeded");
    Index::apply(&cache, other);
    assert_eq!(requeued(&cache), ["w"]);
    assert!(reserve(&cache, "w", 100));
}

/// A requeued pod goes to another node than it was requeued for, which frees its claim.
#[test]
fn requeues_for_capacity_of_a_moved_claim() {
    let cache = cache();
    Index::<Node>::apply(&cache, node("m", 10));
    for name in ["a", "b"] {
        let pending_pods = pod(name, 600, None);
        Index::apply(&cache, pending_pods.clone());
        let demand = pod::demand(&pending_pods, cache.settings()).unwrap();
        let pending_pods = PendingPod {
            offered: cache.snapshot().set(&["m", "n"]),
            ..PendingPod::read(&pending_pods, demand, true)
        };
        cache.refused(&name.into(), pending_pods, cache.capacity_event_count());
    }
    assert_eq!(requeued(&cache), ["a"], "n has capacity for one");
    Index::<Node>::apply(&cache, node("m", 1000));
    let pending_pods = pod("a", 600, None);
    let demand = pod::demand(&pending_pods, cache.settings()).unwrap();
    cache.claim(&cache.snapshot(), &pending_pods, &demand, "m");
    assert_eq!(requeued(&cache), ["b"]);
    cache.claim(&cache.snapshot(), &pending_pods, &demand, "m");
    assert!(requeued(&cache).is_empty());
}

//! The books fed as the watches feed them, without a stream.

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

/// The same node with so many seats at its kubelet.
fn offering(name: &str, memory: u64, seats: u32) -> Node {
    let allocatable = json!({"cpu": "8", "nvidia.com/gpu": seats.to_string()});
    let status = from(json!({ "allocatable": allocatable }));
    Node {
        status: Some(status),
        ..node(name, memory)
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A pod that asks for `memory`, bound with its allocation where `node` is given.
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
pub(crate) fn books() -> Books {
    let books = Books::default();
    Index::<Node>::reset(&books, vec![node("n", 1000)]);
    Index::<Pod>::reset(&books, vec![]);
    books
}

fn used(books: &Books) -> u64 {
    books.read(|ledger| {
        ledger.cluster().node("n").unwrap().cards[0]
            .sums
            .used
            .memory
            .0
    })
}

fn reserve(books: &Books, name: &str, memory: u64) -> bool {
    let demand = pod::demand(&pod(name, memory, None), books.settings()).unwrap();
    let reserved = books.reserve(&name.into(), &"d".into(), &"n".into(), &demand);
    reserved.is_ok()
}

#[test]
fn an_allocation_exists_from_its_binding_to_the_pods_end() {
    let books = books();
    Index::apply(&books, pod("a", 600, Some("n")));
    assert_eq!(used(&books), 600);
    let mut ending = pod("a", 600, Some("n"));
    ending.metadata.deletion_timestamp = Some(from(json!("2026-01-01T00:00:00Z")));
    Index::apply(&books, ending);
    assert_eq!(used(&books), 600, "terminating pods keep their share");
    let mut done = pod("a", 600, Some("n"));
    done.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
    Index::apply(&books, done);
    assert_eq!(used(&books), 0);
    Index::apply(&books, pod("b", 700, Some("n")));
    Index::delete(&books, pod("b", 700, Some("n")));
    assert_eq!(used(&books), 0);
}

#[test]
fn a_reservation_outlives_a_list_that_is_older_than_its_pod() {
    let books = books();
    assert!(reserve(&books, "young", 600));
    Index::<Pod>::reset(&books, vec![]);
    assert_eq!(used(&books), 600);
    assert!(!reserve(&books, "late", 600));
}

#[test]
fn an_unbound_pod_seen_again_does_not_lose_its_reservation() {
    let books = books();
    assert!(reserve(&books, "a", 600));
    Index::apply(&books, pod("a", 600, None));
    assert_eq!(used(&books), 600);
    Index::apply(&books, pod("a", 600, Some("n")));
    books.cancel(&"a".into());
    assert_eq!(used(&books), 600, "confirmed bookings cannot be cancelled");
}

#[test]
fn deletion_seen_before_the_201_closes_the_reservation() {
    let books = books();
    assert!(reserve(&books, "a", 600));
    Index::delete(&books, pod("a", 600, None));
    assert_eq!(used(&books), 0);
}

#[test]
fn a_list_after_a_restart_gives_the_same_books() {
    let first = books();
    let pods = [
        pod("a", 100, Some("n")),
        pod("b", 200, Some("n")),
        pod("c", 5, None),
    ];
    for pod in pods.clone() {
        Index::apply(&first, pod);
    }
    let second = books();
    Index::<Pod>::reset(&second, pods.to_vec());
    assert!(first.read(|a| second.read(|b| a == b)));
    assert!(first.recompute().count() == 0);
    assert_eq!(
        second.waiting_counts(),
        (1, 1),
        "pending pods count as refused after a restart"
    );
}

/// A pod of 600 MiB that filter refused: 900 of the 1000 are taken.
fn full() -> Books {
    let books = books();
    Index::apply(&books, pod("big", 900, Some("n")));
    let waiting = pod("w", 600, None);
    Index::apply(&books, waiting.clone());
    let demand = pod::demand(&waiting, books.settings()).unwrap();
    let waiting = crate::waiting::waiting(&waiting, demand, true);
    books.refused(&"w".into(), waiting, books.enlargements());
    books
}

#[test]
fn a_refused_pod_is_woken_when_it_fits_and_only_then() {
    let books = full();
    assert!(books.wakeable().is_empty());
    let seen = books.enlargements();
    Index::delete(&books, pod("big", 900, Some("n")));
    assert!(books.enlargements() > seen);
    let woken = books.wakeable();
    assert_eq!(
        woken
            .iter()
            .map(|(uid, _)| uid.as_str())
            .collect::<Vec<_>>(),
        ["w"]
    );
    assert!(books.wakeable().is_empty(), "once for each refusal");
}

/// What had grown was taken after the nodes were looked at: room that appeared
/// between the two woke nobody.
#[test]
fn room_that_appeared_during_a_look_woke_nobody() {
    for _ in 0..200 {
        let books = full();
        let gone = pod("big", 900, Some("n"));
        let woken: usize = std::thread::scope(|scope| {
            let end = scope.spawn(|| Index::delete(&books, gone));
            let looks = std::iter::from_fn(|| (!end.is_finished()).then(|| books.wakeable().len()));
            looks.sum()
        });
        assert_eq!(woken + books.wakeable().len(), 1);
    }
}

#[test]
fn a_pod_bound_by_somebody_else_gives_its_reservation_back() {
    let books = books();
    assert!(reserve(&books, "a", 600));
    let mut bound = pod("a", 600, None);
    bound.spec.as_mut().unwrap().node_name = Some("elsewhere".to_owned());
    Index::apply(&books, bound);
    assert_eq!(used(&books), 0);
}

#[test]
fn a_node_without_a_readable_inventory_takes_no_pods_and_keeps_its_bookings() {
    let books = books();
    Index::apply(&books, pod("a", 600, Some("n")));
    let broken = from(json!({"metadata": {"name": "n", "annotations": {INVENTORY: "{"}}}));
    Index::<Node>::apply(&books, broken);
    assert!(!reserve(&books, "b", 100));
    Index::<Node>::apply(&books, node("n", 1000));
    assert_eq!(used(&books), 600);
    assert!(reserve(&books, "b", 100));
}

#[test]
fn a_share_that_is_held_for_a_pod_wakes_that_pod_and_no_other() {
    use aliquot_core::ledger::Held;
    use aliquot_core::usage::Use;
    use aliquot_core::{Mib, Percent};

    let books = books();
    Index::apply(&books, pod("victim", 900, Some("n")));
    for name in ["holder", "other"] {
        let waits = pod(name, 600, None);
        let demand = pod::demand(&waits, books.settings()).unwrap();
        Index::apply(&books, waits.clone());
        let offered = books.snapshot().set(&["n"]);
        let waits = Waiting {
            offered,
            ..crate::waiting::waiting(&waits, demand, true)
        };
        books.refused(&name.into(), waits, books.enlargements());
    }
    let used = Use::of(Mib(600), Percent(0));
    let hold = aliquot_core::ledger::Hold {
        node: "n".into(),
        held: Held::Uses([("GPU-n".into(), used)].into()),
        seats: aliquot_core::Seats::default(),
        written: false,
    };
    books.ledger.write().hold(&"holder".into(), hold);
    Index::delete(&books, pod("victim", 900, Some("n")));
    let woken = books.wakeable();
    let woken: Vec<_> = woken.iter().map(|(uid, _)| uid.as_str()).collect();
    assert_eq!(woken, ["holder"]);
    assert!(!reserve(&books, "other", 600) && reserve(&books, "holder", 600));
    assert!(books.recompute().count() == 0);
}

#[test]
fn a_pod_refused_while_a_node_was_away_slept_on_when_it_came_back() {
    let books = books();
    Index::<Node>::apply(&books, node("other", 10));
    Index::<Node>::delete(&books, node("n", 1000));
    let waits = pod("w", 600, None);
    Index::apply(&books, waits.clone());
    let demand = pod::demand(&waits, books.settings()).unwrap();
    let waits = Waiting {
        offered: books.snapshot().set(&["other"]),
        ..crate::waiting::waiting(&waits, demand, true)
    };
    books.refused(&"w".into(), waits, books.enlargements());
    assert!(books.wakeable().is_empty());
    Index::<Node>::apply(&books, node("n", 1000));
    assert_eq!(books.wakeable().len(), 1);
}

/// Waits, refused on `n`.
fn refused(books: &Books, name: &str, memory: u64) {
    let waits = pod(name, memory, None);
    Index::apply(books, waits.clone());
    let demand = pod::demand(&waits, books.settings()).unwrap();
    let waits = Waiting {
        offered: books.snapshot().set(&["n"]),
        ..crate::waiting::waiting(&waits, demand, true)
    };
    books.refused(&name.into(), waits, books.enlargements());
}

fn woken(books: &Books) -> Vec<String> {
    let woken = books.wakeable();
    woken.iter().map(|(uid, _)| uid.to_string()).collect()
}

#[test]
fn a_pod_created_while_an_agent_restarted_slept_though_its_seats_were_back() {
    let books = books();
    Index::<Node>::apply(&books, offering("n", 1000, 0));
    assert!(!reserve(&books, "w", 100));
    refused(&books, "w", 100);
    assert!(woken(&books).is_empty());
    Index::<Node>::apply(&books, offering("n", 1000, 10));
    assert_eq!(woken(&books), ["w"]);
    assert!(reserve(&books, "w", 100));
}

#[test]
fn as_many_refused_pods_are_woken_as_the_kubelet_has_seats_for() {
    let books = books();
    Index::<Node>::apply(&books, offering("n", 1000, 0));
    for name in ["a", "b", "c"] {
        refused(&books, name, 100);
    }
    Index::<Node>::apply(&books, offering("n", 1000, 2));
    assert_eq!(woken(&books), ["a", "b"]);
    assert!(reserve(&books, "a", 100) && reserve(&books, "b", 100));
    assert!(!reserve(&books, "c", 100));
}

#[test]
fn a_pod_that_another_scheduler_placed_has_its_seat_until_it_ends() {
    let books = books();
    Index::<Node>::apply(&books, offering("n", 1000, 1));
    let mut stranger = pod("stranger", 100, None);
    stranger.spec.as_mut().unwrap().node_name = Some("n".to_owned());
    Index::apply(&books, stranger.clone());
    assert_eq!(used(&books), 0);
    refused(&books, "w", 100);
    assert!(!reserve(&books, "w", 100) && woken(&books).is_empty());
    let phase = |phase: &str| Some(phase.to_owned());
    stranger.status.as_mut().unwrap().phase = phase("Running");
    Index::apply(&books, stranger.clone());
    assert!(woken(&books).is_empty());
    stranger.status.as_mut().unwrap().phase = phase("Succeeded");
    Index::apply(&books, stranger);
    assert_eq!(woken(&books), ["w"]);
    assert!(reserve(&books, "w", 100));
}

/// A woken pod went elsewhere than it was woken for, and nobody heard that this was
/// free again.
#[test]
fn room_that_a_woken_pod_claims_no_longer_woke_nobody() {
    let books = books();
    Index::<Node>::apply(&books, node("m", 10));
    for name in ["a", "b"] {
        let waits = pod(name, 600, None);
        Index::apply(&books, waits.clone());
        let demand = pod::demand(&waits, books.settings()).unwrap();
        let waits = Waiting {
            offered: books.snapshot().set(&["m", "n"]),
            ..crate::waiting::waiting(&waits, demand, true)
        };
        books.refused(&name.into(), waits, books.enlargements());
    }
    assert_eq!(woken(&books), ["a"], "n has room for one");
    Index::<Node>::apply(&books, node("m", 1000));
    let waits = pod("a", 600, None);
    let demand = pod::demand(&waits, books.settings()).unwrap();
    books.claim(&books.snapshot(), &waits, &demand, "m");
    assert_eq!(woken(&books), ["b"]);
    books.claim(&books.snapshot(), &waits, &demand, "m");
    assert!(woken(&books).is_empty());
}

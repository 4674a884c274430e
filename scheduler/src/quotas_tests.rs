//! Quotas fed as the watch feeds them, and pods that wait for them.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;
use crate::books::tests::{books, node, pod};
use crate::waiting::waiting;

fn quota(memory: &str) -> ResourceQuota {
    serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "d"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": memory}},
    }))
    .unwrap()
}

/// The pod waits and is refused; why.
fn refuse(books: &Books, pod: &Pod, nodes: &[&str]) -> String {
    let uid = aliquot_k8s::pod::uid(pod);
    let demand = aliquot_k8s::pod::demand(pod, books.settings()).unwrap();
    Index::apply(books, pod.clone());
    let seen = books.enlargements();
    let view = books.view("d");
    let why = books.fitting(&view, &uid, &demand, nodes);
    books.refused(&uid, waiting(pod, demand, true), seen);
    why.map_or_else(|why| why.to_string(), |fits| format!("{fits:?}"))
}

fn woken(books: &Books) -> Vec<String> {
    let woken = books.wakeable().into_iter();
    woken.map(|(uid, _)| uid.to_string()).collect()
}

/// A node and a quota of 1000 MiB, 800 of it held by `holder`, with pods `a`
/// (300 MiB), `b` (300 MiB) and `c` (200 MiB) waiting.
fn waiting_books() -> Books {
    let books = books();
    Index::apply(&books, node("m", 9000));
    Index::<ResourceQuota>::reset(&books, vec![quota("1000")]);
    Index::apply(&books, pod("holder", 800, Some("n")));
    let refused = "2 ResourceQuotaNotFit (namespace d: limits.nvidia.com/gpumem used 800, \
                   asked 300, limit 1k of quota q)";
    let refused = refused.replace("1k", "1000");
    let both = ["m", "n"];
    for name in ["a", "b"] {
        let why = refuse(&books, &pod(name, 300, None), &both);
        assert_eq!(why.replace("1 CardInsufficientMemory, 1 R", "2 R"), refused);
    }
    Index::apply(&books, pod("c", 200, None));
    assert_eq!(woken(&books), [""; 0]);
    books
}

#[test]
fn a_raised_quota_wakes_those_pods_of_its_namespace_that_fit_together() {
    let books = waiting_books();
    Index::apply(&books, quota("1000"));
    assert_eq!(woken(&books), [""; 0], "nothing changed");
    Index::apply(&books, quota("1100"));
    assert_eq!(woken(&books), ["a"]);
    Index::apply(&books, quota("1300"));
    assert_eq!(woken(&books), [""; 0], "the claim of the first counts");
    Index::apply(&books, quota("1400"));
    assert_eq!(woken(&books), ["b"]);
}

#[test]
fn a_deleted_quota_and_a_list_without_it_wake_all() {
    let books = waiting_books();
    Index::delete(&books, quota("1000"));
    assert_eq!(woken(&books), ["a", "b"]);
    let books = waiting_books();
    Index::<ResourceQuota>::reset(&books, vec![]);
    assert_eq!(woken(&books), ["a", "b"]);
}

#[test]
fn a_pods_end_wakes_refused_pods_of_its_namespace_on_other_nodes_too() {
    let books = waiting_books();
    // Its own node is full of somebody else's pods by then.
    let mut other = pod("other", 900, Some("n"));
    other.metadata.namespace = Some("elsewhere".to_owned());
    Index::delete(&books, pod("holder", 800, Some("n")));
    Index::apply(&books, other);
    assert_eq!(woken(&books), ["a", "b"]);
}

#[test]
fn two_reservations_together_never_pass_a_limit() {
    let books = books();
    Index::apply(&books, node("m", 90_000));
    Index::apply(&books, quota("1000"));
    let taken = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let books = &books;
                scope.spawn(move || {
                    let pod = pod(&format!("p{number}"), 300, None);
                    let demand = aliquot_k8s::pod::demand(&pod, books.settings()).unwrap();
                    let uid = aliquot_k8s::pod::uid(&pod);
                    let reserved = books.reserve(&uid, &"d".into(), &"m".into(), &demand);
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
fn a_limit_that_cannot_be_read_allows_nothing_until_it_is_corrected() {
    let books = books();
    Index::apply(&books, quota("1Gi"));
    let why = refuse(&books, &pod("a", 300, None), &["n"]);
    assert!(
        why.contains("limit \"1Gi\" of quota q cannot be read"),
        "{why}"
    );
    Index::apply(&books, quota("1k"));
    assert_eq!(woken(&books), ["a"]);
}

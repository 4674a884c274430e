//! The kubelet's seats on nodes that would do: who is refused for them, and what is told.

use std::sync::Arc;

use crate::decide::{Question, SoftNote, fitting, refusal_text, shortlist};
use crate::fit::Policies;
use crate::ledger::{Held, Hold};
use crate::memo::Memo;
use crate::node::Published;
use crate::tests::{ask, demand, gpu, inventory};
use crate::{Compute, Demand, Ledger, NodeName, Requests, Seats, Stage};

const USUAL: &str = "nvidia.com/gpu";

fn seats(count: u32) -> Seats {
    Seats::from_iter([(USUAL.into(), count)])
}

/// A node with a card of 1000 MiB and 4 seats, of which its kubelet offers so many.
fn publish(ledger: &mut Ledger, name: &str, offered: Option<u32>) {
    let published = Published {
        inventory: Some(Arc::new(inventory(vec![gpu(0, 1000, 4)]))),
        seats: offered.map(seats),
        ..Published::default()
    };
    ledger.publish(&name.into(), Some(published));
}

fn asks(count: u32, memory: u64) -> Demand {
    demand(&[(Stage::App, Some(ask(count, memory, 0)))])
}

/// A pod without a share that requests seats: another scheduler placed it.
fn stranger(ledger: &mut Ledger, name: &str, node: &str, count: u32) {
    let requests = Requests {
        seats: seats(count),
        ..Requests::default()
    };
    let node: NodeName = node.into();
    ledger.confirm(&name.into(), &"d".into(), &node, Held::nothing(), requests);
}

fn answer(ledger: &Ledger, memo: &mut Memo, names: &[&str], notes: &[SoftNote]) -> String {
    let question = Question {
        cluster: ledger.cluster(),
        demand: &asks(1, 100),
        policies: &Policies::default(),
        notes,
        own: None,
        headroom: None,
    };
    match fitting(&question, memo, names) {
        Ok(fits) => shortlist(fits, 9).join(" "),
        Err(refusal) => refusal_text(names.len(), &refusal),
    }
}

#[test]
fn a_node_whose_kubelet_offers_no_seat_was_left_to_kube_scheduler_which_never_woke_the_pod() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "n", Some(0));
    let none = "0/1 nodes can serve the GPU request: \
                1 NodeInsufficientSeats (the kubelet offers 0 of nvidia.com/gpu)";
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), none);
    publish(&mut ledger, "n", Some(1));
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), "n");
    publish(&mut ledger, "n", None);
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), "n");
    // An inventory that is ahead of the kubelet, or behind it.
    let other = Published {
        seats: Some(Seats::from_iter([("nvidia.com/gpu.shared".into(), 9)])),
        ..ledger.published("n").unwrap().clone()
    };
    ledger.publish(&"n".into(), Some(other));
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), none);
}

#[test]
fn whoever_placed_them_pods_that_request_seats_count() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "n", Some(3));
    stranger(&mut ledger, "one", "n", 2);
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), "n");
    let (asked, policies) = (asks(1, 100), Policies::default());
    let reserve = |ledger: &mut Ledger, pod: &str| {
        ledger.reserve(&pod.into(), &"d".into(), &"n".into(), &asked, &policies)
    };
    assert!(reserve(&mut ledger, "a").is_ok());
    let few = "0/1 nodes can serve the GPU request: 1 NodeInsufficientSeats \
               (the kubelet offers 3 of nvidia.com/gpu, too few of them are left)";
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), few);
    assert!(reserve(&mut ledger, "b").is_err());
    ledger.release(&"one".into());
    assert!(reserve(&mut ledger, "b").is_ok());
    ledger.cancel(&"a".into());
    let state = ledger.cluster().node("n").unwrap();
    assert_eq!(state.seats.requested, seats(1));
    // Seats went away under running pods: what is there stays, nothing comes.
    publish(&mut ledger, "n", Some(0));
    assert!(reserve(&mut ledger, "c").is_err());
    assert_eq!(ledger.bookings().count(), 1);
}

#[test]
fn what_cards_say_against_a_pod_is_told_before_the_kubelets_count() {
    let mut ledger = Ledger::default();
    publish(&mut ledger, "n", Some(0));
    let policies = Policies::default();
    let refused = |ledger: &Ledger, demand: &Demand| {
        let refusal = ledger.fit("n", demand, &policies).unwrap_err();
        refusal.to_string()
    };
    let large = refused(&ledger, &asks(1, 2000));
    assert_eq!(large, "1 CardInsufficientMemory");
    assert_eq!(refused(&ledger, &asks(2, 1)), "1 NodeInsufficientDevice");
    let nothing = demand(&[(Stage::App, None)]);
    assert!(ledger.fit("n", &nothing, &policies).is_ok());
}

#[test]
fn who_is_about_to_come_takes_seats_of_a_nodes_rank_and_never_its_feasibility() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "a", Some(1));
    publish(&mut ledger, "b", Some(1));
    let all = ["a", "b"];
    assert_eq!(answer(&ledger, &mut memo, &all, &[]), "a b");
    let fit = ledger.fit("a", &asks(1, 100), &Policies::default());
    let note = SoftNote::of(0, fit.unwrap(), &asks(1, 100));
    let noted = [note];
    assert_eq!(answer(&ledger, &mut memo, &all, &noted), "b a");
    assert_eq!(answer(&ledger, &mut memo, &["a"], &noted), "a");
}

#[test]
fn a_hold_keeps_a_seat_for_its_pod() {
    let mut ledger = Ledger::default();
    publish(&mut ledger, "n", Some(1));
    let hold = Hold {
        node: "n".into(),
        held: Held::nothing(),
        seats: seats(1),
        written: true,
    };
    ledger.hold(&"holder".into(), hold);
    let (asked, policies) = (asks(1, 100), Policies::default());
    let reserve = |ledger: &mut Ledger, pod: &str| {
        let node = "n".into();
        let reserved = ledger.reserve(&pod.into(), &"d".into(), &node, &asked, &policies);
        reserved.is_ok()
    };
    assert!(!reserve(&mut ledger, "other"));
    assert!(reserve(&mut ledger, "holder"));
    assert!(ledger == ledger.recompute());
    ledger.cancel(&"holder".into());
    assert!(!reserve(&mut ledger, "other"));
    ledger.unhold(&"holder".into());
    assert!(reserve(&mut ledger, "other"));
    let requested = &ledger.cluster().node("n").unwrap().host.requested;
    assert_eq!(*requested, Compute::default());
}

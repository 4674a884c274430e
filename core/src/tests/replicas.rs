//! The kubelet's replicas: which pods are refused for them, and with what text.

use crate::decide::{Memo, NodeQuery, PendingPlacement};
use crate::ledger::{Purpose, Reservation};
use crate::node::NodePublication;
use crate::score::Policies;
use crate::tests::{self, app, demand, gpu, published, query, reserve};
use crate::usage::AllocatedUse;
use crate::{Demand, HostResources, Ledger, NodeName, Replicas, Requests, Stage};

const USUAL: &str = "nvidia.com/gpu";

fn replicas(count: u32) -> Replicas {
    Replicas::from_iter([(USUAL.into(), count)])
}

/// A node with a device of 1000 MiB and 4 replicas, of which its kubelet offers this many.
fn publish(ledger: &mut Ledger, name: &str, offered: Option<u32>) {
    let published = NodePublication {
        replicas: offered.map(replicas),
        ..published(vec![gpu(0, 1000, 4)])
    };
    ledger.publish(&name.into(), Some(published));
}

/// A pod of another scheduler that requests replicas, without an allocation.
fn foreign_pod(ledger: &mut Ledger, name: &str, node: &str, count: u32) {
    let requests = Requests {
        replicas: replicas(count),
        ..Requests::default()
    };
    let node: NodeName = node.into();
    ledger.confirm(
        &name.into(),
        &"d".into(),
        &node,
        AllocatedUse::nothing(),
        requests,
    );
}

fn answer(
    ledger: &Ledger,
    memo: &mut Memo,
    names: &[&str],
    pending: &[PendingPlacement],
) -> String {
    let (demand, policies) = (app(1, 100, 0), Policies::default());
    let query = NodeQuery {
        pending,
        ..query(ledger.cluster(), &demand, &policies)
    };
    tests::answer(&query, memo, names, 9)
}

#[test]
fn refuses_node_whose_kubelet_offers_no_replicas() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "n", Some(0));
    let none = "GPU request does not fit the one node offered: \
                1 NodeInsufficientSeats (the kubelet offers 0 of nvidia.com/gpu)";
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), none);
    publish(&mut ledger, "n", Some(1));
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), "n");
    publish(&mut ledger, "n", None);
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), "n");
    // An inventory that is ahead of the kubelet, or behind it.
    let other = NodePublication {
        replicas: Some(Replicas::from_iter([("nvidia.com/gpu.shared".into(), 9)])),
        ..ledger.published("n").unwrap().clone()
    };
    ledger.publish(&"n".into(), Some(other));
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), none);
}

#[test]
fn counts_replicas_of_pods_of_other_schedulers() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "n", Some(3));
    foreign_pod(&mut ledger, "one", "n", 2);
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), "n");
    let asked = app(1, 100, 0);
    let reserve = |ledger: &mut Ledger, pod: &str| reserve(ledger, pod, "n", &asked);
    assert!(reserve(&mut ledger, "a").is_ok());
    let few = "GPU request does not fit the one node offered: 1 NodeInsufficientSeats \
               (the kubelet offers 3 of nvidia.com/gpu, too few of them are free)";
    assert_eq!(answer(&ledger, &mut memo, &["n"], &[]), few);
    assert!(reserve(&mut ledger, "b").is_err());
    ledger.release(&"one".into());
    assert!(reserve(&mut ledger, "b").is_ok());
    ledger.cancel(&"a".into());
    let state = ledger.cluster().node("n").unwrap();
    assert_eq!(state.replicas.requested, replicas(1));
    // Replicas go away under running pods: the pods stay, and no new one comes.
    publish(&mut ledger, "n", Some(0));
    assert!(reserve(&mut ledger, "c").is_err());
    assert_eq!(ledger.pod_entries().count(), 1);
}

#[test]
fn reports_device_reasons_before_replica_shortage() {
    let mut ledger = Ledger::default();
    publish(&mut ledger, "n", Some(0));
    let policies = Policies::default();
    let refused = |ledger: &Ledger, demand: &Demand| {
        let refusal = ledger.fit("n", demand, &policies).unwrap_err();
        refusal.to_string()
    };
    let large = refused(&ledger, &app(1, 2000, 0));
    assert_eq!(large, "1 CardInsufficientMemory");
    assert_eq!(refused(&ledger, &app(2, 1, 0)), "1 NodeInsufficientDevice");
    let nothing = demand(&[(Stage::App, None)]);
    assert!(ledger.fit("n", &nothing, &policies).is_ok());
}

#[test]
fn pending_replicas_lower_rank_but_not_feasibility() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "a", Some(1));
    publish(&mut ledger, "b", Some(1));
    let all = ["a", "b"];
    assert_eq!(answer(&ledger, &mut memo, &all, &[]), "a b");
    let fit = ledger.fit("a", &app(1, 100, 0), &Policies::default());
    let placement = PendingPlacement::of(0, fit.unwrap(), &app(1, 100, 0));
    let pending = [placement];
    assert_eq!(answer(&ledger, &mut memo, &all, &pending), "b a");
    assert_eq!(answer(&ledger, &mut memo, &["a"], &pending), "a");
}

#[test]
fn reservation_includes_kubelet_replicas() {
    let mut ledger = Ledger::default();
    publish(&mut ledger, "n", Some(1));
    let reservation = Reservation {
        node: "n".into(),
        allocated: AllocatedUse::nothing(),
        replicas: replicas(1),
        purpose: Purpose::Preemption {
            victims: Vec::new(),
            recorded: true,
        },
    };
    ledger.put_reservation(&"holder".into(), reservation);
    let asked = app(1, 100, 0);
    let reserve = |ledger: &mut Ledger, pod: &str| reserve(ledger, pod, "n", &asked).is_ok();
    assert!(!reserve(&mut ledger, "other"));
    assert!(reserve(&mut ledger, "holder"));
    assert!(ledger == ledger.recompute());
    ledger.cancel(&"holder".into());
    assert!(!reserve(&mut ledger, "other"));
    ledger.drop_reservation(&"holder".into());
    assert!(reserve(&mut ledger, "other"));
    let requested = &ledger.cluster().node("n").unwrap().host.requested;
    assert_eq!(*requested, HostResources::default());
}

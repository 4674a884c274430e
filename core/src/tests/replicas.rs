//! The kubelet's replicas: which pods are refused for them, and with what text.

use crate::decide::Memo;
use crate::fit;
use crate::node::NodePublication;
use crate::score::Policies;
use crate::tests::{self, app, demand, gpu, published, query, reserve};
use crate::usage::AllocatedUse;
use crate::{Demand, Ledger, NodeName, Replicas, Requests, Stage};

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

fn answer(ledger: &Ledger, memo: &mut Memo) -> String {
    let (demand, policies) = (app(1, 100, 0), Policies::default());
    let query = query(ledger.cluster(), &demand, &policies);
    tests::answer(&query, memo, &["n"], 9)
}

#[test]
fn counts_replicas_of_pods_of_other_schedulers() {
    let mut ledger = Ledger::default();
    let mut memo = Memo::default();
    publish(&mut ledger, "n", Some(3));
    foreign_pod(&mut ledger, "one", "n", 2);
    assert_eq!(answer(&ledger, &mut memo), "n");
    let asked = app(1, 100, 0);
    let reserve = |ledger: &mut Ledger, pod: &str| reserve(ledger, pod, "n", &asked);
    assert!(reserve(&mut ledger, "a").is_ok());
    let few = "GPU request does not fit the one node offered: 1 NodeInsufficientReplicas \
               (the kubelet offers 3 of nvidia.com/gpu, too few of them are free)";
    assert_eq!(answer(&ledger, &mut memo), few);
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
    let node = ledger.cluster().node("n").unwrap();
    let refused = |demand: &Demand| fit::fit(node, demand, &policies).unwrap_err().to_string();
    assert_eq!(refused(&app(1, 2000, 0)), "1 CardInsufficientMemory");
    assert_eq!(refused(&app(2, 1, 0)), "1 NodeInsufficientDevice");
    let nothing = demand(&[(Stage::App, None)]);
    assert!(fit::fit(node, &nothing, &policies).is_ok());
}

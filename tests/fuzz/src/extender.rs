//! The body of filter and prioritize calls, decoded and answered on a small cluster,
//! without a socket: [`Call::read`] gets the bytes that a request would carry.

use std::collections::BTreeSet;

use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::event;
use aliquot_k8s::extender::ExtenderArgs;
use aliquot_k8s::pod;
use aliquot_k8s::watch::Index;
use aliquot_scheduler::extender::{Call, Outcome};
use aliquot_scheduler::ledger_cache::LedgerCache;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::shapes;

/// Two GPUs of 80 GiB.
const INVENTORY_JSON: &str = include_str!("../../../core/golden/inventory-v1.json");
/// The longest list of names for which every property is checked.
const NAMES: usize = 200;

/// Four nodes: two with free GPUs, one with small unhealthy ones, one without.
fn ledger_cache() -> LedgerCache {
    let sick = INVENTORY_JSON.replace("\"ok\"", "\"xid 79\"");
    let texts = [
        ("n1", INVENTORY_JSON),
        ("n2", INVENTORY_JSON),
        ("n3", &sick),
        ("n4", "{}"),
    ];
    let nodes = texts.map(|(name, text)| {
        let node = json!({"metadata": {"name": name, "annotations": {INVENTORY: text}}});
        serde_json::from_value::<Node>(node).expect("a Node")
    });
    let ledger_cache = LedgerCache::default();
    Index::reset(&ledger_cache, nodes.into());
    ledger_cache
}

/// Answers the bytes as filter, as prioritize and as its CPU-only entry.
pub fn check(input: &[u8]) {
    let settings = pod::Settings::default();
    let read = || Call::read(input, &settings);
    let call = match read() {
        Ok(call) => call,
        Err(why) => return assert!(!why.is_empty()),
    };
    let args: ExtenderArgs<'_> = serde_json::from_slice(input).expect("read before");
    let pod = args.pod.expect("read before");
    let asked = args.node_names.expect("read before");
    let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
    let demand = pod::demand(&pod, &settings).expect("read before");
    let ledger_cache = ledger_cache();
    let (notes, _reader) = event::queue();

    let (outcome, answer) = call.filter(&ledger_cache, &notes, 2);
    let chosen = answer.node_names.clone().expect("asked by name");
    let known: BTreeSet<&str> = asked.iter().map(String::as_str).collect();
    assert!(chosen.iter().all(|name| known.contains(name.as_str())));
    assert_eq!(answer.failed_nodes, None, "FailedNodes wakes the pod again");
    assert!(answer.error.is_empty());
    match (&outcome, &answer.failed_and_unresolvable_nodes) {
        (Outcome::Ok, reasons) => assert_eq!(*reasons, None),
        (Outcome::Refused(_), reasons) => {
            assert!(chosen.is_empty());
            let texts: Vec<_> = reasons.iter().flat_map(|all| all.values()).collect();
            assert!(
                matches!(texts[..], [text] if text.len() < 1024),
                "{texts:?}"
            );
        }
    }
    let twice = known.len() < asked.len();
    if asked.len() > NAMES || twice {
        return;
    }
    let again = read().map(|call| call.filter(&ledger_cache, &notes, 2));
    assert_eq!(again, Ok((outcome, answer)), "equal ledgers, equal answers");

    let ranks = read()
        .map(|call| call.prioritize(&ledger_cache))
        .expect("read before");
    let hosts = ranks.iter().map(|rank| &rank.host);
    assert!(hosts.eq(asked.iter()), "every name, in its order");
    let best = ranks.iter().filter(|rank| rank.score == 10).count();
    assert!(ranks.iter().all(|rank| (0..=10).contains(&rank.score)));
    let decides = demand.requests_gpu() && !chosen.is_empty();
    assert_eq!(best, usize::from(decides), "one unique 10 where some fit");
    let ranks = read().map(|call| call.prioritize_cpu_only(&ledger_cache));
    let ranks = ranks.expect("read before");
    assert!(ranks.iter().all(|rank| (0..=10).contains(&rank.score)));
    assert_eq!(ranks.len(), asked.len());

    if decides {
        let node = chosen[0].as_str().into();
        let given = ledger_cache.reserve(&pod.uid(), &pod.namespace(), &node, &demand);
        let given = given.expect("filter returned that it fits");
        ledger_cache.read(|ledger| shapes::check_granted(ledger, &node, &demand, &given));
    }
}

//! The body of a preempt call, decoded and answered on two full nodes. Checks what becomes
//! of the nodes that the product keeps and of those that it drops, not which victims it
//! chooses.

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::inventory::INVENTORY;
use aliquot_k8s::extender::{ExtenderPreemptionArgs, ExtenderPreemptionResult, MetaVictims};
use aliquot_k8s::view::PodView;
use aliquot_k8s::watch::Index;
use aliquot_k8s::{disruption, pod};
use aliquot_scheduler::extender;
use aliquot_scheduler::ledger_cache::LedgerCache;
use aliquot_scheduler::ledger_cache::assumed::FilteredPod;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

/// Two GPUs of 80 GiB.
const INVENTORY_JSON: &str = include_str!("../../../core/golden/inventory-v1.json");

/// A pod with a share of one GPU.
struct Tenant {
    uid: &'static str,
    node: &'static str,
    priority: i32,
    gpu: &'static str,
    memory: u64,
}

const fn tenant(
    uid: &'static str,
    (node, gpu): (&'static str, &'static str),
    priority: i32,
    memory: u64,
) -> Tenant {
    Tenant {
        uid,
        node,
        priority,
        gpu,
        memory,
    }
}

const TENANTS: [Tenant; 7] = [
    tenant("u-2", ("n1", "GPU-0"), 1, 40_000),
    tenant("u-3", ("n1", "GPU-0"), 10, 40_000),
    tenant("u-4", ("n1", "GPU-1"), 10, 70_000),
    tenant("u-5", ("n1", "GPU-1"), 1000, 10_000),
    tenant("u-6", ("n2", "GPU-0"), -5, 80_000),
    tenant("u-7", ("n2", "GPU-1"), 5, 30_000),
    tenant("u-8", ("n2", "GPU-1"), 2_000_000, 50_000),
];

impl Tenant {
    fn pod(&self) -> PodView {
        let allocation = json!({"v": 1, "node": self.node, "priority": 1, "init": {},
            "containers": {"main": [{"resource": "nvidia.com/gpu", "gpu": self.gpu,
                "memory": self.memory, "cores": 0}]}});
        let pod = json!({
            "metadata": {"name": self.uid, "namespace": "d", "uid": self.uid,
                "annotations": {ALLOCATION: allocation.to_string()}},
            "spec": {"nodeName": self.node, "priority": self.priority,
                "containers": [{"name": "main"}]},
            "status": {"phase": "Running"},
        });
        serde_json::from_value(pod).expect("a Pod")
    }
}

/// The two nodes without the pods that `evicted` names.
fn ledger_cache(evicted: impl Fn(&Tenant) -> bool) -> LedgerCache {
    let ledger_cache = LedgerCache::default();
    for name in ["n1", "n2"] {
        let node = json!({"metadata": {"name": name, "annotations": {INVENTORY: INVENTORY_JSON}}});
        let node = serde_json::from_value::<Node>(node).expect("a Node");
        Index::apply(&ledger_cache, node);
    }
    for tenant in TENANTS.iter().filter(|tenant| !evicted(tenant)) {
        Index::apply(&ledger_cache, tenant.pod());
    }
    ledger_cache
}

/// Decodes the bytes as the arguments of preempt, and answers them.
pub fn check(input: &[u8]) {
    let answer = match extender::preempt(&ledger_cache(|_| false), input) {
        Ok(answer) => answer,
        Err(why) => return assert!(!why.is_empty()),
    };
    let text = serde_json::to_vec(&answer).expect("what was answered can be written");
    let read = serde_json::from_slice::<ExtenderPreemptionResult>(&text).ok();
    assert_eq!(read.as_ref(), Some(&answer));
    let again = extender::preempt(&ledger_cache(|_| false), input);
    assert_eq!(again.as_ref(), Ok(&answer), "equal ledgers, equal answers");

    let args: ExtenderPreemptionArgs = serde_json::from_slice(input).expect("read before");
    let asked = args.node_name_to_meta_victims.unwrap_or_default();
    let preemptor = args.pod.expect("read before");
    let remaining = answer.node_name_to_meta_victims.expect("always named");
    let demand = pod::demand(&preemptor, &pod::Settings::default()).expect("read before");
    if !demand.requests_gpu() {
        return assert_eq!(remaining, asked, "not for a share: nothing changes");
    }
    let uid = preemptor.uid();
    if TENANTS.iter().any(|tenant| tenant.uid == uid.as_str()) {
        return; // A pod that is bound does not preempt.
    }
    let fits = |node: &str, evicted: &dyn Fn(&Tenant) -> bool| {
        let ledger_cache = ledger_cache(evicted);
        let pod = FilteredPod {
            uid: &uid,
            namespace: &"d".into(),
            demand: &demand,
            gang: None,
        };
        ledger_cache.lock().best(pod, &[node], 1).is_ok()
    };
    let priority = disruption::priority(&preemptor);
    for (node, victims) in &asked {
        let Some(answered) = remaining.get(node) else {
            // Not even evicting all pods of lower priority would suffice.
            let lower = |tenant: &Tenant| tenant.priority < priority;
            assert!(!fits(node, &|t| lower(t) || names(victims, t)), "{node}");
            continue;
        };
        assert_eq!(answered.num_pdb_violations, victims.num_pdb_violations);
        let more = answered.pods.strip_prefix(&victims.pods[..]);
        let more = more.expect("all whom kube-scheduler named, in their order");
        for victim in more {
            let found = TENANTS.iter().find(|tenant| tenant.uid == victim.uid);
            let found = found.expect("a pod of these nodes");
            assert!(
                found.node == node && found.priority < priority,
                "{victim:?}"
            );
            let times = answered.pods.iter().filter(|one| *one == victim).count();
            assert_eq!(times, 1, "{victim:?}");
        }
        assert!(fits(node, &|t| names(answered, t)), "{node}: {answered:?}");
    }
    assert!(remaining.keys().all(|node| asked.contains_key(node)));
}

fn names(victims: &MetaVictims, tenant: &Tenant) -> bool {
    victims.pods.iter().any(|pod| pod.uid == tenant.uid)
}

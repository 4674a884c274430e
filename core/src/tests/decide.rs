//! Filter and prioritize on small clusters of one-device nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::decide::{Memo, NodeQuery, NodeVerdict, best, cpu_only_ranks, ranks};
use crate::inventory::{Gpu, Mode};
use crate::ledger::By;
use crate::node::NodePublication;
use crate::quota::QuotaAmount;
use crate::request::{GpuRequest, Memory};
use crate::rules::{DeviceRules, Model};
use crate::score::Policies;
use crate::tests::{
    answer, app, demand, gpu, memory_quota, planned, published, query, reserve, uses,
};
use crate::typical::PodShape;
use crate::units::{HostResources, MilliCpu};
use crate::{Census, Demand, Ledger, Mib, Percent, Policy, Stage, Typical};

/// Nodes `n0`, `n1`, … with one device of 1000 MiB each, of which this much is allocated.
fn ledger(taken: &[u64]) -> Ledger {
    let mut ledger = Ledger::default();
    for (number, &memory) in taken.iter().enumerate() {
        let (name, pod) = (format!("n{number}"), format!("taken-{number}"));
        ledger.publish(
            &name.as_str().into(),
            Some(published(vec![gpu(0, 1000, 9)])),
        );
        if memory > 0 {
            reserve(&mut ledger, &pod, &name, &requests(memory)).unwrap();
        }
    }
    ledger
}

/// A node with a device of 1000 MiB and this much CPU.
fn with_cpu(cpu: u64) -> NodePublication {
    NodePublication {
        allocatable: HostResources {
            cpu: MilliCpu(cpu),
            memory: Mib(1000),
        },
        ..published(vec![gpu(0, 1000, 9)])
    }
}

/// Pods that ask for eight CPUs and half a device.
fn typical() -> Typical {
    let mut census = Census::default();
    let shape = PodShape {
        cpu: MilliCpu(8_000),
        count: 1,
        memory: Memory::Share(Percent(50)),
        cores: Percent(50),
    };
    census.add(shape, Mib(1));
    census.typical()
}

fn requests(memory: u64) -> Demand {
    app(1, memory, 0)
}

/// Queries twice, the second time with cached verdicts.
fn filter(ledger: &Ledger, memory: u64, names: &[&str], most: usize) -> String {
    let (demand, policies) = (requests(memory), Policies::default());
    let query = query(ledger.cluster(), &demand, &policies);
    let mut memo = Memo::default();
    let first = answer(&query, &mut memo, names, most);
    assert_eq!(first, answer(&query, &mut memo, names, most));
    first
}

fn check(taken: &[u64], memory: u64, most: usize, expected: &str) {
    let names: Vec<_> = ["n0", "n1", "n2"].into_iter().take(taken.len()).collect();
    let shown = filter(&ledger(taken), memory, &names, most);
    assert_eq!(shown, expected, "{taken:?}");
}

#[test]
fn filter_returns_best_nodes_first_up_to_shortlist_size() {
    check(&[0, 500, 300], 100, 64, "n1 n2 n0");
    check(&[0, 500, 300], 100, 2, "n1 n2");
    check(&[0, 950, 300], 100, 64, "n2 n0");
    check(&[0, 0, 0], 100, 2, "n0 n1");
}

#[test]
fn refusal_counts_reasons_in_bounded_length() {
    check(
        &[950, 950],
        100,
        64,
        "GPU request fits none of 2 nodes: 2 CardInsufficientMemory",
    );
    assert_eq!(
        filter(&ledger(&[]), 1, &["elsewhere"], 64),
        "GPU request does not fit the one node offered: 1 NodeNotRegistered"
    );
}

#[test]
fn prioritize_scores_one_node_ten_and_the_rest_by_rank() {
    let ledger = ledger(&[0, 500, 300, 1000]);
    let ranks = |names: &[&str]| {
        let (demand, policies) = (requests(100), Policies::default());
        let query = query(ledger.cluster(), &demand, &policies);
        let ranks = ranks(&query, &mut Memo::default(), names);
        ranks.into_iter().map(|(_, rank)| rank).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&["n0", "n1", "n2", "n3"]), [0, 10, 4, 0]);
    assert_eq!(ranks(&["n0"]), [10]);
    assert_eq!(ranks(&["n3"]), [0]);
    assert_eq!(ranks(&[]), [0; 0]);
}

#[test]
fn scores_node_anew_when_it_changes() {
    let mut ledger = ledger(&[0, 500]);
    let mut memo = Memo::default();
    let mut first = |ledger: &Ledger| {
        let (demand, policies) = (requests(100), Policies::default());
        let query = query(ledger.cluster(), &demand, &policies);
        best(&query, &mut memo, &["n0", "n1"], 1).unwrap()[0]
    };
    assert_eq!(first(&ledger), "n1");
    ledger.release(&"taken-1".into());
    assert_eq!(first(&ledger), "n0");
    reserve(&mut ledger, "p", "n1", &requests(500)).unwrap();
    assert_eq!(first(&ledger), "n1");
}

/// Nodes `n0` and `n1` differ in names alone, the others in one property each. `cpu` is like them but
/// for its CPU, of which pods without GPUs take some.
#[test]
fn caches_for_a_kind_what_each_of_its_nodes_would_get() {
    let changes: [fn(&mut Gpu); 10] = [
        |_| {},
        |gpu| gpu.uuid = "GPU-other".into(),
        |gpu| gpu.model = "NVIDIA H100".to_owned(),
        |gpu| gpu.scaled = Mib(400),
        |gpu| gpu.cores = Percent(10),
        |gpu| gpu.replicas = 0,
        |gpu| gpu.mode = Mode::Timeslice,
        |gpu| gpu.resource = "nvidia.com/gpu.shared".to_owned(),
        |gpu| gpu.cordon = Some("a change of its mode".to_owned()),
        |gpu| gpu.reserved = vec!["team".into()],
    ];
    let mut ledger = Ledger::default();
    for (number, change) in changes.into_iter().enumerate() {
        let mut gpu = gpu(0, 1000, 9);
        change(&mut gpu);
        ledger.publish(&format!("n{number}").into(), Some(published(vec![gpu])));
    }
    let cluster = ledger.cluster();
    let kinds: BTreeSet<_> = (0..changes.len())
        .filter_map(|slot| cluster.kind(slot))
        .collect();
    assert_eq!(cluster.kind(0), cluster.kind(1));
    assert_eq!(kinds.len(), changes.len() - 1);
    let with = |rules| Demand {
        rules,
        ..app(1, 500, 20)
    };
    let rules = [
        DeviceRules::default(),
        DeviceRules {
            use_models: vec![Model::Contains("H100".to_owned())],
            ..DeviceRules::default()
        },
        DeviceRules {
            use_uuids: vec!["GPU-other".into()],
            ..DeviceRules::default()
        },
        DeviceRules {
            nouse_uuids: vec!["GPU-0".into()],
            ..DeviceRules::default()
        },
    ];
    let demands = rules.map(with);
    let fragmentation = Policies {
        node: Policy::Fragmentation,
        typical: Arc::new(typical()),
        ..Policies::default()
    };
    let mut cases = [Policies::default(), fragmentation].map(|all| (all, Memo::default()));
    for cpu in [64_000, 16_000, 15_000] {
        ledger.publish(&"cpu".into(), Some(with_cpu(cpu)));
        let cluster = ledger.cluster();
        assert_eq!(cluster.kind(0), cluster.kind(changes.len()));
        for (policies, memo) in &mut cases {
            for demand in &demands {
                let mut verdicts = memo.verdicts(cluster, demand, policies);
                for (slot, name, node) in cluster.iter() {
                    let (alone, rules) = (NodeVerdict::on(node, demand, policies), &demand.rules);
                    assert_eq!(*verdicts.on(slot), alone, "{name}, {cpu}: {rules:?}");
                }
            }
        }
    }
}

#[test]
fn steers_pods_without_gpu_away_from_free_gpus() {
    let ledger = ledger(&[0, 1000, 500]);
    let ranks = cpu_only_ranks(
        ledger.cluster(),
        &Typical::default(),
        HostResources::default(),
        &["n0", "n1", "n2", "no-gpu"],
    );
    assert_eq!(ranks, [0, 6, 3, 10]);
}

#[test]
fn steers_pods_without_gpu_to_cpu_that_free_gpus_do_not_need() {
    // A whole GPU needs 16 CPUs.
    let check = |nodes: &[(&str, u64)], taken, expected: &[i64]| {
        let mut ledger = Ledger::default();
        for (name, cpu) in nodes {
            ledger.publish(&(*name).into(), Some(with_cpu(*cpu)));
        }
        let names: Vec<&str> = nodes.iter().map(|(name, _)| *name).collect();
        let names = [&names[..], &["no-gpu"]].concat();
        let taken = HostResources {
            cpu: MilliCpu(taken),
            ..HostResources::default()
        };
        let ranks = cpu_only_ranks(ledger.cluster(), &typical(), taken, &names);
        assert_eq!(ranks, expected);
    };
    let nodes = [("much", 64_000), ("little", 32_000), ("enough", 48_000)];
    check(&nodes, 20_000, &[3, 0, 6, 10]);
    // Their GPUs lack CPU anyway: the GPU that lacks most of it loses the rest.
    check(&[("all", 16_000), ("half", 8_000)], 4_000, &[0, 4, 10]);
}

#[test]
fn assumed_share_admits_only_its_pod_until_forgotten() {
    let mut ledger = ledger(&[600]);
    let (asked, policies) = (requests(400), Policies::default());
    let fits = |ledger: &Ledger, pod: &str| {
        let own = ledger.node_without_assumed(&pod.into());
        let query = NodeQuery {
            without_own: own.as_ref(),
            ..query(ledger.cluster(), &asked, &policies)
        };
        best(&query, &mut Memo::default(), &["n0"], 1).is_ok()
    };
    let taken = (uses("GPU-0", 400, 0), requests(400).replicas());
    let version = ledger.cluster().version(0);
    ledger.assume_plan(&"holder".into(), planned("n0", taken, Vec::new()));
    let unnoticed = ledger.cluster().version(0) == version;
    assert!(!unnoticed, "a memo would not notice");
    assert!(fits(&ledger, "holder") && !fits(&ledger, "other"));
    assert!(reserve(&mut ledger, "other", "n0", &asked).is_err());
    // A gang's filter call does not replace it.
    let (holder, team) = ("holder".into(), "team".into());
    let before = ledger.assumed(&holder).cloned();
    let gang = (&asked, By::Gang);
    let kept = ledger.assume(&holder, &team, &"n0".into(), gang, &policies);
    assert_eq!(kept, Ok(None), "a plan's share stays as it is");
    assert_eq!(ledger.assumed(&holder), before.as_ref());
    assert!(reserve(&mut ledger, "holder", "n0", &asked).is_ok());
    let device = |ledger: &Ledger| ledger.cluster().at(0).unwrap().devices[0].allocated;
    assert_eq!(device(&ledger).used.memory, Mib(1000), "counted once");
    ledger.cancel(&"holder".into());
    assert_eq!(device(&ledger).used.memory, Mib(1000), "assumed again");
    ledger.forget(&"holder".into());
    assert!(fits(&ledger, "other"));
}

/// Nodes `n0` and `n1` with a device of 1000 and one of 4000 MiB, and a quota of
/// 1500 MiB, of which 400 are used elsewhere.
#[test]
fn charges_quota_for_the_device_the_node_would_give() {
    let mut ledger = ledger(&[0]);
    ledger.publish(&"n1".into(), Some(published(vec![gpu(0, 4000, 9)])));
    ledger.set_quota(&"team".into(), "q", Some(memory_quota(1500)));
    ledger.confirm(
        &"x".into(),
        &"team".into(),
        &"elsewhere".into(),
        uses("GPU-x", 400, 0),
        HostResources::default(),
    );
    let headroom = ledger.headroom("team");
    let mut memo = Memo::default();
    let policies = Policies::default();
    let mut answer = |headroom, percent| {
        let request = GpuRequest::new(1, Memory::Share(Percent(percent)), Percent(0));
        let demand = demand(&[(Stage::App, Some(request))]);
        let query = NodeQuery {
            headroom,
            ..query(ledger.cluster(), &demand, &policies)
        };
        answer(&query, &mut memo, &["n0", "n1", "n2"], 9)
    };
    assert_eq!(answer(None, 100), "n0 n1");
    assert_eq!(answer(headroom.as_ref(), 100), "n0");
    assert_eq!(answer(headroom.as_ref(), 25), "n0 n1");
    // The cached verdicts are independent of the namespace.
    assert_eq!(answer(None, 100), "n0 n1");
    let mut fuller = headroom.clone().unwrap();
    fuller.take(QuotaAmount {
        memory: Mib(200),
        cores: Percent(0),
    });
    assert_eq!(
        answer(Some(&fuller), 100),
        "GPU request fits none of 3 nodes: 1 NodeNotRegistered, 2 ResourceQuotaNotFit \
         (namespace team: limits.nvidia.com/gpumem used 600, asked 1000, limit 1500 of quota q)"
    );
}

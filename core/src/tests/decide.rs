//! Filter and prioritize on small clusters of one-device nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::decide::{
    Memo, NodeQuery, NodeVerdict, PendingPlacement, best, cpu_only_ranks, ranks, refusal_text,
};
use crate::inventory::{Gpu, Mode};
use crate::ledger::{Purpose, Reservation};
use crate::node::NodePublication;
use crate::quota::{Limit, LimitValue, LimitedResource, Quota, QuotaAmount};
use crate::request::{GpuRequest, Memory};
use crate::rules::{DeviceRules, Model};
use crate::score::Policies;
use crate::tests::{demand, gpu, inventory, request};
use crate::typical::PodShape;
use crate::units::{HostResources, MilliCpu};
use crate::usage::{AllocatedUse, DeviceUse};
use crate::{Census, Demand, Ledger, Mib, Percent, Replicas, Stage, Typical};

/// Nodes `n0`, `n1`, … with one device of 1000 MiB each, of which this much is allocated.
fn ledger(taken: &[u64]) -> Ledger {
    let mut ledger = Ledger::default();
    for (number, &memory) in taken.iter().enumerate() {
        let published = NodePublication {
            inventory: Some(Arc::new(inventory(vec![gpu(0, 1000, 9)]))),
            ..NodePublication::default()
        };
        let name = format!("n{number}").into();
        ledger.publish(&name, Some(published));
        if memory > 0 {
            let pod = format!("taken-{number}").into();
            let reserved = ledger.reserve(
                &pod,
                &"team".into(),
                &name,
                &requests(memory),
                &Policies::default(),
            );
            reserved.unwrap();
        }
    }
    ledger
}

fn requests(memory: u64) -> Demand {
    demand(&[(Stage::App, Some(request(1, memory, 0)))])
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}")).collect()
}

/// Queries twice, the second time with cached verdicts.
fn filter(
    ledger: &Ledger,
    memory: u64,
    pending: &[PendingPlacement],
    names: &[&str],
    most: usize,
) -> String {
    let query = NodeQuery {
        cluster: ledger.cluster(),
        demand: &requests(memory),
        policies: &Policies::default(),
        pending,
        own_reservation: None,
        headroom: None,
    };
    let mut memo = Memo::default();
    let shown = |memo: &mut Memo| match best(&query, memo, names, most) {
        Ok(fits) => fits.join(" "),
        Err(refusal) => refusal_text(names.len(), &refusal),
    };
    let first = shown(&mut memo);
    assert_eq!(first, shown(&mut memo));
    first
}

fn check(taken: &[u64], memory: u64, most: usize, expected: &str) {
    let names = names(taken.len());
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let shown = filter(&ledger(taken), memory, &[], &names, most);
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
        filter(&ledger(&[]), 1, &[], &["elsewhere"], 64),
        "GPU request does not fit the one node offered: 1 NodeNotRegistered"
    );
}

#[test]
fn prioritize_scores_one_node_ten_and_the_rest_by_rank() {
    let ledger = ledger(&[0, 500, 300, 1000]);
    let ranks = |names: &[&str]| {
        let query = NodeQuery {
            cluster: ledger.cluster(),
            demand: &requests(100),
            policies: &Policies::default(),
            pending: &[],
            own_reservation: None,
            headroom: None,
        };
        let ranks = ranks(&query, &mut Memo::default(), names);
        ranks.into_iter().map(|(_, rank)| rank).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&["n0", "n1", "n2", "n3"]), [0, 10, 4, 0]);
    assert_eq!(ranks(&["n0"]), [10]);
    assert_eq!(ranks(&["n3"]), [0]);
    assert_eq!(ranks(&[]), [0; 0]);
}

#[test]
fn ranks_node_filled_by_pending_placements_last() {
    let ledger = ledger(&[0, 500, 300]);
    let all = ["n0", "n1", "n2"];
    let placement = |memory| PendingPlacement {
        slot: 1,
        uses: vec![(0, DeviceUse::of(Mib(memory), Percent(0)))],
        instances: vec![],
        replicas: Replicas::default(),
    };
    assert_eq!(
        filter(&ledger, 100, &[placement(300)], &all, 64),
        "n1 n2 n0"
    );
    assert_eq!(
        filter(&ledger, 100, &[placement(450)], &all, 64),
        "n2 n0 n1"
    );
    let two = [placement(200), placement(250)];
    assert_eq!(filter(&ledger, 100, &two, &all, 64), "n2 n0 n1");
    assert_eq!(filter(&ledger, 100, &two, &["n1"], 64), "n1");
}

#[test]
fn scores_node_anew_when_its_pending_pods_change() {
    let mut ledger = ledger(&[0, 500]);
    let mut memo = Memo::default();
    let mut first = |ledger: &Ledger, pending: &[u64]| {
        let placement = |memory: &u64| PendingPlacement {
            slot: 1,
            uses: vec![(0, DeviceUse::of(Mib(*memory), Percent(0)))],
            instances: vec![],
            replicas: Replicas::default(),
        };
        let pending: Vec<_> = pending.iter().map(placement).collect();
        let query = NodeQuery {
            cluster: ledger.cluster(),
            demand: &requests(100),
            policies: &Policies::default(),
            pending: &pending,
            own_reservation: None,
            headroom: None,
        };
        best(&query, &mut memo, &["n0", "n1"], 1).unwrap()[0]
    };
    assert_eq!(first(&ledger, &[400]), "n1");
    assert_eq!(first(&ledger, &[450]), "n0", "other pending pods");
    assert_eq!(first(&ledger, &[200, 200]), "n1");
    assert_eq!(first(&ledger, &[]), "n1");
    ledger.release(&"taken-1".into());
    assert_eq!(first(&ledger, &[450]), "n1", "the node has changed");
    let policies = Policies::default();
    let reserved = ledger.reserve(
        &"p".into(),
        &"team".into(),
        &"n1".into(),
        &requests(500),
        &policies,
    );
    reserved.unwrap();
    assert_eq!(first(&ledger, &[450]), "n0");
}

/// Nodes `n0` and `n1` differ in names alone, the others in one property each.
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
        let published = NodePublication {
            inventory: Some(Arc::new(inventory(vec![gpu]))),
            ..NodePublication::default()
        };
        let name = format!("n{number}").into();
        ledger.publish(&name, Some(published));
    }
    let cluster = ledger.cluster();
    let kinds: BTreeSet<_> = (0..changes.len())
        .filter_map(|slot| cluster.kind(slot))
        .collect();
    assert_eq!(cluster.kind(0), cluster.kind(1));
    assert_eq!(kinds.len(), changes.len() - 1);
    let with = |rules| Demand {
        rules,
        ..demand(&[(Stage::App, Some(request(1, 500, 20)))])
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
    let (mut memo, policies) = (Memo::default(), Policies::default());
    for demand in rules.map(with) {
        let mut verdicts = memo.verdicts(cluster, &demand, &policies);
        for (slot, name, node) in cluster.iter() {
            let alone = NodeVerdict::on(node, &demand, &policies);
            assert_eq!(*verdicts.of(slot), alone, "{name}: {:?}", demand.rules);
        }
    }
}

#[test]
fn forgets_verdict_when_its_node_changes() {
    let mut ledger = ledger(&[0, 500]);
    let mut memo = Memo::default();
    let mut names = |ledger: &Ledger| {
        let query = NodeQuery {
            cluster: ledger.cluster(),
            demand: &requests(400),
            policies: &Policies::default(),
            pending: &[],
            own_reservation: None,
            headroom: None,
        };
        let fits = best(&query, &mut memo, &["n0", "n1"], 9).unwrap();
        fits.join(" ")
    };
    assert_eq!(names(&ledger), "n1 n0");
    ledger
        .reserve(
            &"p".into(),
            &"team".into(),
            &"n1".into(),
            &requests(200),
            &Policies::default(),
        )
        .unwrap();
    assert_eq!(names(&ledger), "n0");
    ledger.release(&"p".into());
    assert_eq!(names(&ledger), "n1 n0");
    ledger.publish(&"n0".into(), None);
    assert_eq!(names(&ledger), "n1");
}

#[test]
fn steers_pods_without_gpu_away_from_free_gpus() {
    let ledger = ledger(&[0, 1000, 500]);
    let ranks = cpu_only_ranks(
        ledger.cluster(),
        &Typical::default(),
        &["n0", "n1", "n2", "no-gpu"],
    );
    assert_eq!(ranks, [0, 4, 2, 10]);
}

#[test]
fn steers_pods_without_gpu_to_cpu_that_free_gpus_do_not_need() {
    let mut census = Census::default();
    let shape = PodShape {
        cpu: MilliCpu(8_000),
        count: 1,
        memory: Memory::Share(Percent(50)),
        cores: Percent(50),
    };
    census.add(shape, Mib(1));
    let mut ledger = Ledger::default();
    for (name, cpu) in [("much", 64_000), ("little", 32_000), ("enough", 48_000)] {
        let published = NodePublication {
            inventory: Some(std::sync::Arc::new(inventory(vec![gpu(0, 1000, 9)]))),
            allocatable: HostResources {
                cpu: MilliCpu(cpu),
                memory: Mib(1000),
            },
            ..NodePublication::default()
        };
        ledger.publish(&name.into(), Some(published));
    }
    let names = ["much", "little", "enough", "no-gpu"];
    let ranks = cpu_only_ranks(ledger.cluster(), &census.typical(), &names);
    assert_eq!(ranks, [9, 0, 4, 10]);
}

#[test]
fn reservation_admits_only_its_preemptor_until_allocated() {
    let mut ledger = ledger(&[600]);
    let (holder, other) = ("holder".into(), "other".into());
    let fits = |ledger: &Ledger, pod: &crate::PodUid| {
        let own = ledger.node_seen_by_preemptor(pod);
        let query = NodeQuery {
            cluster: ledger.cluster(),
            demand: &requests(400),
            policies: &Policies::default(),
            pending: &[],
            own_reservation: own.as_ref(),
            headroom: None,
        };
        let mut memo = Memo::default();
        best(&query, &mut memo, &["n0"], 1).is_ok()
    };
    let used = DeviceUse::of(Mib(400), Percent(0));
    let reservation = Reservation {
        node: "n0".into(),
        allocated: AllocatedUse::Known([("GPU-0".into(), used)].into()),
        replicas: requests(400).replicas(),
        purpose: Purpose::Preemption { recorded: true },
    };
    let version = ledger.cluster().version(0);
    ledger.put_reservation(&holder, reservation);
    assert_ne!(
        ledger.cluster().version(0),
        version,
        "a memo would not notice"
    );
    assert!(fits(&ledger, &holder) && !fits(&ledger, &other));
    let policies = Policies::default();
    let asked = requests(400);
    let mut reserve = |pod| {
        ledger
            .reserve(pod, &"team".into(), &"n0".into(), &asked, &policies)
            .is_ok()
    };
    assert!(!reserve(&other) && reserve(&holder));
    let device = |ledger: &Ledger| ledger.cluster().at(0).unwrap().devices[0].allocated;
    assert_eq!(device(&ledger).used.memory, Mib(1000), "counted once");
    ledger.cancel(&holder);
    assert_eq!(device(&ledger).used.memory, Mib(1000), "reserved again");
    ledger.drop_reservation(&holder);
    assert!(fits(&ledger, &other));
}

/// Nodes `n0` and `n1` with a device of 1000 and one of 4000 MiB, and a quota of
/// 1500 MiB, of which 400 are used elsewhere.
#[test]
fn charges_quota_for_the_device_the_node_would_give() {
    let mut ledger = ledger(&[0]);
    let large = NodePublication {
        inventory: Some(Arc::new(inventory(vec![gpu(0, 4000, 9)]))),
        ..NodePublication::default()
    };
    ledger.publish(&"n1".into(), Some(large));
    let limit = Limit {
        on: LimitedResource::Memory,
        key: "limits.nvidia.com/gpumem".into(),
        most: LimitValue::Number(1500),
    };
    let quota = Quota {
        name: "q".into(),
        limits: vec![limit],
    };
    ledger.set_quota(&"team".into(), "q", Some(quota));
    let allocated =
        AllocatedUse::Known([("GPU-x".into(), DeviceUse::of(Mib(400), Percent(0)))].into());
    ledger.confirm(
        &"x".into(),
        &"team".into(),
        &"elsewhere".into(),
        allocated,
        HostResources::default(),
    );
    let headroom = ledger.headroom("team");
    let mut memo = Memo::default();
    let mut answer = |headroom, percent| {
        let request = GpuRequest::of(1, Memory::Share(Percent(percent)), Percent(0));
        let query = NodeQuery {
            cluster: ledger.cluster(),
            demand: &demand(&[(Stage::App, Some(request))]),
            policies: &Policies::default(),
            pending: &[],
            own_reservation: None,
            headroom,
        };
        match best(&query, &mut memo, &["n0", "n1", "n2"], 9) {
            Ok(fits) => fits.join(" "),
            Err(refusal) => refusal_text(3, &refusal),
        }
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

#[test]
fn ignores_pending_placement_on_a_removed_device() {
    let placement = PendingPlacement {
        slot: 0,
        uses: vec![(1, DeviceUse::of(Mib(900), Percent(0)))],
        instances: vec![],
        replicas: Replicas::default(),
    };
    assert_eq!(filter(&ledger(&[0]), 500, &[placement], &["n0"], 9), "n0");
}

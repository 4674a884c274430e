//! How many GPUs are missing for pods, by tables.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::cluster::NodeSet;
use crate::inventory::Gpu;
use crate::node::{NodePublication, NodeState};
use crate::quota::Headroom;
use crate::scale_up::{MissingGpus, NodeType, Supply, UnschedulablePod, missing_gpus};
use crate::score::Policies;
use crate::tests::{app, gpu, memory_quota, published};
use crate::units::{HostResources, Mib, MilliCpu};
use crate::{Cluster, Demand, DeviceRules, Ledger, Preferences};

/// GPUs of 10,000 MiB, 8 on a node of 64 CPUs.
fn node_type(model: &str, gpus: u32) -> NodeType {
    NodeType {
        gpus,
        model: model.to_owned(),
        memory: Mib(10_000),
        replicas: 10,
        resource: "nvidia.com/gpu".to_owned(),
        host: HostResources {
            cpu: MilliCpu(64_000),
            memory: Mib(1 << 20),
        },
    }
}

fn share(count: u32, memory: u64, cpus: u64) -> Demand {
    Demand {
        host: HostResources {
            cpu: MilliCpu(cpus * 1000),
            memory: Mib(1),
        },
        ..app(count, memory, 0)
    }
}

/// Of two nodes.
static NONE: LazyLock<NodeSet> = LazyLock::new(|| nodes(2).set::<&str>(&[]));

/// A pod since which no node joined.
fn pod(demand: &Demand, group: usize) -> UnschedulablePod<'_> {
    UnschedulablePod {
        demand,
        priority: 0,
        group,
        offered: None,
        joined: &NONE,
    }
}

/// This many nodes with one GPU of 10,000 MiB and 8 CPUs.
fn nodes(count: usize) -> Cluster {
    let published = NodePublication {
        allocatable: HostResources {
            cpu: MilliCpu(8_000),
            memory: Mib(1 << 20),
        },
        ..published(vec![gpu(0, 10_000, 10)])
    };
    let mut cluster = Cluster::default();
    for number in 0..count {
        let state = NodeState::new(&published, &[], HostResources::default());
        cluster.put(&format!("n{number}").as_str().into(), Some(state));
    }
    cluster
}

fn missing_with(
    cluster: &Cluster,
    pods: &[UnschedulablePod<'_>],
    headrooms: HashMap<&str, Headroom>,
) -> Vec<MissingGpus> {
    let types = [node_type("NVIDIA A100", 8), node_type("NVIDIA H100", 8)];
    let supply = Supply {
        cluster,
        types: &types,
        groups: &[vec![0, 1], vec![1]],
        headrooms,
        policies: &Policies::default(),
    };
    missing_gpus(pods, supply)
}

/// The missing GPUs of each new node, by group and type.
fn missing(cluster: &Cluster, pods: &[UnschedulablePod<'_>]) -> Vec<(usize, usize, u32)> {
    missing_with(cluster, pods, HashMap::new())
        .iter()
        .map(|m| (m.group, m.node_type, m.gpus))
        .collect()
}

#[test]
fn counts_as_many_gpus_as_pending_pods_need() {
    let empty = Cluster::default();
    let third = share(1, 3_333, 1);
    let most = share(1, 6_000, 1);
    let two = share(2, 5_000, 1);
    let check = |pods: &[(&Demand, usize)], expected: &[(usize, usize, u32)]| {
        let pods: Vec<_> = pods.iter().map(|(d, group)| pod(d, *group)).collect();
        assert_eq!(missing(&empty, &pods), expected);
    };
    check(&[(&third, 0)], &[(0, 0, 1)]);
    check(&[(&third, 0); 100], &[(0, 0, 1); 34]);
    check(
        &[(&third, 0), (&most, 0), (&third, 0), (&most, 0)],
        &[(0, 0, 1); 2],
    );
    // A second pod finds room on the two GPUs of the first one.
    check(&[(&two, 0), (&two, 0), (&two, 0)], &[(0, 0, 2); 2]);
    // Groups share no new GPU, and the second one may not use the first type.
    check(&[(&third, 0), (&third, 1)], &[(0, 0, 1), (1, 1, 1)]);
    let too_many = share(9, 100, 1);
    check(&[(&too_many, 0)], &[]);
    let large = share(1, 10_001, 1);
    check(&[(&large, 0)], &[]);
    let preferences =
        Preferences::read(|key| (key == "aliquot.dev/use-gputype").then_some("NVIDIA H100"));
    let on_h100 = Demand {
        rules: preferences.unwrap().rules,
        ..share(1, 3_333, 1)
    };
    assert_ne!(on_h100.rules, DeviceRules::default());
    check(&[(&on_h100, 0)], &[(0, 1, 1)]);
    // No new node would have this GPU, so one after the other would be added.
    let preferences =
        Preferences::read(|key| (key == "aliquot.dev/use-gpuuuid").then_some("GPU-0"));
    let on_one = Demand {
        rules: preferences.unwrap().rules,
        ..share(1, 3_333, 1)
    };
    check(&[(&on_one, 0)], &[]);
}

#[test]
fn counts_cpu_of_pods_on_each_missing_gpu() {
    let tenth = share(1, 1_000, 20);
    let pods = vec![pod(&tenth, 0); 5];
    let missing = missing_with(&Cluster::default(), &pods, HashMap::new());
    // 64 CPUs of a node are enough for three.
    let of = |cpu| MissingGpus {
        group: 0,
        node_type: 0,
        gpus: 1,
        cpu,
        memory: cpu / 20_000,
    };
    assert_eq!(missing, [of(60_000), of(40_000)]);
}

#[test]
fn misses_nothing_that_offered_nodes_can_take() {
    let cluster = nodes(2);
    let half = share(1, 5_000, 1);
    let all = cluster.set(&["n0", "n1"]);
    let first = cluster.set(&["n0"]);
    let offered = |set, count| {
        vec![
            UnschedulablePod {
                offered: Some(set),
                ..pod(&half, 0)
            };
            count
        ]
    };
    assert_eq!(missing(&cluster, &offered(&all, 4)), []);
    assert_eq!(missing(&cluster, &offered(&all, 5)), [(0, 0, 1)]);
    assert_eq!(missing(&cluster, &offered(&first, 4)), [(0, 0, 1)]);
    // kube-scheduler ruled out both nodes by itself.
    assert_eq!(missing(&cluster, &[pod(&half, 0)]), [(0, 0, 1)]);
    let busy = share(1, 100, 9);
    let busy = UnschedulablePod {
        offered: Some(&all),
        ..pod(&busy, 0)
    };
    assert_eq!(missing(&cluster, &[busy]), [(0, 0, 1)]);
}

#[test]
fn counts_no_gpu_that_would_not_help_a_pod() {
    let cluster = nodes(2);
    let half = share(1, 5_000, 1);
    let (both, second) = (Cluster::default(), nodes(1));
    let (both, second) = (both.set::<&str>(&[]), second.set::<&str>(&[]));
    // Both nodes joined for it, and kube-scheduler offers neither.
    let helpless = UnschedulablePod {
        offered: Some(&NONE),
        joined: &both,
        ..pod(&half, 0)
    };
    assert_eq!(missing(&cluster, &[helpless]), []);
    let joined = UnschedulablePod {
        joined: &second,
        ..pod(&half, 0)
    };
    assert_eq!(missing(&cluster, &vec![joined; 2]), []);
}

/// One such node after the other was added for it.
#[test]
fn counts_no_gpu_where_an_unused_new_node_cannot_take_the_pod() {
    // Eight GPUs of one NUMA node, where new nodes have four of each.
    let bound = Demand {
        rules: DeviceRules {
            one_numa: true,
            ..DeviceRules::default()
        },
        ..share(8, 5_000, 1)
    };
    let halves = |model: &str| {
        let gpu = |index: u32| Gpu {
            model: model.to_owned(),
            numa: Some(index / 4),
            ..gpu(index, 10_000, 10)
        };
        let published = published((0..8).map(gpu).collect());
        NodeState::new(&published, &[], HostResources::default())
    };
    let mut cluster = Cluster::default();
    let since = cluster.set::<&str>(&[]);
    let waiting = [UnschedulablePod {
        joined: &since,
        ..pod(&bound, 0)
    }];
    assert_eq!(missing(&cluster, &waiting), [(0, 0, 8)]);
    cluster.put(&"a".into(), Some(halves("NVIDIA A100")));
    assert_eq!(missing(&cluster, &waiting), [(0, 1, 8)], "the next type");
    cluster.put(&"h".into(), Some(halves("NVIDIA H100")));
    assert_eq!(missing(&cluster, &waiting), []);
}

/// Some clouds name a new node as one that is gone.
#[test]
fn counts_no_gpu_where_a_node_returned() {
    let mut cluster = nodes(2);
    let second = (**cluster.node("n1").unwrap()).clone();
    cluster.put(&"n1".into(), None);
    let since = cluster.set::<&str>(&[]);
    let half = share(1, 5_000, 1);
    let waiting = UnschedulablePod {
        joined: &since,
        ..pod(&half, 0)
    };
    let waiting = vec![waiting; 2];
    assert_eq!(missing(&cluster, &waiting), [(0, 0, 1)]);
    cluster.put(&"n1".into(), Some(second));
    assert_eq!(missing(&cluster, &waiting), []);
}

#[test]
fn counts_no_gpu_for_pods_over_their_quota() {
    let mut ledger = Ledger::default();
    ledger.set_quota(&"d".into(), "q", Some(memory_quota(15_000)));
    let half = share(1, 5_000, 1);
    let pods = vec![pod(&half, 0); 9];
    let headrooms = HashMap::from([("d", ledger.headroom("d").unwrap())]);
    let missing = missing_with(&Cluster::default(), &pods, headrooms);
    assert_eq!(missing.len(), 2);
}

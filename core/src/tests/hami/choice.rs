//! HAMi 4.7: which of the devices that fit are chosen.

use std::collections::BTreeMap;

use super::*;
use crate::tests::request;

const FREE: &[(u64, u32)] = &[];
const POLICY: &str = "hami.io/gpu-scheduler-policy";
const BIND: Annotation<'_> = ("nvidia.com/numa-bind", "true");

#[test]
fn binpack_takes_fullest_device_and_spread_the_emptiest() {
    let used: &[&[(u64, u32)]] = &[&[(100, 10)], &[(500, 10)], FREE];
    let taken = |policy| requests(request(2, 100, 0), &[(POLICY, policy)]);
    check("4.7.7", &node(used), &taken("binpack"), "c0:1+0");
    check("4.7.8", &node(used), &taken("spread"), "c0:2+0");
    let ours = requests(
        request(1, 100, 0),
        &[
            ("aliquot.dev/gpu-scheduler-policy", "binpack"),
            (POLICY, "spread"),
        ],
    );
    check("4.7.7", &node(used), &ours, "c0:1");
}

#[test]
fn mutex_takes_idle_devices_only() {
    let taken = |count, memory| requests(request(count, memory, 0), &[(POLICY, "mutex")]);
    let used: &[&[(u64, u32)]] = &[&[(1, 0)], FREE, FREE];
    check("4.7.10", &node(used), &taken(2, 1), "c0:1+2");
    let why = "1 ExclusiveDeviceAllocateConflict, 1 AllocatedCardsInsufficientRequest";
    check("4.6.7", &node(used), &taken(3, 1), why);
    // Checked before memory.
    check(
        "4.6.7",
        &node(&used[..1]),
        &taken(1, 1000),
        "1 ExclusiveDeviceAllocateConflict",
    );
    // The containers of one pod do not share either, unless they run one after the other.
    let policy = [(POLICY, "mutex")];
    let two = |stage| {
        pod(
            &[(stage, request(1, 1, 0)), (Stage::App, request(1, 1, 0))],
            &policy,
        )
    };
    check("4.6.7", &node(&[FREE, FREE]), &two(Stage::App), "c0:0 c1:1");
    check(
        "4.6.7",
        &node(&[FREE, FREE]),
        &two(Stage::Init),
        "c0:0 c1:0",
    );
    check(
        "4.6.7",
        &node(&[FREE]),
        &two(Stage::App),
        "1 ExclusiveDeviceAllocateConflict",
    );
}

#[test]
fn policy_chain_compares_key_by_key() {
    let used: &[&[(u64, u32)]] = &[&[(400, 0)], FREE, &[(400, 0)], &[(100, 0)]];
    let taken = |policy, count| requests(request(count, 1, 0), &[(POLICY, policy)]);
    let split = halves(used, 2);
    check("4.7.11", &split, &taken("numa,binpack", 2), "c0:0+1");
    check("4.7.11", &split, &taken("numa,spread", 2), "c0:1+0");
    check("4.7.11", &split, &taken("binpack,numa", 2), "c0:0+2");
    check("4.7.11", &split, &taken("binpack,numa", 3), "c0:0+2+3");
    check("4.7.11", &split, &taken("numa", 1), "c0:1");
    check("4.7.11", &split, &taken("mutex,binpack", 1), "c0:1");
    // A NUMA node that can take all of them comes first.
    check("4.7.11", &halves(used, 1), &taken("numa", 2), "c0:1+3");
}

#[test]
fn numa_bind_keeps_a_container_on_one_numa_node() {
    let used: &[&[(u64, u32)]] = &[FREE, &[(100, 0)], &[(100, 0)], &[(100, 0)]];
    let two = |extra: &[Annotation<'_>]| requests(request(2, 1, 0), &[&[BIND], extra].concat());
    check("4.6.4", &halves(used, 1), &two(&[]), "c0:1+2");
    check("4.6.4", &halves(used, 2), &two(&[]), "c0:0+1");
    check(
        "4.7.9",
        &halves(used, 2),
        &two(&[(POLICY, "binpack")]),
        "c0:2+3",
    );
    check("4.6.4", &halves(&used[..2], 1), &two(&[]), "2 NumaNotFit");
    let why = "1 CardInsufficientMemory, 1 AllocatedCardsInsufficientRequest";
    let full: &[&[(u64, u32)]] = &[&[(1000, 0)], FREE];
    check("4.6.4", &halves(full, 1), &two(&[]), why);
    let free = requests(request(2, 1, 0), &[("nvidia.com/numa-bind", "0")]);
    check("4.6.21", &halves(&used[..2], 1), &free, "c0:0+1");
    let free = requests(request(2, 1, 0), &[("nvidia.com/numa-bind", "T")]);
    check("4.6.21", &halves(&used[..2], 1), &free, "2 NumaNotFit");
}

#[test]
fn binds_every_pod_where_kubelet_admits_one_numa_node() {
    let two = requests(request(2, 1, 0), &[]);
    for (policy, expected) in [
        ("single-numa-node", "c0:1+2"),
        ("restricted", "c0:1+2"),
        ("best-effort", "c0:0+1"),
        ("none", "c0:0+1"),
    ] {
        let mut inventory = devices(3, |place, device| device.numa = Some(u32::from(place > 0)));
        policy.clone_into(&mut inventory.topology_policy);
        check(policy, &fit::state(inventory, &[FREE; 3]), &two, expected);
    }
}

#[test]
fn topology_takes_closest_group_or_least_linked_device() {
    // A chain of links: 0 - 1 = 2 - 3, where = is twice as close.
    let linked = |place: usize, device: &mut Gpu| {
        let links = [(0, 1, 100), (1, 2, 200), (2, 3, 100)];
        let end = |a, b, score| (a == place).then(|| (format!("GPU-{b}").into(), score));
        let both = links
            .iter()
            .flat_map(|&(a, b, s)| [end(a, b, s), end(b, a, s)]);
        device.links = both.flatten().collect::<BTreeMap<_, _>>();
    };
    let taken = |count, policy| requests(request(count, 1, 0), &[(POLICY, policy)]);
    let four = node_of(&[FREE; 4], linked);
    check("4.7.12", &four, &taken(1, "topology-aware"), "c0:0");
    check("4.7.12", &four, &taken(2, "topology-aware"), "c0:1+2");
    check("4.7.12", &four, &taken(3, "topology"), "c0:0+1+2");
    check("4.7.12", &four, &taken(4, "topology"), "c0:0+1+2+3");
    let used: &[&[(u64, u32)]] = &[FREE, FREE, &[(1000, 0)], FREE];
    check(
        "4.7.12",
        &node_of(used, linked),
        &taken(2, "topology-aware"),
        "c0:0+1",
    );
    check(
        "4.7.12",
        &node_of(used, linked),
        &taken(1, "topology-aware"),
        "c0:3",
    );
    // Without scores all devices are equally close, and the keys decide.
    let used: &[&[(u64, u32)]] = &[FREE, &[(100, 0)], &[(500, 0)]];
    check(
        "4.7.12",
        &node(used),
        &taken(2, "topology-aware,binpack"),
        "c0:2+1",
    );
}

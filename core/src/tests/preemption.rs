//! Which pods are evicted: tables of small nodes, and what holds for any node.

use proptest::prelude::*;

use crate::demand::Requests;
use crate::node::NodePublication;
use crate::preemption::{
    CandidateNode, NoPlan, Occupant, OccupantState, PreemptionPlan, PreemptionQuery, fit_without,
    plan, victims,
};
use crate::score::Policies;
use crate::tests::{self, app, demand, gpu, request};
use crate::units::{Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse, DeviceUses};
use crate::{Demand, Replicas, Stage};

mod replicas;

/// A pod's name, priority, start, and memory and cores on each of its devices.
type PodRow = (&'static str, i32, i64, &'static [(u32, u64, u32)]);

fn published(devices: u32) -> NodePublication {
    tests::published((0..devices).map(|index| gpu(index, 1000, 9)).collect())
}

/// This many of the main resource.
fn replicas(count: usize) -> Replicas {
    let count = u32::try_from(count).unwrap();
    Replicas::from_iter([("nvidia.com/gpu".into(), count)])
}

/// A name that ends in `!` is of a terminating pod, in `#` of one that cannot be evicted,
/// in a digit of one that this budget protects.
fn occupant(&(name, priority, started, shares): &PodRow) -> Occupant {
    let uses: DeviceUses = shares
        .iter()
        .map(|&(device, memory, cores)| {
            let used = DeviceUse::new(Mib(memory), Percent(cores));
            (format!("GPU-{device}").as_str().into(), used)
        })
        .collect();
    let last = name.chars().last().unwrap();
    Occupant {
        uid: name.into(),
        replicas: replicas(shares.len()),
        allocated: AllocatedUse::Known(uses),
        priority,
        started,
        budgets: last.to_digit(10).map(|b| b as usize).into_iter().collect(),
        state: match last {
            '!' => OccupantState::Terminating,
            '#' => OccupantState::NotEvictable,
            _ => OccupantState::Running,
        },
    }
}

/// Nodes of two devices of 1000 MiB, a pod of priority 10, and budgets that allow
/// one eviction, two, and none.
fn check(nodes: &[(&str, &[PodRow])], demand: &Demand, expected: Result<(&str, &[&str]), NoPlan>) {
    let published = published(2);
    let nodes = nodes.iter().map(|(name, pods)| CandidateNode {
        name: (*name).into(),
        published: published.clone(),
        requested: Requests::default(),
        occupants: pods.iter().map(occupant).collect(),
    });
    let query = PreemptionQuery {
        demand,
        priority: 10,
        policies: &Policies::default(),
        budgets: &[1, 2, 0],
    };
    let expected = expected.map(|(node, victims)| PreemptionPlan {
        node: node.into(),
        victims: victims.iter().map(|&uid| uid.into()).collect(),
    });
    assert_eq!(plan(&query, nodes), expected);
}

#[test]
fn preempts_lowest_then_fewest_then_youngest() {
    let two_small = [
        ("a", 1, 0, &[(0, 500, 0)][..]),
        ("b", 1, 0, &[(0, 500, 0)]),
        ("c", 5, 0, &[(1, 1000, 0)]),
    ];
    check(
        &[("n", &two_small)],
        &app(1, 800, 0),
        Ok(("n", &["a", "b"])),
    );
    let low = ("low", 1, 0, &[(0, 900, 0)][..]);
    let high = ("high", 5, 9, &[(1, 900, 0)][..]);
    let old = ("old", 1, 3, &[(0, 900, 0)][..]);
    let young = ("young", 1, 7, &[(1, 900, 0)][..]);
    check(&[("n", &[low, high])], &app(1, 800, 0), Ok(("n", &["low"])));
    check(
        &[("n", &[old, young])],
        &app(1, 800, 0),
        Ok(("n", &["young"])),
    );
    check(
        &[
            ("n1", &two_small),
            ("n2", &[low, high]),
            ("n3", &[old, young]),
        ],
        &app(1, 800, 0),
        Ok(("n3", &["young"])),
    );
    check(
        &[("n", &[low, high])],
        &app(2, 800, 0),
        Ok(("n", &["low", "high"])),
    );
    // The same priority: the larger share goes, so that one is enough.
    let large = ("large", 1, 0, &[(0, 600, 0)][..]);
    let small = ("small", 1, 9, &[(0, 300, 0)][..]);
    let fixed = ("fixed#", 1, 0, &[(1, 900, 0)][..]);
    check(
        &[("n", &[large, small, fixed])],
        &app(1, 700, 0),
        Ok(("n", &["large"])),
    );
}

#[test]
fn preempts_nobody_in_vain_or_when_waiting_suffices() {
    let full = ("full", 1, 0, &[(0, 900, 0), (1, 900, 0)][..]);
    let equal = ("equal", 10, 0, &[(0, 900, 0), (1, 900, 0)][..]);
    let ending = ("ending!", 50, 0, &[(0, 900, 0)][..]);
    let fixed = ("fixed#", 1, 0, &[(0, 900, 0), (1, 900, 0)][..]);
    let shareless = ("shareless", 1, 0, &[][..]);
    let request = app(1, 800, 0);
    check(&[], &request, Err(NoPlan::NoNode));
    check(&[("n", &[])], &request, Err(NoPlan::Fits));
    check(
        &[("n", &[equal, shareless])],
        &request,
        Err(NoPlan::NoVictim),
    );
    check(&[("n", &[fixed])], &request, Err(NoPlan::NoVictim));
    check(&[("n", &[full])], &app(1, 1001, 0), Err(NoPlan::NotEnough));
    check(&[("n", &[full])], &app(3, 1, 0), Err(NoPlan::NotEnough));
    let other = ("other", 1, 0, &[(1, 900, 0)][..]);
    check(
        &[("n1", &[full]), ("n2", &[ending, other])],
        &request,
        Err(NoPlan::Terminating),
    );
    check(
        &[("n", &[ending, other])],
        &app(2, 800, 0),
        Ok(("n", &["other"])),
    );
}

#[test]
fn respects_disruption_budgets() {
    let request = app(2, 800, 0);
    let first = ("first-0", 1, 9, &[(0, 900, 0)][..]);
    let second = ("second-0", 1, 9, &[(1, 900, 0)][..]);
    let open = ("open", 5, 0, &[(1, 900, 0)][..]);
    let closed = ("closed-2", 1, 9, &[(0, 900, 0)][..]);
    check(&[("n", &[first, second])], &request, Err(NoPlan::Budgets));
    check(&[("n", &[closed, open])], &request, Err(NoPlan::Budgets));
    check(
        &[("n1", &[first, second]), ("n2", &[first, open])],
        &request,
        Ok(("n2", &["first-0", "open"])),
    );
    check(
        &[("n", &[closed, open])],
        &app(1, 800, 0),
        Ok(("n", &["open"])),
    );
    let pair = ("pair-1", 1, 9, &[(0, 900, 0)][..]);
    let twin = ("twin-1", 1, 9, &[(1, 900, 0)][..]);
    check(
        &[("n", &[pair, twin])],
        &request,
        Ok(("n", &["pair-1", "twin-1"])),
    );
    // One of two may be evicted: the more important one stays, and a third pod goes.
    let more = ("more-0", 5, 0, &[(0, 400, 0)][..]);
    let less = ("less-0", 1, 0, &[(0, 300, 0)][..]);
    let free = ("free", 7, 0, &[(0, 300, 0)][..]);
    let fixed = ("fixed#", 1, 0, &[(1, 900, 0)][..]);
    check(
        &[("n", &[more, less, free, fixed])],
        &app(1, 600, 0),
        Ok(("n", &["less-0", "free"])),
    );
}

#[test]
fn empties_one_whole_device_only() {
    let pods = [
        ("a", 1, 0, &[(0, 10, 0)][..]),
        ("b", 1, 0, &[(0, 10, 0)]),
        ("c", 1, 0, &[(1, 10, 0)]),
        ("d", 9, 0, &[(1, 10, 0), (0, 10, 0)]),
    ];
    check(&[("n", &pods)], &app(1, 10, 100), Ok(("n", &["c", "d"])));
}

#[test]
fn plans_idle_device_for_mutex_policy() {
    let idle = Demand {
        gpu_policy: "mutex".parse().ok(),
        ..app(1, 500, 0)
    };
    let large = ("large", 1, 0, &[(0, 900, 0)][..]);
    let small = ("small#", 1, 0, &[(0, 50, 0)][..]);
    let fixed = ("fixed#", 1, 0, &[(1, 950, 0)][..]);
    let other = ("other", 1, 0, &[(1, 10, 0)][..]);
    check(
        &[("n", &[large, small, fixed])],
        &idle,
        Err(NoPlan::NotEnough),
    );
    check(
        &[("n", &[large, small, other])],
        &idle,
        Ok(("n", &["other"])),
    );
}

prop_compose! {
    fn occupants()(pods in proptest::collection::vec((
        0i32..4, 0i64..4, proptest::collection::vec((0u32..3, 1u64..900, prop_oneof![Just(0u32), 0u32..=100]), 1..3),
        proptest::option::weighted(0.3, 0usize..2), 0u8..10,
    ), 0..9)) -> Vec<Occupant> {
        pods.into_iter().enumerate().map(|(number, (priority, started, shares, budget, state))| {
            let replicas = replicas(shares.len());
            let uses: DeviceUses = shares.into_iter().map(|(device, memory, cores)| {
                (format!("GPU-{device}").as_str().into(), DeviceUse::new(Mib(memory), Percent(cores)))
            }).collect();
            Occupant {
                uid: format!("p{number}").as_str().into(),
                allocated: AllocatedUse::Known(uses),
                replicas,
                priority,
                started,
                budgets: budget.into_iter().collect(),
                state: match state { 0 => OccupantState::Terminating, 1 => OccupantState::NotEvictable, _ => OccupantState::Running },
            }
        }).collect()
    }
}

fn demands() -> impl Strategy<Value = Demand> {
    let stage =
        prop_oneof![4 => Just(Stage::App), 1 => Just(Stage::Init), 1 => Just(Stage::Sidecar)];
    let request =
        (1u32..3, 1u64..900, 0u32..=100).prop_map(|(n, memory, cores)| request(n, memory, cores));
    let idle = proptest::bool::weighted(0.2);
    let containers = proptest::collection::vec((stage, request.prop_map(Some)), 1..3);
    (containers, idle).prop_map(|(containers, idle)| Demand {
        gpu_policy: idle.then(|| "mutex".parse().expect("a policy")),
        ..demand(&containers)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn evicts_nobody_who_could_stay(
        occupants in occupants(), demand in demands(), offered in proptest::option::weighted(0.5, 0usize..16),
    ) {
        let published = NodePublication { replicas: offered.map(replicas), ..published(3) };
        let node = CandidateNode { name: "n".into(), published, requested: Requests::default(), occupants };
        let policies = Policies::default();
        let allowed = [1, 2];
        let query = PreemptionQuery { demand: &demand, priority: 3, policies: &policies, budgets: &allowed };
        let low: Vec<&Occupant> = node.occupants.iter()
            .filter(|o| o.priority < 3 && o.state == OccupantState::Running).collect();
        let all: Vec<_> = low.iter().map(|o| o.uid.clone()).collect();
        match victims(&query, &node) {
            Ok(uids) => {
                prop_assert!(uids.iter().all(|uid| all.contains(uid)), "a pod that may not end: {:?}", uids);
                prop_assert!(fit_without(&query, &node, &uids).is_some(), "no room after {:?}", uids);
                for (budget, most) in allowed.into_iter().enumerate() {
                    let counted = low.iter().filter(|o| uids.contains(&o.uid) && o.budgets.contains(&budget));
                    prop_assert!(counted.count() <= most as usize, "beyond a budget: {:?}", uids);
                }
                // Where one of several containers goes depends on who stays.
                for stays in uids.iter().filter(|_| demand.containers.len() == 1) {
                    let others: Vec<_> = uids.iter().filter(|uid| *uid != stays).cloned().collect();
                    prop_assert!(fit_without(&query, &node, &others).is_none(), "{:?} could stay", stays);
                }
            }
            Err(NoPlan::Budgets) => prop_assert!(low.iter().any(|o| !o.budgets.is_empty())),
            Err(why) => {
                let expected = if low.is_empty() { NoPlan::NoVictim } else { NoPlan::NotEnough };
                prop_assert_eq!(why, expected);
                prop_assert!(fit_without(&query, &node, &all).is_none(), "enough room without them");
            }
        }
    }
}

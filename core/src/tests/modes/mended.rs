//! What went wrong with instances and NUMA nodes, each by its own test.

use super::*;
use crate::inventory::{Lingering, Scope};
use crate::ledger::Held;
use crate::preemption::{self, Node, Occupant, Question, Standing};
use crate::top::{self, NodeTop};
use crate::usage::Use;

/// On this NUMA node.
fn at(numa: u32, card: Gpu) -> Gpu {
    Gpu {
        numa: Some(numa),
        ..card
    }
}

fn aligned(scope: Scope, gpus: Vec<Gpu>) -> Inventory {
    Inventory {
        topology_policy: "single-numa-node".to_owned(),
        topology_scope: scope,
        ..inventory(gpus)
    }
}

const SMALL: (&str, u32) = ("nvidia.com/mig-1g.5gb", 1);
const LARGE: (&str, u32) = ("nvidia.com/mig-3g.20gb", 1);

#[test]
fn one_numa_node_was_judged_for_each_resource_of_a_container_alone() {
    // The small instance alone would go to the first card.
    let cards = || {
        vec![
            at(0, part(0, "1g.5gb", 6)),
            at(1, part(1, "1g.5gb", 6)),
            at(1, part(1, "3g.20gb", 0)),
        ]
    };
    let both = || app(&[SMALL, LARGE]);
    let together = "c0 MIG-1-6:19968/100+MIG-1-0:19968/100";
    let container = |cards| aligned(Scope::Container, cards);
    check_on(container(cards()), &[(both(), together)]);
    let apart = vec![cards().remove(0), cards().remove(2)];
    check_on(
        container(apart.clone()),
        &[(both(), "1 CardMigProfileMismatch, 1 NumaNotFit")],
    );
    check(apart, &[(both(), "c0 MIG-0-6:19968/100+MIG-1-0:19968/100")]);
    let mixed = vec![at(0, part(0, "1g.5gb", 6)), at(1, cut(1, &a100(), vec![]))];
    let made = "c0 GPU-1/1g.5gb@6:5120/14+GPU-1/3g.20gb@0:20480/42";
    check_on(container(mixed), &[(both(), made)]);
    // A pod that wishes so itself.
    let wish = ("aliquot.dev/numa-bind", "true");
    check(cards(), &[(wishing(&[SMALL, LARGE], wish), together)]);
}

#[test]
fn containers_of_one_pod_were_spread_over_numa_nodes_where_the_kubelet_aligns_pods() {
    let cards = || {
        vec![
            at(0, shared(0, Mode::Exclusive, 1, GPU)),
            at(1, shared(1, Mode::Exclusive, 1, GPU)),
            at(1, shared(2, Mode::Exclusive, 1, GPU)),
        ]
    };
    let two = || pod(&[(Stage::App, ONE), (Stage::App, ONE)], &[]);
    check_on(
        aligned(Scope::Pod, cards()),
        &[(two(), "c0 GPU-1:40000/100, c1 GPU-2:40000/100")],
    );
    check_on(
        aligned(Scope::Container, cards()),
        &[(two(), "c0 GPU-0:40000/100, c1 GPU-1:40000/100")],
    );
    let mut apart = cards();
    apart.pop();
    check_on(
        aligned(Scope::Pod, apart),
        &[(two(), "1 ExclusiveDeviceAllocateConflict, 1 NumaNotFit")],
    );
}

#[test]
fn instances_that_are_there_on_two_numa_nodes_hid_those_that_could_be_made_on_one() {
    let cards = vec![
        at(0, part(0, "1g.5gb", 6)),
        at(1, part(1, "1g.5gb", 6)),
        at(1, cut(2, &a100(), vec![])),
    ];
    let two = app(&[("nvidia.com/mig-1g.5gb", 2)]);
    check_on(
        aligned(Scope::Container, cards.clone()),
        &[(two.clone(), "c0 MIG-1-6:19968/100+GPU-2/1g.5gb@6:5120/14")],
    );
    let full = [cards[..2].to_vec(), vec![at(2, cards[2].clone())]].concat();
    let big = instances(&["7g.40gb"]);
    check_on(
        aligned(Scope::Container, full),
        &[
            (big, "c0 GPU-2/7g.40gb@0:40960/100"),
            (two, "1 CardInsufficientMemory, 2 NumaNotFit"),
        ],
    );
}

#[test]
fn a_card_that_is_not_to_be_used_gave_its_instances_all_the_same() {
    let made = Made {
        profile: "1g.5gb".to_owned(),
        start: 6,
        uuid: "MIG-x".into(),
        gi: 9,
        ci: 0,
    };
    let cards = || vec![part(0, "1g.5gb", 6), cut(1, &a100(), vec![made.clone()])];
    let not = |uuid| wishing(&[SMALL], ("nvidia.com/nouse-gpuuuid", uuid));
    let only = |uuid| wishing(&[SMALL], ("nvidia.com/use-gpuuuid", uuid));
    check(cards(), &[(not("GPU-0"), "c0 GPU-1/1g.5gb@6:5120/14")]);
    check(cards(), &[(not("GPU-0,GPU-1"), "2 CardUuidMismatch")]);
    check(
        cards(),
        &[(not("MIG-0-6,MIG-x"), "c0 GPU-1/1g.5gb@5:5120/14")],
    );
    check(cards(), &[(only("GPU-0"), "c0 MIG-0-6:19968/100")]);
    check(
        cards(),
        &[
            (only("MIG-x"), "c0 GPU-1/1g.5gb@6:5120/14"),
            (only("MIG-x"), "1 CardUuidMismatch, 1 CardMigNoPlacement"),
        ],
    );
}

#[test]
fn who_held_something_that_is_no_instance_was_left_running_by_a_plan_for_its_card() {
    let occupant = |(name, unit): &(&str, &str)| Occupant {
        uid: (*name).into(),
        held: Held::Uses([((*unit).into(), Use::of(Mib(1), Percent(1)))].into()),
        seats: crate::Seats::default(),
        priority: 0,
        started: 0,
        budgets: vec![],
        standing: Standing::Runs,
    };
    let check = |held: &[(&str, &str)], expected: &[&str]| {
        let (demand, policies) = (instances(&["1g.5gb"]), Policies::default());
        let question = Question {
            demand: &demand,
            priority: 1,
            policies: &policies,
            budgets: &[],
        };
        let node = Node {
            name: "n".into(),
            published: Published {
                inventory: Some(Arc::new(inventory(vec![cut(0, &a100(), vec![])]))),
                ..Published::default()
            },
            requested: crate::Requests::default(),
            occupants: held.iter().map(occupant).collect(),
        };
        let plan = preemption::plan(&question, [node]);
        let victims = plan.map(|plan| plan.victims);
        let expected: Vec<crate::PodUid> = expected.iter().map(|uid| (*uid).into()).collect();
        assert_eq!(victims, Ok(expected));
    };
    check(
        &[("a", "GPU-0/9g.9gb@0"), ("b", "GPU-0/7g.40gb@0")],
        &["a", "b"],
    );
    check(&[("a", "GPU-0"), ("b", "GPU-0/1g.5gb@6")], &["a"]);
}

#[test]
fn an_instance_that_outlived_its_pod_was_nothing_in_top() {
    let mut made = inventory(vec![cut(0, &a100(), vec![])]);
    made.lingering.push(Lingering {
        pod: "gone".into(),
        gpu: "GPU-0/2g.10gb@4".into(),
        seats: 1,
        memory: Mib(10_240),
        cores: Percent(28),
    });
    let published = Published {
        inventory: Some(Arc::new(made)),
        ..Published::default()
    };
    let node = crate::NodeState::of(&published, &[], crate::Compute::default());
    let top = NodeTop::of(&"n".into(), &node, Percent(0)).expect("an inventory");
    let expected = top::Amount {
        seats: 1,
        memory: Mib(10_240),
        cores: Percent(28),
    };
    assert_eq!(
        (top.gpus[0].lingering, top.gpus[0].used),
        (expected, expected)
    );
}

#[test]
fn a_share_that_outlived_its_pod_lost_its_other_seats() {
    let mut made = inventory(vec![shared(0, Mode::Timeslice, 4, SHARED)]);
    made.lingering.push(Lingering {
        pod: "gone".into(),
        gpu: "GPU-0".into(),
        seats: 3,
        memory: Mib(0),
        cores: Percent(0),
    });
    let text = made.encode().expect("encoded");
    assert!(text.contains("\"cores\":0,\"seats\":3"), "{text}");
    let one = || app(&[(SHARED, 1)]);
    check_on(
        made,
        &[
            (one(), "c0 GPU-0:0/0"),
            (one(), "1 CardTimeSlicingExhausted"),
        ],
    );
}

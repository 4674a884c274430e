//! Who has to end: tables of small nodes, and the search against brute force.

use std::sync::Arc;

use proptest::prelude::*;

use crate::fit::Policies;
use crate::ledger::Held;
use crate::node::{Published, Requests};
use crate::preemption::{NoPlan, Node, Occupant, Plan, Question, Standing, plan, room, victims};
use crate::tests::{ask, demand, gpu, inventory};
use crate::units::{Mib, Percent};
use crate::usage::{Use, Uses};
use crate::{Demand, PodUid, Seats, Stage};

mod seats;

/// A pod's name, priority, start, and memory and cores on each card it is on.
type Line = (&'static str, i32, i64, &'static [(u32, u64, u32)]);

fn published(cards: u32) -> Published {
    let gpus = (0..cards).map(|index| gpu(index, 1000, 9)).collect();
    Published {
        inventory: Some(Arc::new(inventory(gpus))),
        ..Published::default()
    }
}

/// So many of the usual resource.
fn seats(count: usize) -> Seats {
    let count = u32::try_from(count).unwrap();
    Seats::from_iter([("nvidia.com/gpu".into(), count)])
}

/// A name that ends in `!` is of a pod that is ending, in `#` of a fixed one, in
/// a digit of one that this budget protects.
fn occupant(&(name, priority, started, shares): &Line) -> Occupant {
    let uses: Uses = shares
        .iter()
        .map(|&(card, memory, cores)| {
            let used = Use::of(Mib(memory), Percent(cores));
            (format!("GPU-{card}").as_str().into(), used)
        })
        .collect();
    let last = name.chars().last().unwrap();
    Occupant {
        uid: name.into(),
        seats: seats(shares.len()),
        held: Held::Uses(uses),
        priority,
        started,
        budgets: last.to_digit(10).map(|b| b as usize).into_iter().collect(),
        standing: match last {
            '!' => Standing::Ending,
            '#' => Standing::Fixed,
            _ => Standing::Runs,
        },
    }
}

/// Nodes of two cards of 1000 MiB, a pod of priority 10, and budgets that allow
/// one eviction, two, and none.
fn check(nodes: &[(&str, &[Line])], demand: &Demand, expected: Result<(&str, &[&str]), NoPlan>) {
    let published = published(2);
    let nodes = nodes.iter().map(|(name, pods)| Node {
        name: (*name).into(),
        published: published.clone(),
        requested: Requests::default(),
        occupants: pods.iter().map(occupant).collect(),
    });
    let question = Question {
        demand,
        priority: 10,
        policies: &Policies::default(),
        budgets: &[1, 2, 0],
    };
    let expected = expected.map(|(node, victims)| Plan {
        node: node.into(),
        victims: victims.iter().map(|&uid| uid.into()).collect(),
    });
    assert_eq!(plan(&question, nodes), expected);
}

fn one(count: u32, memory: u64, cores: u32) -> Demand {
    demand(&[(Stage::App, Some(ask(count, memory, cores)))])
}

#[test]
fn the_fewest_then_the_lowest_then_the_youngest_end() {
    let two_small = [
        ("a", 1, 0, &[(0, 500, 0)][..]),
        ("b", 1, 0, &[(0, 500, 0)]),
        ("c", 5, 0, &[(1, 1000, 0)]),
    ];
    check(&[("n", &two_small)], &one(1, 800, 0), Ok(("n", &["c"])));
    let low = ("low", 1, 0, &[(0, 900, 0)][..]);
    let high = ("high", 5, 9, &[(1, 900, 0)][..]);
    let old = ("old", 1, 3, &[(0, 900, 0)][..]);
    let young = ("young", 1, 7, &[(1, 900, 0)][..]);
    check(&[("n", &[low, high])], &one(1, 800, 0), Ok(("n", &["low"])));
    check(
        &[("n", &[old, young])],
        &one(1, 800, 0),
        Ok(("n", &["young"])),
    );
    check(
        &[
            ("n1", &two_small),
            ("n2", &[low, high]),
            ("n3", &[old, young]),
        ],
        &one(1, 800, 0),
        Ok(("n3", &["young"])),
    );
    check(
        &[("n", &[low, high])],
        &one(2, 800, 0),
        Ok(("n", &["low", "high"])),
    );
}

#[test]
fn a_full_pair_of_cards_loses_only_what_sixty_percent_of_one_needs() {
    let each: Vec<Line> = (0..20)
        .map(|n| {
            (
                "x",
                n,
                0,
                if n % 2 == 0 {
                    &[(0, 100, 5)][..]
                } else {
                    &[(1, 100, 5)]
                },
            )
        })
        .collect();
    let names: Vec<String> = (0..20)
        .map(|n| format!("p{}", char::from(b'a' + n)))
        .collect();
    let occupants = each.iter().zip(&names).map(|(line, name)| Occupant {
        uid: name.as_str().into(),
        ..occupant(line)
    });
    let published = published(2);
    let node = Node {
        name: "n".into(),
        published,
        requested: Requests::default(),
        occupants: occupants.collect(),
    };
    let demand = one(1, 600, 0);
    let question = Question {
        demand: &demand,
        priority: 100,
        policies: &Policies::default(),
        budgets: &[],
    };
    let found = victims(&question, &node).unwrap();
    let found: Vec<_> = found.iter().map(PodUid::as_str).collect();
    assert_eq!(found, ["pa", "pc", "pe", "pg", "pi", "pk"]);
}

#[test]
fn nobody_ends_in_vain_or_when_waiting_is_enough() {
    let full = ("full", 1, 0, &[(0, 900, 0), (1, 900, 0)][..]);
    let equal = ("equal", 10, 0, &[(0, 900, 0), (1, 900, 0)][..]);
    let ending = ("ending!", 50, 0, &[(0, 900, 0)][..]);
    let fixed = ("fixed#", 1, 0, &[(0, 900, 0), (1, 900, 0)][..]);
    let shareless = ("shareless", 1, 0, &[][..]);
    let ask = one(1, 800, 0);
    check(&[], &ask, Err(NoPlan::NoNode));
    check(&[("n", &[])], &ask, Err(NoPlan::Fits));
    check(&[("n", &[equal, shareless])], &ask, Err(NoPlan::NoVictim));
    check(&[("n", &[fixed])], &ask, Err(NoPlan::NoVictim));
    check(&[("n", &[full])], &one(1, 1001, 0), Err(NoPlan::NotEnough));
    check(&[("n", &[full])], &one(3, 1, 0), Err(NoPlan::NotEnough));
    let other = ("other", 1, 0, &[(1, 900, 0)][..]);
    check(
        &[("n1", &[full]), ("n2", &[ending, other])],
        &ask,
        Err(NoPlan::Ending),
    );
    check(
        &[("n", &[ending, other])],
        &one(2, 800, 0),
        Ok(("n", &["other"])),
    );
}

#[test]
fn no_more_of_a_budget_end_than_it_allows() {
    let ask = one(2, 800, 0);
    let first = ("first-0", 1, 9, &[(0, 900, 0)][..]);
    let second = ("second-0", 1, 9, &[(1, 900, 0)][..]);
    let open = ("open", 5, 0, &[(1, 900, 0)][..]);
    let closed = ("closed-2", 1, 9, &[(0, 900, 0)][..]);
    check(&[("n", &[first, second])], &ask, Err(NoPlan::Budgets));
    check(&[("n", &[closed, open])], &ask, Err(NoPlan::Budgets));
    check(
        &[("n1", &[first, second]), ("n2", &[first, open])],
        &ask,
        Ok(("n2", &["first-0", "open"])),
    );
    check(
        &[("n", &[closed, open])],
        &one(1, 800, 0),
        Ok(("n", &["open"])),
    );
    let pair = ("pair-1", 1, 9, &[(0, 900, 0)][..]);
    let twin = ("twin-1", 1, 9, &[(1, 900, 0)][..]);
    check(
        &[("n", &[pair, twin])],
        &ask,
        Ok(("n", &["pair-1", "twin-1"])),
    );
}

#[test]
fn a_whole_card_is_emptied_and_only_that() {
    let pods = [
        ("a", 1, 0, &[(0, 10, 0)][..]),
        ("b", 1, 0, &[(0, 10, 0)]),
        ("c", 1, 0, &[(1, 10, 0)]),
        ("d", 9, 0, &[(1, 10, 0), (0, 10, 0)]),
    ];
    check(&[("n", &pods)], &one(1, 10, 100), Ok(("n", &["c", "d"])));
}

#[test]
fn a_pod_that_wants_an_idle_card_was_planned_onto_a_shared_one() {
    let idle = Demand {
        gpu_policy: "mutex".parse().ok(),
        ..one(1, 500, 0)
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
        pods.into_iter().enumerate().map(|(number, (priority, started, shares, budget, standing))| {
            let seats = seats(shares.len());
            let uses: Uses = shares.into_iter().map(|(card, memory, cores)| {
                (format!("GPU-{card}").as_str().into(), Use::of(Mib(memory), Percent(cores)))
            }).collect();
            Occupant {
                uid: format!("p{number}").as_str().into(),
                held: Held::Uses(uses),
                seats,
                priority,
                started,
                budgets: budget.into_iter().collect(),
                standing: match standing { 0 => Standing::Ending, 1 => Standing::Fixed, _ => Standing::Runs },
            }
        }).collect()
    }
}

fn demands() -> impl Strategy<Value = Demand> {
    let stage =
        prop_oneof![4 => Just(Stage::App), 1 => Just(Stage::Init), 1 => Just(Stage::Sidecar)];
    let ask = (1u32..3, 1u64..900, 0u32..=100).prop_map(|(n, memory, cores)| ask(n, memory, cores));
    let idle = proptest::bool::weighted(0.2);
    let containers = proptest::collection::vec((stage, ask.prop_map(Some)), 1..3);
    (containers, idle).prop_map(|(containers, idle)| Demand {
        gpu_policy: idle.then(|| "mutex".parse().expect("a policy")),
        ..demand(&containers)
    })
}

/// What decides between two sets: their size, priorities and ages.
fn cost(set: &[&Occupant]) -> (usize, Vec<i32>, Vec<i64>) {
    let mut priorities: Vec<_> = set.iter().map(|o| o.priority).collect();
    let mut ages: Vec<_> = set.iter().map(|o| -o.started).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    ages.sort_unstable_by(|a, b| b.cmp(a));
    (set.len(), priorities, ages)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_set_is_better_than_the_one_that_is_found(
        occupants in occupants(), demand in demands(), offered in proptest::option::weighted(0.5, 0usize..16),
    ) {
        let published = Published { seats: offered.map(seats), ..published(3) };
        let node = Node { name: "n".into(), published, requested: Requests::default(), occupants };
        let policies = Policies::default();
        let allowed = [1, 2];
        let question = Question { demand: &demand, priority: 3, policies: &policies, budgets: &allowed };
        let low: Vec<&Occupant> = node.occupants.iter()
            .filter(|o| o.priority < 3 && o.standing == Standing::Runs).collect();
        let sets = (0u32..1 << low.len()).map(|bits| {
            let chosen = low.iter().enumerate().filter(|(place, _)| bits & (1 << place) != 0);
            chosen.map(|(_, o)| *o).collect::<Vec<_>>()
        });
        let least = sets.filter(|set| {
            let gone: Vec<_> = set.iter().map(|o| o.uid.clone()).collect();
            let within = (0..2).all(|budget| {
                set.iter().filter(|o| o.budgets.contains(&budget)).count() <= allowed[budget] as usize
            });
            within && room(&question, &node, &gone).is_some()
        }).map(|set| cost(&set)).min();
        let found = victims(&question, &node);
        let found = found.ok().map(|uids| {
            let set: Vec<_> = low.iter().copied().filter(|o| uids.contains(&o.uid)).collect();
            assert_eq!(set.len(), uids.len(), "a pod that may not end: {uids:?}");
            assert!(room(&question, &node, &uids).is_some(), "no room after {uids:?}");
            cost(&set)
        });
        prop_assert_eq!(found, least);
    }
}

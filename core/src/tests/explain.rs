//! What is explained is what was decided, for random nodes and pods.

use std::sync::Arc;

use proptest::prelude::*;

use crate::explain::{self, FITS, NOT_ASKED, NodeAnswer, TAKEN};
use crate::fit::{Policies, fit};
use crate::inventory::{Health, Inventory, Lingering, Scope};
use crate::ledger::Held;
use crate::node::{Compute, NodeState, Published};
use crate::reason::{Reason, Refusal};
use crate::tests::{ask, demand, gpu, inventory};
use crate::top::{self, NodeTop};
use crate::units::{Mib, Percent};
use crate::usage::{Use, Uses};
use crate::{Demand, PodUid, Stage};

/// Reasons of a node as a whole; the others are of cards.
const OF_NODES: [Reason; 4] = [
    Reason::NodeNotRegistered,
    Reason::NodeInsufficientDevice,
    Reason::AllocatedCardsInsufficientRequest,
    Reason::NodeAllocationUnreadable,
];

fn state(inventory: Inventory, shares: &[(u32, u64, u32)], unreadable: bool) -> NodeState {
    let mut pods: Vec<(PodUid, Held)> = Vec::new();
    for (number, &(card, memory, cores)) in shares.iter().enumerate() {
        let used = Use::of(Mib(memory), Percent(cores));
        let held = Uses::from([(format!("GPU-{card}").into(), used)]);
        pods.push((format!("p{number}").into(), Held::Uses(held)));
    }
    if unreadable {
        pods.push(("spoilt".into(), Held::Unreadable));
    }
    let held: Vec<_> = pods.iter().map(|(pod, held)| (pod, held)).collect();
    let published = Published {
        inventory: Some(Arc::new(inventory)),
        cordoned: vec!["GPU-3".into()],
        ..Published::default()
    };
    NodeState::of(&published, &held, Compute::default())
}

prop_compose! {
    fn nodes()(
        cards in proptest::collection::vec((200u64..1500, 1u32..5, 0u8..8), 1..5),
        shares in proptest::collection::vec((0u32..4, 1u64..600, 0u32..=100), 0..6),
        unreadable in proptest::bool::weighted(0.05),
        aligned in 0u8..4,
    ) -> NodeState {
        let mut made = inventory(vec![]);
        if aligned > 1 {
            made.topology_policy = "single-numa-node".to_owned();
        }
        if aligned > 2 {
            made.topology_scope = Scope::Pod;
        }
        for (index, (memory, seats, kind)) in (0..).zip(cards) {
            let mut gpu = gpu(index, memory, seats);
            gpu.numa = Some(index % 2);
            match kind {
                0 => gpu.health = Health::Sick("xid 79".to_owned()),
                1 => gpu.resource = "nvidia.com/other".to_owned(),
                2 => made.lingering.push(Lingering {
                    pod: "gone".into(),
                    gpu: gpu.uuid.clone(),
                    seats: 1,
                    memory: Mib(100),
                    cores: Percent(10),
                }),
                _ => {}
            }
            made.gpus.push(gpu);
        }
        state(made, &shares, unreadable)
    }
}

fn demands() -> impl Strategy<Value = Demand> {
    let stage = prop_oneof![Just(Stage::App), Just(Stage::Init), Just(Stage::Sidecar)];
    let cores = prop_oneof![Just(0u32), 0u32..=100, Just(100u32)];
    let ask = (1u32..4, 1u64..700, cores).prop_map(|(n, memory, cores)| ask(n, memory, cores));
    proptest::collection::vec((stage, proptest::option::weighted(0.8, ask)), 1..4)
        .prop_map(|containers| demand(&containers))
}

proptest! {
    #[test]
    fn the_cards_are_refused_for_the_reasons_that_fit_counts(
        node in nodes(), demand in demands(),
    ) {
        let policies = Policies::default();
        let decided = fit(&node, &demand, &policies);
        let (answer, _) = NodeAnswer::of(&"n".into(), &node, &demand, &policies, true, None, None);
        prop_assert_eq!(&explain::explain(&node, &demand, &policies).outcome, &decided);
        let found = |text: &str| answer.gpus.iter().filter(|gpu| gpu.answer == text).count();
        match &decided {
            Ok(fit) => {
                prop_assert!(answer.fits && answer.why.is_empty());
                prop_assert_eq!(found(TAKEN), fit.uses.len());
            }
            Err(refusal) => {
                prop_assert_eq!(&answer.why, &refusal.to_string());
                prop_assert_eq!(found(TAKEN), 0);
                let of_cards = |refusal: &Refusal| {
                    let counts = refusal.counts();
                    counts.filter(|(reason, _)| !OF_NODES.contains(reason)).collect::<Vec<_>>()
                };
                let mut explained = Refusal::default();
                for reason in Reason::ALL {
                    (0..found(reason.name())).for_each(|_| explained.add(reason));
                }
                prop_assert_eq!(of_cards(&explained), of_cards(refusal));
                // Some fit only where fit says that they are too few.
                let few = refusal.count(Reason::AllocatedCardsInsufficientRequest) > 0;
                prop_assert_eq!(found(FITS) > 0, few);
            }
        }
        let judged = answer.gpus.iter().filter(|gpu| gpu.needs.is_some()).count();
        prop_assert_eq!(found(NOT_ASKED), node.cards.len() - judged);
    }

    #[test]
    fn a_card_fits_exactly_if_it_would_alone(node in nodes(), memory in 1u64..700, cores in 0u32..=100) {
        let policies = Policies::default();
        let demand = demand(&[(Stage::App, Some(ask(1, memory, cores)))]);
        let (answer, _) = NodeAnswer::of(&"n".into(), &node, &demand, &policies, true, None, None);
        for (place, gpu) in answer.gpus.iter().enumerate() {
            let alone = fit(&only(&node, place), &demand, &policies).is_ok();
            prop_assert_eq!([TAKEN, FITS].contains(&gpu.answer.as_str()), alone, "{:?}", gpu);
        }
    }

    #[test]
    fn the_largest_share_fits_and_no_larger_one(node in nodes(), cores in 0u32..=100) {
        let policies = Policies::default();
        let top = NodeTop::of(&"n".into(), &node, Percent(cores)).unwrap();
        for (place, line) in top.gpus.iter().enumerate() {
            let mut card = only(&node, place);
            // What the pod's resource is called is its own affair.
            card.resources = vec!["nvidia.com/gpu".into()];
            card.cards[0].resource = 0;
            let most = |cores| {
                let fits = |memory| {
                    let demand = demand(&[(Stage::App, Some(ask(1, memory, cores)))]);
                    fit(&card, &demand, &policies).is_ok()
                };
                // The largest of 1 to 4096 that fits, by bisection.
                let (mut low, mut high) = (0u64, 4096);
                while low < high {
                    let middle = (low + high).div_ceil(2);
                    if fits(middle) { low = middle } else { high = middle - 1 }
                }
                (low > 0).then_some(Mib(low))
            };
            prop_assert_eq!(line.largest, most(0));
            prop_assert_eq!(line.largest_with_default_cores, most(cores));
        }
    }
}

/// The node with one of its cards.
fn only(node: &NodeState, place: usize) -> NodeState {
    NodeState {
        cards: vec![node.cards[place]],
        ..node.clone()
    }
}

#[test]
fn a_node_that_is_full_with_those_about_to_come_is_crowded() {
    let node = state(inventory(vec![gpu(0, 1000, 4)]), &[(0, 300, 0)], false);
    let demand = demand(&[(Stage::App, Some(ask(1, 500, 10)))]);
    let check = |coming: u64, expected: bool| {
        let uses = [(0, Use::of(Mib(coming), Percent(10)))];
        let crowd = node.with(&uses, &[], &crate::Seats::default());
        let policies = Policies::default();
        let name = "n".into();
        let (answer, _) =
            NodeAnswer::of(&name, &node, &demand, &policies, false, Some(&crowd), None);
        assert_eq!((answer.fits, answer.crowded), (true, expected), "{coming}");
    };
    check(200, false);
    check(201, true);
}

#[test]
fn what_is_left_is_what_was_not_promised_and_nothing_of_a_closed_card() {
    let mut made = inventory(vec![gpu(0, 1000, 4), gpu(3, 1000, 4)]);
    made.lingering.push(Lingering {
        pod: "gone".into(),
        gpu: "GPU-0".into(),
        seats: 2,
        memory: Mib(100),
        cores: Percent(10),
    });
    let node = state(made, &[(0, 300, 20)], false);
    let top = NodeTop::of(&"n".into(), &node, Percent(80)).unwrap();
    let amount = |seats, memory, cores| top::Amount {
        seats,
        memory: Mib(memory),
        cores: Percent(cores),
    };
    let [open, closed] = top.gpus.as_slice() else {
        panic!("{top:?}");
    };
    assert_eq!(open.used, amount(3, 400, 30));
    assert_eq!(open.left, amount(1, 600, 70));
    assert_eq!(open.lingering, amount(2, 100, 10));
    assert_eq!(
        (open.largest, open.largest_with_default_cores),
        (Some(Mib(600)), None)
    );
    assert_eq!(closed.closed.as_deref(), Some("CardCordoned"));
    assert_eq!((closed.left, closed.largest), (amount(0, 0, 0), None));
}

#[test]
fn a_lingering_share_of_two_seats_and_one_of_an_instance_were_counted_short() {
    let mut made = inventory(vec![gpu(0, 1000, 4)]);
    for (gpu, seats) in [("GPU-0", 2), ("GPU-1/1g.5gb@6", 1)] {
        made.lingering.push(Lingering {
            pod: "gone".into(),
            gpu: gpu.into(),
            memory: Mib(100),
            cores: Percent(10),
            seats,
        });
    }
    let seats = |gpu: &str| top::lingering(&made, &gpu.into()).seats;
    assert_eq!((seats("GPU-0"), seats("GPU-1"), seats("GPU-2")), (2, 1, 0));
    let node = state(made, &[], false);
    assert_eq!(node.cards[0].sums.used.seats, 2);
}

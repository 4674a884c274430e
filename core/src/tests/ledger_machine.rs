//! The books under random operations, against a model that keeps a plain list.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use crate::fit::Policies;
use crate::ledger::{Held, Hold, Ledger, NotReserved};
use crate::node::Published;
use crate::quota::Most;
use crate::reason::Reason;
use crate::tests::{gpu, inventory};
use crate::usage::{Use, Uses};
use crate::{Allocation, Ask, Demand, Inventory, NodeName, PodUid, Seats, invariant, usage};

mod modes;
mod quotas;
mod seats;

use modes::demands;
use quotas::{amount, limit, namespace, sum};

#[derive(Clone, Debug)]
enum Step {
    Inventory {
        node: u8,
        cards: u32,
        memory: u64,
    },
    NoInventory {
        node: u8,
    },
    Reserve {
        pod: u8,
        node: u8,
        demand: Demand,
    },
    /// The watch shows what was reserved, as bound.
    Confirm {
        pod: u8,
    },
    /// The watch shows a booking that this ledger did not make.
    Foreign {
        pod: u8,
        node: u8,
        card: u32,
        memory: u64,
        cores: u32,
    },
    Unreadable {
        pod: u8,
        node: u8,
    },
    /// A share is kept for a pod.
    Hold {
        pod: u8,
        node: u8,
        memory: u64,
    },
    Unhold {
        pod: u8,
    },
    Cancel {
        pod: u8,
    },
    Release {
        pod: u8,
    },
    /// A quota of a namespace with these limits, gone without any.
    Quota(u8, u8, [Option<Most>; 2]),
    /// A list of one quota of a namespace, on memory: all others are gone.
    QuotasListed(u8, u64),
    /// The kubelet offers so many seats under each resource, or has said nothing.
    Offered(u8, Option<u32>),
}

struct Steps;

impl ReferenceStateMachine for Steps {
    type State = ();
    type Transition = Step;

    fn init_state() -> BoxedStrategy<()> {
        Just(()).boxed()
    }

    fn transitions((): &()) -> BoxedStrategy<Step> {
        let pod = 0u8..8;
        let node = 0u8..3;
        prop_oneof![
            2 => (node.clone(), 1u32..4, 500u64..1500)
                .prop_map(|(node, cards, memory)| Step::Inventory { node, cards, memory }),
            1 => node.clone().prop_map(|node| Step::NoInventory { node }),
            8 => (pod.clone(), node.clone(), demands())
                .prop_map(|(pod, node, demand)| Step::Reserve { pod, node, demand }),
            4 => pod.clone().prop_map(|pod| Step::Confirm { pod }),
            1 => (pod.clone(), node.clone(), 0u32..4, 1u64..900, 0u32..=100)
                .prop_map(|(pod, node, card, memory, cores)| Step::Foreign { pod, node, card, memory, cores }),
            1 => (pod.clone(), node).prop_map(|(pod, node)| Step::Unreadable { pod, node }),
            1 => (pod.clone(), 0u8..3, 1u64..500)
                .prop_map(|(pod, node, memory)| Step::Hold { pod, node, memory }),
            1 => pod.clone().prop_map(|pod| Step::Unhold { pod }),
            2 => pod.clone().prop_map(|pod| Step::Cancel { pod }),
            3 => pod.prop_map(|pod| Step::Release { pod }),
            2 => (0u8..2, 0u8..2, limit(2000), limit(200))
                .prop_map(|(of, name, memory, cores)| Step::Quota(of, name, [memory, cores])),
            1 => (0u8..2, 0u64..2000).prop_map(|(of, memory)| Step::QuotasListed(of, memory)),
            1 => (0u8..3, proptest::option::weighted(0.8, 0u32..9))
                .prop_map(|(node, offered)| Step::Offered(node, offered)),
        ]
        .boxed()
    }

    fn apply((): (), _: &Step) {}
}

/// The ledger beside a model: the bookings as a plain list.
#[derive(Default)]
struct Books {
    ledger: Ledger,
    model: BTreeMap<u8, (NodeName, Held, bool)>,
    given: BTreeMap<u8, (Allocation, Demand)>,
    holds: BTreeMap<u8, (NodeName, u64)>,
    /// What the pods of the model request of seats; a hold's pod requests one.
    seats: BTreeMap<u8, Seats>,
    /// By namespace and quota: what it allows of memory and of compute.
    quotas: BTreeMap<(u8, u8), [Option<Most>; 2]>,
    /// Some booking came from outside or a card shrank: sums may pass capacity.
    outside: bool,
}

fn node_name(node: u8) -> NodeName {
    format!("n{node}").into()
}

fn uid(pod: u8) -> PodUid {
    format!("p{pod}").into()
}

fn published(inventory: Inventory) -> Published {
    Published {
        inventory: Some(Arc::new(inventory)),
        ..Published::default()
    }
}

impl Books {
    fn reserve(&mut self, pod: u8, node: u8, demand: &Demand) {
        let name = node_name(node);
        let before = self.ledger.clone();
        match self.ledger.reserve(
            &uid(pod),
            &namespace(pod),
            &name,
            demand,
            &Policies::default(),
        ) {
            Ok(allocation) => {
                let uses = usage::effective(&allocation, demand.stages());
                let state = self.ledger.cluster().node(name.as_str()).unwrap();
                let inventory = state.inventory.clone().unwrap();
                for (gpu, card) in inventory.gpus.iter().zip(&state.cards) {
                    if modes::of_card(&uses, &gpu.uuid).next().is_some() {
                        assert!(invariant::within_capacity(card), "{card:?}");
                    }
                }
                for container in &demand.containers {
                    let granted = allocation.grants(&container.name).map_or(0, <[_]>::len);
                    let same = demand.rules.same_unit;
                    let count = |ask: &Ask| if same { 1 } else { ask.count as usize };
                    let asked: usize = container.asks.iter().map(count).sum();
                    assert_eq!(granted, asked, "{container:?}");
                }
                self.offered_enough(&name, demand);
                assert!(!self.model.contains_key(&pod));
                self.seats.insert(pod, demand.seats());
                assert!(self.allowed(pod % 2, amount(&uses)), "a quota was passed");
                self.model.insert(pod, (name, Held::Uses(uses), false));
                self.given.insert(pod, (allocation, demand.clone()));
            }
            Err(NotReserved::Booked(held_by)) => assert_eq!(self.model[&pod].0, held_by),
            Err(NotReserved::Refused(refusal)) => {
                assert!(before == self.ledger, "a refusal wrote");
                self.short_of_seats(pod, &name, demand, &refusal);
                if refusal.over_quota().is_some() {
                    let mut seen = before;
                    seen.unhold(&uid(pod));
                    let found = seen.fit(name.as_str(), demand, &Policies::default());
                    let uses = found.unwrap().uses;
                    let uses = uses.iter().map(|(_, used)| *used);
                    assert!(!self.allowed(pod % 2, sum(uses)), "{refusal}");
                }
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Inventory {
                node,
                cards,
                memory,
            } => {
                let made = inventory((0..cards).map(|i| modes::card(i, memory)).collect());
                self.outside = true;
                self.ledger.publish(&node_name(node), Some(published(made)));
            }
            Step::NoInventory { node } => self.ledger.publish(&node_name(node), None),
            Step::Reserve { pod, node, demand } => self.reserve(pod, node, &demand),
            Step::Confirm { pod } => {
                let given = self.given.get(&pod);
                if let Some((allocation, demand)) = given.filter(|_| self.model.contains_key(&pod))
                {
                    let text = allocation.encode().unwrap();
                    let read = Allocation::decode(&text).unwrap();
                    let held = Held::Uses(usage::effective(&read, demand.stages()));
                    let seats = demand.seats();
                    self.shown(pod, read.node, held, seats);
                }
            }
            Step::Foreign {
                pod,
                node,
                card,
                memory,
                cores,
            } => {
                let used = Use::of(crate::Mib(memory), crate::Percent(cores));
                let held = Held::Uses(Uses::from([(format!("GPU-{card}").into(), used)]));
                self.outside = true;
                self.shown(pod, node_name(node), held, seats::usual(1));
                self.given.remove(&pod);
            }
            Step::Unreadable { pod, node } => {
                self.shown(pod, node_name(node), Held::Unreadable, seats::usual(0));
                self.given.remove(&pod);
            }
            Step::Hold { pod, node, memory } => {
                let used = Use::of(crate::Mib(memory), crate::Percent(0));
                let hold = Hold {
                    node: node_name(node),
                    held: Held::Uses(Uses::from([("GPU-0".into(), used)])),
                    seats: seats::usual(1),
                    written: memory % 2 == 0,
                };
                // It counts beside those who are about to end.
                self.outside = true;
                self.ledger.hold(&uid(pod), hold);
                self.holds.insert(pod, (node_name(node), memory));
            }
            Step::Unhold { pod } => {
                let held = self.ledger.unhold(&uid(pod)).map(|hold| hold.node);
                assert_eq!(held, self.holds.remove(&pod).map(|(node, _)| node));
            }
            Step::Cancel { pod } => {
                self.ledger.cancel(&uid(pod));
                self.model
                    .retain(|p, (_, _, confirmed)| *p != pod || *confirmed);
            }
            Step::Release { pod } => {
                self.ledger.release(&uid(pod));
                self.model.remove(&pod);
            }
            Step::Quota(of, name, limits) => self.set_quota(of, name, limits),
            Step::QuotasListed(of, memory) => self.list_quota(of, memory),
            Step::Offered(node, offered) => self.offer(&node_name(node), offered),
        }
        if matches!(self.model.len(), 0) {
            self.given.clear();
        }
    }

    fn check(&self) {
        assert_eq!(self.ledger.bookings().count(), self.model.len());
        for (pod, (node, held, confirmed)) in &self.model {
            let booking = self.ledger.booking(&uid(*pod)).expect("in the model");
            assert_eq!(
                (&booking.node, &booking.held, booking.confirmed),
                (node, held, *confirmed)
            );
        }
        for (_, name, state) in self.ledger.cluster().iter() {
            self.check_seats(name, state);
            let here = || self.model.values().filter(|(node, ..)| node == name);
            let Some(inventory) = &state.inventory else {
                assert_eq!(state.closed, Some(Reason::NodeNotRegistered));
                continue;
            };
            let unreadable = here().any(|(_, held, _)| *held == Held::Unreadable);
            let closed = unreadable.then_some(Reason::NodeAllocationUnreadable);
            assert_eq!(state.closed, closed);
            for (gpu, card) in inventory.gpus.iter().zip(&state.cards) {
                let held = here().filter_map(|(_, held, _)| match held {
                    Held::Uses(uses) => Some(uses),
                    Held::Unreadable => None,
                });
                modes::no_slice_is_given_twice(held.clone(), gpu);
                let on_card = held.flat_map(|uses| modes::of_card(uses, &gpu.uuid));
                let kept = self.holds.iter().filter(|(pod, (node, _))| {
                    node == name && gpu.uuid.as_str() == "GPU-0" && !self.model.contains_key(pod)
                });
                let kept: Vec<u64> = kept.map(|(_, (_, memory))| *memory).collect();
                let start = (kept.iter().sum(), u32::try_from(kept.len()).unwrap());
                let (memory, pods) = on_card.fold(start, |(m, p), used| (m + used.memory.0, p + 1));
                assert_eq!((card.sums.used.memory.0, card.sums.pods), (memory, pods));
                assert!(self.outside || invariant::within_capacity(card));
            }
        }
        self.check_quotas();
        let fresh = self.ledger.recompute();
        assert_eq!(self.ledger.differences(&fresh).count(), 0);
        assert!(self.ledger == fresh);
    }
}

impl StateMachineTest for Books {
    type SystemUnderTest = Self;
    type Reference = Steps;

    fn init_test((): &()) -> Self {
        let mut books = Self::default();
        for node in 0..3 {
            let made = inventory((0..2).map(|i| gpu(i, 1000, 3)).collect());
            books
                .ledger
                .publish(&node_name(node), Some(published(made)));
        }
        books
    }

    fn apply(mut state: Self, (): &(), step: Step) -> Self {
        state.apply(step);
        state
    }

    fn check_invariants(state: &Self, (): &()) {
        state.check();
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_equal_the_model_after_every_step(sequential 1..60 => Books);
}

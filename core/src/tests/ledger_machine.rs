//! The ledger under random operations, against a model that is a plain list.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use crate::ledger::{Ledger, NotReserved, Purpose, Reservation};
use crate::node::NodePublication;
use crate::quota::LimitValue;
use crate::refusal::{Reason, Refusal};
use crate::score::Policies;
use crate::tests::{gpu, inventory};
use crate::usage::{self, AllocatedUse, DeviceUse, DeviceUses};
use crate::{Allocation, Demand, GpuRequest, Inventory, NodeName, PodUid, Replicas};

mod modes;
mod quotas;
mod replicas;

use modes::demands;
use quotas::{amount, limit, namespace, sum};

#[derive(Clone, Debug)]
enum Step {
    Inventory {
        node: u8,
        devices: u32,
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
    /// The watch shows an entry that this ledger did not make.
    Foreign {
        pod: u8,
        node: u8,
        device: u32,
        memory: u64,
        cores: u32,
    },
    Unreadable {
        pod: u8,
        node: u8,
    },
    /// Reserves a share for a preemptor.
    ReserveForPreemptor {
        pod: u8,
        node: u8,
        memory: u64,
    },
    /// Reserves a share for a member of a gang until its Binding.
    ReserveForGang {
        pod: u8,
        node: u8,
        demand: Demand,
    },
    DropReservation {
        pod: u8,
    },
    Cancel {
        pod: u8,
    },
    Release {
        pod: u8,
    },
    /// A quota of a namespace with these limits; without any it is removed.
    Quota(u8, u8, [Option<LimitValue>; 2]),
    /// A list of one quota of a namespace, on memory: all others are removed.
    QuotasListed(u8, u64),
    /// The kubelet offers this many replicas under each resource, or has not reported.
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
                .prop_map(|(node, devices, memory)| Step::Inventory { node, devices, memory }),
            1 => node.clone().prop_map(|node| Step::NoInventory { node }),
            8 => (pod.clone(), node.clone(), demands())
                .prop_map(|(pod, node, demand)| Step::Reserve { pod, node, demand }),
            4 => pod.clone().prop_map(|pod| Step::Confirm { pod }),
            1 => (pod.clone(), node.clone(), 0u32..4, 1u64..900, 0u32..=100)
                .prop_map(|(pod, node, device, memory, cores)| Step::Foreign { pod, node, device, memory, cores }),
            1 => (pod.clone(), node).prop_map(|(pod, node)| Step::Unreadable { pod, node }),
            1 => (pod.clone(), 0u8..3, 1u64..500)
                .prop_map(|(pod, node, memory)| Step::ReserveForPreemptor { pod, node, memory }),
            3 => (pod.clone(), 0u8..3, demands())
                .prop_map(|(pod, node, demand)| Step::ReserveForGang { pod, node, demand }),
            2 => pod.clone().prop_map(|pod| Step::DropReservation { pod }),
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

/// What the model knows of a reservation.
struct ModelReservation {
    node: NodeName,
    uses: DeviceUses,
    replicas: Replicas,
    /// Of a gang's member, and so charged to its namespace.
    gang: bool,
}

/// The ledger beside a model: the entries as a plain list.
#[derive(Default)]
struct LedgerTest {
    ledger: Ledger,
    model: BTreeMap<u8, (NodeName, AllocatedUse, bool)>,
    given: BTreeMap<u8, (Allocation, Demand)>,
    reservations: BTreeMap<u8, ModelReservation>,
    /// The replicas that the pods of the model request.
    replicas: BTreeMap<u8, Replicas>,
    /// By namespace and quota: what it allows of memory and of compute.
    quotas: BTreeMap<(u8, u8), [Option<LimitValue>; 2]>,
    /// Some entry came from outside or a device shrank: sums may exceed the capacity.
    outside: bool,
}

fn node_name(node: u8) -> NodeName {
    format!("n{node}").into()
}

fn uid(pod: u8) -> PodUid {
    format!("p{pod}").into()
}

fn published(inventory: Inventory) -> NodePublication {
    NodePublication {
        inventory: Some(Arc::new(inventory)),
        ..NodePublication::default()
    }
}

impl LedgerTest {
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
                for (gpu, device) in inventory.gpus.iter().zip(&state.devices) {
                    if modes::of_device(&uses, &gpu.uuid).next().is_some() {
                        assert!(crate::node::within_capacity(device), "{device:?}");
                    }
                }
                for container in &demand.containers {
                    let granted = allocation.grants(&container.name).map_or(0, <[_]>::len);
                    let same = demand.rules.same_device;
                    let count =
                        |request: &GpuRequest| if same { 1 } else { request.count as usize };
                    let asked: usize = container.requests.iter().map(count).sum();
                    assert_eq!(granted, asked, "{container:?}");
                }
                self.offered_enough(&name, demand);
                assert!(!self.model.contains_key(&pod));
                self.replicas.insert(pod, demand.replicas());
                assert!(self.allowed(pod, amount(&uses)), "a quota was passed");
                if let Some(own) = self.reservations.get_mut(&pod).filter(|own| own.gang) {
                    (own.node, own.uses) = (name.clone(), uses.clone());
                    own.replicas = demand.replicas();
                }
                self.model
                    .insert(pod, (name, AllocatedUse::Known(uses), false));
                self.given.insert(pod, (allocation, demand.clone()));
            }
            Err(NotReserved::AlreadyAllocated(node_of_pod)) => {
                assert_eq!(self.model[&pod].0, node_of_pod);
            }
            Err(NotReserved::Refused(refusal)) => {
                assert!(before == self.ledger, "a refusal wrote");
                self.check_replica_shortage(pod, &name, demand, &refusal);
                if refusal.quota_excess().is_some() {
                    self.exceeds_a_quota(pod, &name, demand, &refusal);
                }
            }
        }
    }

    /// A refusal for a quota is right.
    fn exceeds_a_quota(&self, pod: u8, name: &NodeName, demand: &Demand, refusal: &Refusal) {
        let mut seen = self.ledger.clone();
        seen.drop_reservation(&uid(pod));
        let found = seen.fit(name.as_str(), demand, &Policies::default());
        let uses = found.unwrap().uses;
        let uses = uses.iter().map(|(_, used)| *used);
        assert!(!self.allowed(pod, sum(uses)), "{refusal}");
    }

    /// A gang's member gets a reservation exactly where it could be bound, and a plan's stays.
    fn reserve_for_gang(&mut self, pod: u8, node: u8, demand: &Demand) {
        let (name, policies) = (node_name(node), Policies::default());
        let before = self.ledger.clone();
        let asked = (&uid(pod), &namespace(pod));
        let reserved = self
            .ledger
            .reserve_for_gang(asked.0, asked.1, &name, demand, &policies);
        if let Err(refusal) = reserved {
            assert!(before == self.ledger, "a refusal wrote");
            if refusal.quota_excess().is_some() {
                self.exceeds_a_quota(pod, &name, demand, &refusal);
            }
            return;
        }
        if self.model.contains_key(&pod) {
            assert!(before == self.ledger, "a second share was reserved");
            return;
        }
        let reservation = self.ledger.reservation_for(&uid(pod));
        let reservation = reservation.expect("a reservation");
        let planned = matches!(reservation.purpose, Purpose::Preemption { .. });
        let planned_before = self.reservations.get(&pod).is_some_and(|own| !own.gang);
        assert_eq!(planned, planned_before);
        if planned {
            return;
        }
        assert_eq!(reservation.node, name);
        let uses = reservation.allocated.uses().expect("readable").clone();
        let own = ModelReservation {
            node: name.clone(),
            uses,
            replicas: demand.replicas(),
            gang: true,
        };
        assert!(self.allowed(pod, amount(&own.uses)), "a quota was passed");
        self.offered_enough(&name, demand);
        self.reservations.insert(pod, own);
        let mut bound = self.ledger.clone();
        let reserved = bound.reserve(asked.0, asked.1, &name, demand, &policies);
        assert!(reserved.is_ok(), "{reserved:?}");
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Inventory {
                node,
                devices,
                memory,
            } => {
                let made = inventory((0..devices).map(|i| modes::device(i, memory)).collect());
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
                    let allocated = AllocatedUse::Known(usage::effective(&read, demand.stages()));
                    let replicas = demand.replicas();
                    self.observe_bound(pod, read.node, allocated, replicas);
                }
            }
            Step::Foreign {
                pod,
                node,
                device,
                memory,
                cores,
            } => {
                let used = DeviceUse::of(crate::Mib(memory), crate::Percent(cores));
                let allocated =
                    AllocatedUse::Known(DeviceUses::from([(format!("GPU-{device}").into(), used)]));
                self.outside = true;
                self.observe_bound(pod, node_name(node), allocated, replicas::usual(1));
                self.given.remove(&pod);
            }
            Step::Unreadable { pod, node } => {
                self.observe_bound(
                    pod,
                    node_name(node),
                    AllocatedUse::Unreadable,
                    replicas::usual(0),
                );
                self.given.remove(&pod);
            }
            Step::ReserveForPreemptor { pod, node, memory } => {
                let used = DeviceUse::of(crate::Mib(memory), crate::Percent(0));
                let reserved = DeviceUses::from([("GPU-0".into(), used)]);
                let reservation = Reservation {
                    node: node_name(node),
                    allocated: AllocatedUse::Known(reserved.clone()),
                    replicas: replicas::usual(1),
                    purpose: Purpose::Preemption {
                        victims: self.first_pod(),
                        recorded: memory % 2 == 0,
                    },
                };
                // It counts beside the victims that have not ended.
                self.outside = true;
                self.ledger.put_reservation(&uid(pod), reservation);
                let own = ModelReservation {
                    node: node_name(node),
                    uses: reserved,
                    replicas: replicas::usual(1),
                    gang: false,
                };
                self.reservations.insert(pod, own);
            }
            Step::ReserveForGang { pod, node, demand } => self.reserve_for_gang(pod, node, &demand),
            Step::DropReservation { pod } => {
                let allocated = self
                    .ledger
                    .drop_reservation(&uid(pod))
                    .map(|reservation| reservation.node);
                assert_eq!(
                    allocated,
                    self.reservations.remove(&pod).map(|own| own.node)
                );
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

    fn first_pod(&self) -> Vec<PodUid> {
        let pods = self.model.keys().take(1);
        pods.map(|pod| uid(*pod)).collect()
    }

    /// The reservations that count: of pods without an entry.
    fn waiting(&self) -> impl Iterator<Item = (u8, &ModelReservation)> {
        let all = self.reservations.iter().map(|(pod, own)| (*pod, own));
        all.filter(|(pod, _)| !self.model.contains_key(pod))
    }

    fn check(&self) {
        assert_eq!(self.ledger.pod_entries().count(), self.model.len());
        for (pod, (node, allocated, confirmed)) in &self.model {
            let entry = self.ledger.pod_entry(&uid(*pod)).expect("in the model");
            assert_eq!(
                (&entry.node, &entry.allocated, entry.confirmed),
                (node, allocated, *confirmed)
            );
        }
        for (_, name, state) in self.ledger.cluster().iter() {
            self.check_replicas(name, state);
            let here = || self.model.values().filter(|(node, ..)| node == name);
            let Some(inventory) = &state.inventory else {
                assert_eq!(state.closed, Some(Reason::NodeNotRegistered));
                continue;
            };
            let unreadable = here().any(|(_, allocated, _)| *allocated == AllocatedUse::Unreadable);
            let closed = unreadable.then_some(Reason::NodeAllocationUnreadable);
            assert_eq!(state.closed, closed);
            for (gpu, device) in inventory.gpus.iter().zip(&state.devices) {
                let allocated = here().filter_map(|(_, allocated, _)| allocated.uses());
                modes::no_slice_is_given_twice(allocated.clone(), gpu);
                let on_device = allocated.flat_map(|uses| modes::of_device(uses, &gpu.uuid));
                let waiting = self.waiting().filter(|(_, own)| own.node == *name);
                let reserved = waiting.map(|(_, own)| &own.uses);
                let reserved = reserved.flat_map(|uses| modes::of_device(uses, &gpu.uuid));
                let (memory, pods) = on_device
                    .chain(reserved)
                    .fold((0, 0), |(m, p), used| (m + used.memory.0, p + 1));
                assert_eq!(
                    (device.allocated.used.memory.0, device.allocated.pods),
                    (memory, pods)
                );
                assert!(self.outside || crate::node::within_capacity(device));
            }
        }
        self.check_quotas();
        let fresh = self.ledger.recompute();
        assert_eq!(self.ledger.differences(&fresh).count(), 0);
        assert!(self.ledger == fresh);
    }
}

impl StateMachineTest for LedgerTest {
    type SystemUnderTest = Self;
    type Reference = Steps;

    fn init_test((): &()) -> Self {
        let mut test = Self::default();
        for node in 0..3 {
            let made = inventory((0..2).map(|i| gpu(i, 1000, 3)).collect());
            test.ledger.publish(&node_name(node), Some(published(made)));
        }
        test
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
    fn ledger_equals_the_model_after_every_step(sequential 1..60 => LedgerTest);
}

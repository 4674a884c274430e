//! The explanation is the decision, for random nodes and pods.

use proptest::prelude::*;

use crate::explain::{CHOSEN, FITS, NOT_ASKED, NodeAnswer};
use crate::fit::fit;
use crate::inventory::{Health, Inventory, OrphanedShare, TopologyScope};
use crate::node::{NodePublication, NodeState};
use crate::refusal::{Reason, Refusal};
use crate::score::Policies;
use crate::tests::{app, demand, gpu, inventory, planned, publication, request, uses};
use crate::top::{self, NodeTop};
use crate::units::{HostResources, Mib, Percent};
use crate::usage::AllocatedUse;
use crate::{Demand, Ledger, PodUid, Stage};

/// Reasons of a node as a whole; the others are of devices.
const OF_NODES: [Reason; 4] = [
    Reason::NodeNotRegistered,
    Reason::NodeInsufficientDevice,
    Reason::AllocatedCardsInsufficientRequest,
    Reason::NodeAllocationUnreadable,
];

fn state(inventory: Inventory, shares: &[(u32, u64, u32)], unreadable: bool) -> NodeState {
    let mut pods: Vec<(PodUid, AllocatedUse)> = Vec::new();
    for (number, &(device, memory, cores)) in shares.iter().enumerate() {
        let used = uses(&format!("GPU-{device}"), memory, cores);
        pods.push((format!("p{number}").into(), used));
    }
    if unreadable {
        pods.push(("spoilt".into(), AllocatedUse::Unreadable));
    }
    let allocated: Vec<_> = pods.iter().map(|(pod, used)| (pod, used)).collect();
    let published = NodePublication {
        cordoned: vec!["GPU-3".into()],
        ..publication(inventory)
    };
    NodeState::new(&published, &allocated, HostResources::default())
}

prop_compose! {
    fn nodes()(
        devices in proptest::collection::vec((200u64..1500, 1u32..5, 0u8..8), 1..5),
        shares in proptest::collection::vec((0u32..4, 1u64..600, 0u32..=100), 0..6),
        unreadable in proptest::bool::weighted(0.05),
        aligned in 0u8..4,
    ) -> NodeState {
        let mut made = inventory(vec![]);
        if aligned > 1 {
            made.topology_policy = "single-numa-node".to_owned();
        }
        if aligned > 2 {
            made.topology_scope = TopologyScope::Pod;
        }
        for (index, (memory, replicas, kind)) in (0..).zip(devices) {
            let mut gpu = gpu(index, memory, replicas);
            gpu.numa = Some(index % 2);
            match kind {
                0 => gpu.health = Health::Unhealthy("xid 79".to_owned()),
                1 => gpu.resource = "nvidia.com/other".to_owned(),
                2 => made.orphaned.push(OrphanedShare {
                    pod: "gone".into(),
                    gpu: gpu.uuid.clone(),
                    replicas: 1,
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
    let request =
        (1u32..4, 1u64..700, cores).prop_map(|(n, memory, cores)| request(n, memory, cores));
    proptest::collection::vec((stage, proptest::option::weighted(0.8, request)), 1..4)
        .prop_map(|containers| demand(&containers))
}

proptest! {
    #[test]
    fn explains_devices_with_the_reasons_that_fit_counts(
        node in nodes(), demand in demands(),
    ) {
        let policies = Policies::default();
        let decided = fit(&node, &demand, &policies);
        let (answer, _) = NodeAnswer::evaluate(&"n".into(), &node, &demand, &policies, true, None);
        let found = |text: &str| answer.gpus.iter().filter(|gpu| gpu.answer == text).count();
        match &decided {
            Ok(fit) => {
                prop_assert!(answer.fits && answer.why.is_empty());
                prop_assert_eq!(found(CHOSEN), fit.uses.len());
            }
            Err(refusal) => {
                prop_assert_eq!(&answer.why, &refusal.to_string());
                prop_assert_eq!(found(CHOSEN), 0);
                let of_devices = |refusal: &Refusal| {
                    let counts = refusal.counts();
                    counts.filter(|(reason, _)| !OF_NODES.contains(reason)).collect::<Vec<_>>()
                };
                let mut explained = Refusal::default();
                for reason in Reason::ALL {
                    (0..found(reason.name())).for_each(|_| explained.add(reason));
                }
                prop_assert_eq!(of_devices(&explained), of_devices(refusal));
                // Devices fit only where fit reports that there are too few of them.
                let few = refusal.count(Reason::AllocatedCardsInsufficientRequest) > 0;
                prop_assert_eq!(found(FITS) > 0, few);
            }
        }
        let evaluated = answer.gpus.iter().filter(|gpu| gpu.needs.is_some()).count();
        prop_assert_eq!(found(NOT_ASKED), node.devices.len() - evaluated);
    }

    #[test]
    fn device_fits_exactly_if_it_would_alone(node in nodes(), memory in 1u64..700, cores in 0u32..=100) {
        let policies = Policies::default();
        let demand = app(1, memory, cores);
        let (answer, _) = NodeAnswer::evaluate(&"n".into(), &node, &demand, &policies, true, None);
        for (place, gpu) in answer.gpus.iter().enumerate() {
            let alone = fit(&only(&node, place), &demand, &policies).is_ok();
            prop_assert_eq!([CHOSEN, FITS].contains(&gpu.answer.as_str()), alone, "{:?}", gpu);
        }
    }

    #[test]
    fn reports_the_largest_share_that_fits(node in nodes(), cores in 0u32..=100) {
        let policies = Policies::default();
        let top = NodeTop::new(&"n".into(), &node, Percent(cores)).unwrap();
        for (place, line) in top.gpus.iter().enumerate() {
            let mut device = only(&node, place);
            // The name of the resource does not matter here.
            device.resources = vec!["nvidia.com/gpu".into()];
            device.devices[0].resource = 0;
            let most = |cores| {
                let fits = |memory| {
                    let demand = app(1, memory, cores);
                    fit(&device, &demand, &policies).is_ok()
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

fn only(node: &NodeState, place: usize) -> NodeState {
    NodeState {
        devices: vec![node.devices[place]],
        ..node.clone()
    }
}

#[test]
fn reports_unallocated_amounts_and_none_of_closed_devices() {
    let mut made = inventory(vec![gpu(0, 1000, 4), gpu(3, 1000, 4)]);
    made.orphaned.push(OrphanedShare {
        pod: "gone".into(),
        gpu: "GPU-0".into(),
        replicas: 2,
        memory: Mib(100),
        cores: Percent(10),
    });
    let node = state(made, &[(0, 300, 20)], false);
    let top = NodeTop::new(&"n".into(), &node, Percent(80)).unwrap();
    let amount = |replicas, memory, cores| top::DeviceAmount {
        replicas,
        memory: Mib(memory),
        cores: Percent(cores),
    };
    let [open, closed] = top.gpus.as_slice() else {
        panic!("{top:?}");
    };
    assert_eq!(open.used, amount(3, 400, 30));
    assert_eq!(open.left, amount(1, 600, 70));
    assert_eq!(open.orphaned, amount(2, 100, 10));
    assert_eq!(
        (open.largest, open.largest_with_default_cores),
        (Some(Mib(600)), None)
    );
    assert_eq!(closed.closed.as_deref(), Some("CardCordoned"));
    assert_eq!((closed.left, closed.largest), (amount(0, 0, 0), None));
}

#[test]
fn shows_what_victims_hold_of_a_reservation_once() {
    let mut ledger = Ledger::default();
    let victim = PodUid::from("victim");
    let publish = |ledger: &mut Ledger, orphaned: bool| {
        let mut made = inventory(vec![gpu(0, 1000, 4)]);
        made.orphaned.extend(orphaned.then(|| OrphanedShare {
            pod: victim.clone(),
            gpu: "GPU-0".into(),
            replicas: 1,
            memory: Mib(600),
            cores: Percent(50),
        }));
        ledger.publish(&"n".into(), Some(publication(made)));
    };
    publish(&mut ledger, false);
    for (pod, memory, cores) in [("victim", 600, 50), ("stays", 100, 20)] {
        let (used, host) = (uses("GPU-0", memory, cores), HostResources::default());
        ledger.confirm(&pod.into(), &"d".into(), &"n".into(), used, host);
    }
    let taken = (uses("GPU-0", 900, 40), crate::Replicas::default());
    ledger.assume_plan(&"waits".into(), planned("n", taken, vec![victim.clone()]));
    let check = |ledger: &Ledger, pods: u32, memory: u64, cores: u32| {
        let node = ledger.cluster().node("n").unwrap();
        let top = NodeTop::new(&"n".into(), node, Percent(0)).unwrap();
        let expected = top::DeviceAmount {
            replicas: pods,
            memory: Mib(memory),
            cores: Percent(cores),
        };
        assert_eq!((top.gpus[0].pods, top.gpus[0].used), (pods, expected));
        assert_eq!(top.gpus[0].left.memory, Mib(0));
        assert!(*ledger == ledger.recompute());
    };
    check(&ledger, 2, 1000, 70);
    // Its processes outlive it.
    publish(&mut ledger, true);
    check(&ledger, 2, 1000, 70);
    ledger.release(&victim);
    check(&ledger, 2, 1000, 70);
    publish(&mut ledger, false);
    check(&ledger, 2, 1000, 60);
}

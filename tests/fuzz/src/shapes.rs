//! Demands of different shapes, tried on whatever was read.
//!
//! Fed by: nothing. Must not: depend on the input.

use aliquot_core::cluster::Cluster;
use aliquot_core::fit::Policies;
use aliquot_core::ledger::NotReserved;
use aliquot_core::{
    Allocation, Ask, Compute, ContainerDemand, Demand, Ledger, Memory, Mib, NodeName, Percent,
    Policy, Stage, invariant, usage,
};

/// Pods reserved on one node, at most.
const PODS: usize = 12;

fn demand(resource: &str, policy: Option<Policy>, containers: &[(Stage, Ask)]) -> Demand {
    let containers = containers.iter().enumerate();
    Demand {
        resource: resource.into(),
        containers: containers
            .map(|(number, &(stage, ask))| ContainerDemand {
                name: format!("c{number}"),
                stage,
                ask: Some(ask),
            })
            .collect(),
        host: Compute::default(),
        priority: 1,
        node_policy: policy,
        gpu_policy: policy,
    }
}

/// Demands under this name of the count resource: small and large, whole cards,
/// parts, several cards, several containers.
pub(crate) fn demands(resource: &str) -> Vec<Demand> {
    use Stage::{App, Init, Sidecar};
    let mib = |count, memory, cores| Ask {
        count,
        memory: Memory::Mib(Mib(memory)),
        cores: Percent(cores),
    };
    let part = |count, part, cores| Ask {
        memory: Memory::Share(Percent(part)),
        ..mib(count, 0, cores)
    };
    let (binpack, spread) = (Some(Policy::Binpack), Some(Policy::Spread));
    vec![
        demand(resource, None, &[(App, mib(1, 1, 0))]),
        demand(resource, binpack, &[(App, mib(2, 3000, 30))]),
        demand(resource, spread, &[(App, part(1, 50, 0))]),
        demand(resource, None, &[(App, part(1, 100, 100))]),
        demand(resource, None, &[(App, mib(64, 1, 1))]),
        demand(
            resource,
            spread,
            &[
                (Init, mib(1, 1 << 20, 100)),
                (Sidecar, mib(1, 1, 0)),
                (App, part(2, 33, 33)),
                (App, mib(1, 500, 0)),
            ],
        ),
    ]
}

/// Reserves demands of every shape on this node until it refuses, and checks
/// after each that no card it was given on promises more than it has, that its
/// text reads back the same, and that the books equal recomputed ones.
pub(crate) fn fill(ledger: &mut Ledger, node: &NodeName, resource: &str) {
    let policies = Policies::default();
    for (number, demand) in demands(resource).iter().cycle().take(PODS).enumerate() {
        let fits = ledger.fit(node.as_str(), demand, &policies).is_ok();
        let before = ledger.cluster().clone();
        let uid = format!("fuzz-{number}").as_str().into();
        match ledger.reserve(&uid, node, demand, &policies) {
            Ok(allocation) => {
                assert!(fits, "reserved what does not fit");
                granted(ledger, node, demand, &allocation);
            }
            Err(NotReserved::Refused(_)) => {
                assert!(!fits, "refused what fits");
                assert!(same(&before, ledger.cluster()), "a refusal wrote");
            }
            Err(NotReserved::Booked(_)) => {}
        }
    }
    assert!(
        *ledger == ledger.recompute(),
        "books differ from recomputed ones"
    );
}

/// What must hold right after a reservation.
pub(crate) fn granted(ledger: &Ledger, node: &NodeName, demand: &Demand, given: &Allocation) {
    let text = given.encode().expect("what we give can be written");
    let read = Allocation::decode(&text).expect("what we write can be read");
    assert_eq!(read, *given);
    for container in &demand.containers {
        let grants = given.grants(&container.name).unwrap_or_default();
        let asked = container.ask.map_or(0, |ask| ask.count as usize);
        assert_eq!(grants.len(), asked, "{container:?}");
        for (number, grant) in grants.iter().enumerate() {
            let again = grants[..number].iter().any(|one| one.gpu == grant.gpu);
            assert!(!again, "one container was given {} twice", grant.gpu);
        }
    }
    let uses = usage::effective(given, demand.stages());
    let state = ledger
        .cluster()
        .node(node.as_str())
        .expect("reserved on it");
    let inventory = state.inventory.as_ref().expect("reserved on its cards");
    for (gpu, card) in inventory.gpus.iter().zip(&state.cards) {
        let given = uses.contains_key(&gpu.uuid);
        assert!(!given || invariant::within_capacity(card), "{card:?}");
    }
}

fn same(a: &Cluster, b: &Cluster) -> bool {
    a.iter()
        .map(|(_, _, state)| state)
        .eq(b.iter().map(|(_, _, state)| state))
}

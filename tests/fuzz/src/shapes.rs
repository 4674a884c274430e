//! Demands of different shapes, tried on whatever inventory was read.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use aliquot_core::cluster::Cluster;
use aliquot_core::fit;
use aliquot_core::ledger::NotReserved;
use aliquot_core::node::within_capacity;
use aliquot_core::score::Policies;
use aliquot_core::{Allocation, Demand, Ledger, NodeName, usage};
use aliquot_k8s::pod;
use aliquot_k8s::view::PodView;
use serde_json::{Value, json};

/// Pods reserved on one node, at most.
const PODS: usize = 12;

/// A container's stage and its gpu, gpumem, gpumem-percentage and gpucores.
type Container = (&'static str, [u32; 4]);

/// Demands of different shapes: small and large, whole GPUs, parts, several GPUs, several
/// containers; each under a policy.
const SHAPES: &[(&str, &[Container])] = &[
    ("", &[("app", [1, 1, 0, 0])]),
    ("binpack", &[("app", [2, 3000, 0, 30])]),
    ("spread", &[("app", [1, 0, 50, 0])]),
    ("", &[("app", [1, 0, 100, 100])]),
    ("", &[("app", [64, 1, 0, 1])]),
    (
        "spread",
        &[
            ("init", [1, 1 << 20, 0, 100]),
            ("sidecar", [1, 1, 0, 0]),
            ("app", [2, 0, 33, 33]),
            ("app", [1, 500, 0, 0]),
        ],
    ),
];

fn demand(policy: &str, containers: &[Container]) -> Demand {
    let container = |(number, (stage, request)): (usize, &Container)| {
        let names = ["gpu", "gpumem", "gpumem-percentage", "gpucores"];
        let amounts = names
            .iter()
            .zip(request)
            .filter(|(name, n)| **n > 0 || **name == "gpucores");
        let limits: BTreeMap<_, _> = amounts
            .map(|(name, amount)| (format!("nvidia.com/{name}"), amount.to_string()))
            .collect();
        let restart = (*stage == "sidecar").then_some("Always");
        let container = json!({"name": format!("c{number}"), "restartPolicy": restart, "resources": {"limits": limits}});
        (*stage == "app", container)
    };
    let (apps, init): (Vec<_>, Vec<_>) = containers
        .iter()
        .enumerate()
        .map(container)
        .partition(|(app, _)| *app);
    let specs = |some: Vec<(bool, Value)>| some.into_iter().map(|(_, one)| one).collect::<Value>();
    let keys = [
        "hami.io/node-scheduler-policy",
        "hami.io/gpu-scheduler-policy",
    ];
    let keys = keys.iter().filter(|_| !policy.is_empty());
    let annotations: BTreeMap<_, _> = keys.map(|key| (*key, policy)).collect();
    let pod: PodView = serde_json::from_value(json!({
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"initContainers": specs(init), "containers": specs(apps)},
    }))
    .expect("a Pod");
    pod::demand(&pod, &pod::Settings::default()).expect("a demand")
}

/// Demands of every shape, under this name of the main resource.
fn demands(resource: &str) -> Vec<Demand> {
    static ALL: LazyLock<Vec<Demand>> = LazyLock::new(|| {
        let shapes = SHAPES.iter();
        shapes
            .map(|(policy, containers)| demand(policy, containers))
            .collect()
    });
    let mut demands = ALL.clone();
    for demand in &mut demands {
        demand.resources = vec![resource.into()];
    }
    demands
}

/// Reserves demands of every shape on this node until it refuses, and checks after each
/// that none of its devices exceeds its capacity, that its text reads back the same, and
/// that the ledger equals a recomputed one.
pub(crate) fn fill(ledger: &mut Ledger, node: &NodeName, resource: &str) {
    let policies = Policies::default();
    for (number, demand) in demands(resource).iter().cycle().take(PODS).enumerate() {
        let state = ledger.cluster().node(node.as_str());
        let fits = state.is_some_and(|state| fit::fit(state, demand, &policies).is_ok());
        let before = ledger.cluster().clone();
        let uid = format!("fuzz-{number}").as_str().into();
        match ledger.reserve(&uid, &"fuzz".into(), node, demand, &policies) {
            Ok(allocation) => {
                assert!(fits, "reserved what does not fit");
                check_granted(ledger, node, demand, &allocation);
            }
            Err(NotReserved::Refused(_)) => {
                assert!(!fits, "refused what fits");
                assert!(same(&before, ledger.cluster()), "a refusal wrote");
            }
            Err(NotReserved::AlreadyAllocated(_)) => {}
        }
    }
    assert!(
        *ledger == ledger.recompute(),
        "the ledger differs from a recomputed one"
    );
}

/// Invariants right after a reservation.
pub(crate) fn check_granted(ledger: &Ledger, node: &NodeName, demand: &Demand, given: &Allocation) {
    let text = given.encode().expect("what we give can be written");
    let read = Allocation::decode(&text).expect("what we write can be read");
    assert_eq!(read, *given);
    for container in &demand.containers {
        let grants = given.grants(&container.name).unwrap_or_default();
        let asked: usize = container
            .requests
            .iter()
            .map(|request| request.count as usize)
            .sum();
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
    let inventory = state.inventory.as_ref().expect("reserved on its devices");
    for (gpu, device) in inventory.gpus.iter().zip(&state.devices) {
        let given = uses.contains_key(&gpu.uuid);
        assert!(!given || within_capacity(device), "{device:?}");
    }
}

fn same(a: &Cluster, b: &Cluster) -> bool {
    a.iter()
        .map(|(_, _, state)| state)
        .eq(b.iter().map(|(_, _, state)| state))
}

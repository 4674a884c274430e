//! GPU memory and compute as capacity of the Node object, for those who count there:
//! the kubelet, Kueue, dashboards. Off unless the owner asks for it.
//!
//! What was published is known by an annotation of the node, so that it can be taken away.
//! Fed by: the inventory, the node's pods, the watched node. Must not: publish less than
//! the pods that live here ask for; a kubelet that restarts would end them.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::demand::Stage;
use aliquot_core::inventory::{Inventory, Mode};
use aliquot_core::quantity;
use k8s_openapi::api::core::v1 as api;
use serde_json::{Map, Value, json};

use crate::pod::{Phase, Pod};

/// The node annotation with the names of what we publish, a comma list.
pub const OWNED: &str = "aliquot.dev/capacity";

/// Under which names, where it is published at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// MiB.
    pub memory: String,
    /// Percent of a card.
    pub cores: String,
}

/// What the node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    capacity: BTreeMap<String, u64>,
    owned: Option<String>,
}

impl Seen {
    /// Reads the node.
    pub fn read(node: &api::Node) -> Self {
        let status = node.status.as_ref();
        let capacity = status.and_then(|status| status.capacity.as_ref());
        let capacity = capacity.into_iter().flatten();
        let extended = capacity.filter(|(name, _)| name.contains('/'));
        let read = extended.filter_map(|(name, quantity)| {
            let number = quantity::whole(&quantity.0).ok()?;
            Some((name.clone(), number))
        });
        let annotations = node.metadata.annotations.as_ref();
        Self {
            capacity: read.collect(),
            owned: annotations.and_then(|all| all.get(OWNED)).cloned(),
        }
    }
}

/// What is to be published: what the units may promise of what containers write, and at
/// least what living pods ask for.
pub fn wanted(
    inventory: &Inventory,
    pods: &[Arc<Pod>],
    names: Option<&Names>,
) -> BTreeMap<String, u64> {
    let Some(names) = names else {
        return BTreeMap::new();
    };
    let takes = |mode| matches!(mode, Mode::Vgpu | Mode::Mps | Mode::Exclusive);
    let units = inventory.gpus.iter().filter(|unit| takes(unit.mode));
    let (mut memory, mut cores) = (0_u64, 0_u64);
    for unit in units {
        memory = memory.saturating_add(unit.scaled.0);
        cores = cores.saturating_add(unit.cores.0.into());
    }
    let living = |name: &str| {
        let living = pods.iter().filter(|pod| pod.phase != Phase::Ended);
        living.map(|pod| asked(pod, name)).sum::<u64>()
    };
    let each = [(&names.memory, memory), (&names.cores, cores)];
    each.map(|(name, whole)| (name.clone(), whole.max(living(name))))
        .into()
}

/// A pod's request as the kubelet counts it: not times the number of cards.
/// Source: Kubernetes' rule for init containers and sidecars.
fn asked(pod: &Pod, name: &str) -> u64 {
    let (mut running, mut most) = (0_u64, 0_u64);
    for container in &pod.containers {
        let own = container.asked.get(name).copied().unwrap_or_default();
        match container.stage {
            Stage::Init => most = most.max(running.saturating_add(own)),
            Stage::Sidecar | Stage::App => running = running.saturating_add(own),
        }
    }
    most.max(running)
}

/// The patch of the node's status, if one is needed. Before the pods are known nothing
/// is published with less than it shows.
pub fn patch(wanted: &BTreeMap<String, u64>, seen: &Seen, synced: bool) -> Option<Value> {
    let owned = seen.owned.as_deref().unwrap_or_default();
    let gone = owned.split(',').filter(|name| !wanted.contains_key(*name));
    let gone = gone.filter(|name| seen.capacity.contains_key(*name));
    let mut capacity: Map<String, Value> =
        gone.map(|name| (name.to_owned(), Value::Null)).collect();
    for (name, number) in wanted {
        let shown = seen.capacity.get(name);
        let less = shown.is_some_and(|shown| shown > number);
        if shown != Some(number) && (synced || !less) {
            capacity.insert(name.clone(), json!(number.to_string()));
        }
    }
    let names: Vec<&str> = wanted.keys().map(String::as_str).collect();
    let note = (!names.is_empty()).then(|| names.join(","));
    if capacity.is_empty() && note == seen.owned {
        return None;
    }
    Some(json!({"metadata": {"annotations": {OWNED: note}}, "status": {"capacity": capacity}}))
}

#[cfg(test)]
mod tests {
    use Stage::{App, Init, Sidecar};

    use super::*;
    use crate::testing::{container, gpu, inventory, pod};

    const MEMORY: &str = "nvidia.com/gpumem";
    const CORES: &str = "nvidia.com/gpucores";

    fn names() -> Names {
        Names {
            memory: MEMORY.to_owned(),
            cores: CORES.to_owned(),
        }
    }

    /// A pod whose containers ask for this memory.
    fn asking(uid: &str, containers: &[(Stage, u64)]) -> Arc<Pod> {
        let mut pod = pod(uid);
        pod.containers = containers
            .iter()
            .map(|&(stage, memory)| {
                let mut container = container("c", stage);
                container.asked.insert(MEMORY.to_owned(), memory);
                container
            })
            .collect();
        Arc::new(pod)
    }

    #[test]
    fn the_units_that_take_written_numbers_are_summed() {
        let mut inventory = inventory(&["GPU-a", "GPU-b", "GPU-c"]);
        inventory.gpus[1].mode = Mode::Timeslice;
        inventory.gpus[2].scaled = aliquot_core::Mib(20_000);
        inventory.gpus.push(gpu("GPU-d", 3));
        inventory.gpus[3].mode = Mode::Mig;
        let found = wanted(&inventory, &[], Some(&names()));
        let expected = [(MEMORY.to_owned(), 30_000), (CORES.to_owned(), 200)];
        assert_eq!(found, expected.into());
        assert!(wanted(&inventory, &[], None).is_empty());
    }

    #[test]
    fn never_less_is_published_than_living_pods_ask_for() {
        let check = |pods: &[Arc<Pod>], expected: u64| {
            let found = wanted(&inventory(&["GPU-a"]), pods, Some(&names()));
            assert_eq!(found[MEMORY], expected);
        };
        check(&[asking("u1", &[(App, 4_000)])], 10_000);
        let two = [asking("u1", &[(App, 8_000)]), asking("u2", &[(App, 8_000)])];
        check(&two, 16_000);
        let mut ended = Pod::clone(&two[1]);
        ended.phase = Phase::Ended;
        check(&[Arc::clone(&two[0]), Arc::new(ended)], 10_000);
        // An init container runs beside the sidecars before it, not beside apps.
        let pod = asking("u1", &[(Sidecar, 5_000), (Init, 9_000), (App, 7_000)]);
        check(&[pod], 14_000);
        let pod = asking("u1", &[(Init, 9_000), (Sidecar, 5_000), (App, 7_000)]);
        check(&[pod], 12_000);
    }

    fn seen(shown: Option<&str>, owned: Option<&str>) -> Seen {
        let node = json!({
            "metadata": {"annotations": owned.map(|text| json!({OWNED: text}))},
            "status": {"capacity": shown.map(|text| json!({MEMORY: text, "cpu": "2500m"}))},
        });
        Seen::read(&serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn capacity_is_written_once_and_taken_away_when_switched_off() {
        let check = |number: Option<u64>, seen: &Seen, synced: bool, expected: Value| {
            let wanted = number.map(|number| (MEMORY.to_owned(), number));
            let found = patch(&wanted.into_iter().collect(), seen, synced);
            let found = found.map_or(Value::Null, |patch| {
                let note = &patch["metadata"]["annotations"][OWNED];
                json!([patch["status"]["capacity"], note])
            });
            assert_eq!(found, expected, "{seen:?}");
        };
        let ours = Some(MEMORY);
        let written = json!([{MEMORY: "80000"}, MEMORY]);
        check(Some(80_000), &seen(None, None), true, written);
        check(Some(80_000), &seen(Some("80k"), ours), true, Value::Null);
        let more = json!([{MEMORY: "90000"}, MEMORY]);
        check(Some(90_000), &seen(Some("80k"), ours), false, more);
        // Who lives here is not known yet.
        check(Some(70_000), &seen(Some("80k"), ours), false, Value::Null);
        check(
            None,
            &seen(Some("80k"), ours),
            true,
            json!([{MEMORY: null}, null]),
        );
        // Somebody else's stays.
        check(None, &seen(Some("80k"), None), true, Value::Null);
    }
}

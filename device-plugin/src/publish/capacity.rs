//! Publishes GPU memory and compute as capacity of the Node object, for the kubelet, Kueue and
//! dashboards. Off unless the administrator enables it. An annotation of the node lists what was
//! published, so that it can be removed. It never publishes less than the node's live pods request:
//! a kubelet that restarts would kill them.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::inventory::Inventory;
use aliquot_core::quantity;
use aliquot_core::usage;
use serde_json::{Map, Value, json};

use crate::gpus::allocatable::replicas_by_resource;
use crate::modes;
use crate::node_view::NodeView;
use crate::pods::pod::{Phase, Pod};
use crate::settings::Settings;

/// The node annotation that lists the published resources, separated by commas.
pub const OWNED: &str = "aliquot.dev/capacity";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityResources {
    /// MiB.
    pub memory: String,
    /// Percent of a device.
    pub cores: String,
}

impl CapacityResources {
    /// Where the capacity is published.
    pub(crate) fn from_settings(settings: &Settings) -> Option<Self> {
        settings.node_capacity.then(|| Self {
            memory: settings.resource_mem.clone(),
            cores: settings.resource_cores.clone(),
        })
    }
}

/// The capacity to publish: what the devices may promise of memory and compute, and at least what
/// live pods request.
pub fn desired(
    inventory: &Inventory,
    pods: &[Arc<Pod>],
    names: Option<&CapacityResources>,
) -> BTreeMap<String, u64> {
    let Some(names) = names else {
        return BTreeMap::new();
    };
    let devices = inventory.gpus.iter().filter(|device| {
        let enforces_amounts = modes::of_device(device.mode).enforces_amounts();
        enforces_amounts && !replicas_by_resource(device).is_empty()
    });
    let (mut memory, mut cores) = (0_u64, 0_u64);
    for device in devices {
        memory = memory.saturating_add(device.scaled.0);
        cores = cores.saturating_add(device.cores.0.into());
    }
    let live = |name: &str| {
        let live = pods.iter().filter(|pod| pod.phase != Phase::Ended);
        let all = live.map(|pod| requested(pod, name));
        all.fold(0, u64::saturating_add)
    };
    let each = [(&names.memory, memory), (&names.cores, cores)];
    each.map(|(name, whole)| (name.clone(), whole.max(live(name))))
        .into()
}

/// A pod's request as the kubelet counts it: not multiplied by the number of devices.
fn requested(pod: &Pod, name: &str) -> u64 {
    let requests = pod.containers.iter().map(|container| {
        let own = container.requested.get(name).copied();
        (container.stage, own.unwrap_or_default())
    });
    usage::over_life(requests, u64::saturating_add, u64::max)
}

/// The patch of the node's status, if one is needed. Lowers nothing before the pods are known
/// (`synced`).
pub fn patch(desired: &BTreeMap<String, u64>, view: &NodeView, synced: bool) -> Option<Value> {
    let resources = view.resources.iter();
    let current = resources.filter_map(|(name, (capacity, _))| {
        let number = quantity::whole(capacity).ok()?;
        Some((name.as_str(), number))
    });
    let current: BTreeMap<&str, u64> = current.collect();
    let owned = view.annotation(OWNED);
    let mut capacity: Map<String, Value> = owned
        .unwrap_or_default()
        .split(',')
        .filter(|name| !desired.contains_key(*name) && current.contains_key(*name))
        .map(|name| (name.to_owned(), Value::Null))
        .collect();
    for (name, number) in desired {
        let shown = current.get(name.as_str());
        let less = shown.is_some_and(|shown| shown > number);
        if shown != Some(number) && (synced || !less) {
            capacity.insert(name.clone(), json!(number.to_string()));
        }
    }
    let names: Vec<&str> = desired.keys().map(String::as_str).collect();
    let note = (!names.is_empty()).then(|| names.join(","));
    if capacity.is_empty() && note.as_deref() == owned {
        return None;
    }
    Some(json!({"metadata": {"annotations": {OWNED: note}}, "status": {"capacity": capacity}}))
}

#[cfg(test)]
mod tests {
    use aliquot_core::inventory::Mode;
    use aliquot_core::usage::Stage::{self, App, Init, Sidecar};

    use super::*;
    use crate::testing::{container, gpu, inventory, pod};

    const MEMORY: &str = "nvidia.com/gpumem";
    const CORES: &str = "nvidia.com/gpucores";

    fn names() -> CapacityResources {
        CapacityResources {
            memory: MEMORY.to_owned(),
            cores: CORES.to_owned(),
        }
    }

    /// A pod whose containers request this memory.
    fn asking(uid: &str, containers: &[(Stage, u64)]) -> Arc<Pod> {
        let mut pod = pod(uid);
        pod.containers.clear();
        for &(stage, memory) in containers {
            let mut container = container("c", stage);
            container.requested.insert(MEMORY.to_owned(), memory);
            pod.containers.push(container);
        }
        Arc::new(pod)
    }

    #[test]
    fn sums_devices_that_enforce_amounts() {
        let mut inventory = inventory(&["GPU-a", "GPU-b", "GPU-c"]);
        inventory.gpus[1].mode = Mode::Timeslice;
        inventory.gpus[2].scaled = aliquot_core::Mib(20_000);
        inventory.gpus.push(gpu("GPU-d", 3));
        inventory.gpus[3].mode = Mode::Mig;
        let found = desired(&inventory, &[], Some(&names()));
        let expected = [(MEMORY.to_owned(), 30_000), (CORES.to_owned(), 200)];
        assert_eq!(found, expected.into());
        assert!(desired(&inventory, &[], None).is_empty());
    }

    #[test]
    fn never_publishes_less_than_live_pods_request() {
        let check = |pods: &[Arc<Pod>], expected: u64| {
            let found = desired(&inventory(&["GPU-a"]), pods, Some(&names()));
            assert_eq!(found[MEMORY], expected);
        };
        check(&[asking("u1", &[(App, 4_000)])], 10_000);
        let two = [asking("u1", &[(App, 8_000)]), asking("u2", &[(App, 8_000)])];
        check(&two, 16_000);
        let most = asking("u1", &[(App, u64::MAX)]);
        check(&[Arc::clone(&most), most], u64::MAX);
        let mut ended = Pod::clone(&two[1]);
        ended.phase = Phase::Ended;
        check(&[Arc::clone(&two[0]), Arc::new(ended)], 10_000);
        // An init container runs beside neither the sidecars after it nor apps.
        let pod = asking("u1", &[(Init, 9_000), (Sidecar, 5_000), (App, 7_000)]);
        check(&[pod], 12_000);
    }

    fn seen(current_value: Option<&str>, owned: Option<&str>) -> NodeView {
        let node = json!({
            "metadata": {"annotations": owned.map(|text| json!({OWNED: text}))},
            "status": {"capacity": current_value.map(|text| json!({MEMORY: text, "cpu": "2500m"}))},
        });
        NodeView::read(&serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn writes_capacity_once_and_removes_it_when_off() {
        let check = |number: Option<u64>, current: &NodeView, synced: bool, expected: Value| {
            let desired = number.map(|number| (MEMORY.to_owned(), number));
            let found = patch(&desired.into_iter().collect(), current, synced);
            let found = found.map_or(Value::Null, |patch| {
                let note = &patch["metadata"]["annotations"][OWNED];
                json!([patch["status"]["capacity"], note])
            });
            assert_eq!(found, expected, "{current:?}");
        };
        let ours = Some(MEMORY);
        let written = json!([{MEMORY: "80000"}, MEMORY]);
        check(Some(80_000), &seen(None, None), true, written);
        check(Some(80_000), &seen(Some("80k"), ours), true, Value::Null);
        let more = json!([{MEMORY: "90000"}, MEMORY]);
        check(Some(90_000), &seen(Some("80k"), ours), false, more);
        // The node's pods are not known yet.
        check(Some(70_000), &seen(Some("80k"), ours), false, Value::Null);
        let none = json!([{MEMORY: null}, null]);
        check(None, &seen(Some("80k"), ours), true, none);
        // Another owner's stays.
        check(None, &seen(Some("80k"), None), true, Value::Null);
    }
}

//! Replicas at the kubelet: what a node offers and what a pod requests, whoever scheduled
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::request::{Resource, is_other};
use aliquot_core::{Inventory, Replicas, Requests, mig, quantity, replicas};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use parking_lot::Mutex;

use crate::pod::{self, Settings};
use crate::view::{ContainerView, PodView};

/// Names that are interned: a cluster has a handful, and tenants may make up any number.
const MAX_INTERNED: usize = 64;
static NAMES: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());

/// An interned resource name. Thousands of nodes and pods use the same few; with one shared
/// string they stay in the processor's cache.
fn interned(name: &str) -> Arc<str> {
    let mut names = NAMES.lock();
    if let Some(known) = names.iter().find(|known| ***known == *name) {
        return Arc::clone(known);
    }
    let new: Arc<str> = name.into();
    if names.len() < MAX_INTERNED {
        names.push(Arc::clone(&new));
    }
    new
}

/// What `status.allocatable` offers of the resources of the node's devices. `None` without
/// any status, as before a kubelet has reported: kube-scheduler does not offer such a node.
pub fn offered(node: &Node, inventory: &Inventory) -> Option<Replicas> {
    let all = node.status.as_ref()?.allocatable.as_ref()?;
    let is_ours = |name: &str| {
        let mut gpus = inventory.gpus.iter();
        name.starts_with(mig::RESOURCES) || gpus.any(|gpu| gpu.resource == name)
    };
    let ours = all.iter().filter(|(name, _)| is_ours(name));
    Some(
        ours.map(|(name, q)| (interned(name), count(q, 0)))
            .collect(),
    )
}

/// What a pod requests of its node besides shares of devices, whoever scheduled it.
pub fn requests(pod: &PodView, settings: &Settings) -> Requests {
    Requests {
        host: pod::requested_host_resources(pod),
        replicas: requested(pod, settings),
        models: pod::models(pod),
    }
}

fn requested(pod: &PodView, settings: &Settings) -> Replicas {
    let usual = settings.names.of(Resource::Gpu);
    let ours = |name: &str| name == usual || is_other(name, &settings.extra);
    let containers = pod.containers();
    let amounts = containers.flat_map(|(one, _)| pod::amounts(one.resources.as_ref()));
    let mut names: Vec<&str> = amounts
        .flatten()
        .flat_map(BTreeMap::keys)
        .map(String::as_str)
        .filter(|name| ours(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let under = |name: &str| {
        let containers = pod.containers();
        replicas::effective(containers.map(|(c, stage)| (stage, requested_under(c, name))))
    };
    names
        .into_iter()
        .map(|name| (interned(name), under(name)))
        .collect()
}

fn requested_under(container: &ContainerView, name: &str) -> u32 {
    // Requests, then limits: for device resources they are equal if both are written.
    let found = pod::amounts(container.resources.as_ref())
        .into_iter()
        .rev()
        .flatten()
        .find_map(|amounts| amounts.get(name));
    // Invalid quantities count as more than any node has.
    found.map_or(0, |quantity| count(quantity, u32::MAX))
}

/// The quantity, or `invalid` if it is not a whole number of 32 bits; the API server admits
/// no such one.
fn count(quantity: &Quantity, invalid: u32) -> u32 {
    let number = quantity::whole(&quantity.0).ok();
    number
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(spec: &Value, expected: &[(&str, u32)]) {
        let pod: PodView = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let settings = Settings {
            extra: vec!["nvidia.com/gpu.shared".to_owned()],
            ..Settings::default()
        };
        let expected: Replicas = expected
            .iter()
            .map(|(name, n)| ((*name).into(), *n))
            .collect();
        assert_eq!(requests(&pod, &settings).replicas, expected, "{spec}");
    }

    fn container(resources: &Value) -> Value {
        json!({"name": "c", "resources": resources})
    }

    #[test]
    fn counts_replicas_under_each_resource() {
        let one = |name: &str, count: &str| container(&json!({"limits": {name: count}}));
        let gpu = one("nvidia.com/gpu", "2");
        check(&json!({"containers": [{"name": "c"}]}), &[]);
        check(
            &json!({"containers": [one("cpu", "3"), one("nvidia.com/gpumem", "3k")]}),
            &[],
        );
        check(&json!({"containers": [gpu, gpu]}), &[("nvidia.com/gpu", 4)]);
        check(
            &json!({"initContainers": [one("nvidia.com/gpu", "3")], "containers": [gpu]}),
            &[("nvidia.com/gpu", 3)],
        );
        let renamed = one("nvidia.com/gpu.shared", "1");
        let instance = container(&json!({"requests": {"nvidia.com/mig-1g.5gb": "1"}}));
        check(
            &json!({"containers": [gpu, renamed, instance, one("nvidia.com/other", "1")]}),
            &[
                ("nvidia.com/gpu", 2),
                ("nvidia.com/gpu.shared", 1),
                ("nvidia.com/mig-1g.5gb", 1),
            ],
        );
        check(
            &json!({"containers": [one("nvidia.com/gpu", "1k"), one("nvidia.com/gpu", "?")]}),
            &[("nvidia.com/gpu", u32::MAX)],
        );
    }
}

//! Seats of the kubelet: what a node offers and what a pod requests.
//!
//! Fed by: watches, extender calls with Node objects, and `kubectl-aliquot`.
//! Must not: leave out a pod because it is not ours; the kubelet counts all.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_core::request::{Resource, is_other};
use aliquot_core::{Inventory, Requests, Seats, mig, quantity, seats};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use parking_lot::Mutex;

use crate::compute;
use crate::pod::{self, Settings};

/// How many names of resources are shared: a cluster has a handful, and tenants may make
/// up any number.
const SHARED: usize = 64;
static NAMES: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());

/// A name of a resource. Thousands of nodes and pods name the same few, and all look at
/// one string then, which stays in the processor's cache.
fn shared(name: &str) -> Arc<str> {
    let mut names = NAMES.lock();
    if let Some(known) = names.iter().find(|known| ***known == *name) {
        return Arc::clone(known);
    }
    let new: Arc<str> = name.into();
    if names.len() < SHARED {
        names.push(Arc::clone(&new));
    }
    new
}

/// What `status.allocatable` says of the resources that the node's cards have. `None`
/// where it says nothing at all, such as of a Node that no kubelet has seen yet:
/// kube-scheduler offers none of these.
pub fn offered(node: &Node, inventory: &Inventory) -> Option<Seats> {
    let all = node.status.as_ref()?.allocatable.as_ref()?;
    let ours = |name: &str| {
        let mut gpus = inventory.gpus.iter();
        name.starts_with(mig::RESOURCES) || gpus.any(|gpu| gpu.resource == name)
    };
    let ours = all.iter().filter(|(name, _)| ours(name));
    Some(ours.map(|(name, q)| (shared(name), count(q, 0))).collect())
}

/// What a pod requests of its node besides shares of cards, whoever placed it.
pub fn requests(pod: &Pod, settings: &Settings) -> Requests {
    Requests {
        host: compute::requested(pod),
        seats: requested(pod, settings),
    }
}

fn requested(pod: &Pod, settings: &Settings) -> Seats {
    let usual = settings.names.of(Resource::Gpu);
    let ours = |name: &str| name == usual || is_other(name, &settings.extra);
    let amounts = pod::containers(pod).flat_map(|(container, _)| amounts(container));
    let names = amounts.flatten().flat_map(BTreeMap::keys);
    let mut names: Vec<&str> = names.map(String::as_str).collect();
    names.retain(|name| ours(name));
    names.sort_unstable();
    names.dedup();
    let under = |name: &str| {
        let containers = pod::containers(pod);
        seats::effective(containers.map(|(c, stage)| (stage, wanted(c, name))))
    };
    names
        .into_iter()
        .map(|name| (shared(name), under(name)))
        .collect()
}

/// Requests, then limits: of device resources they are equal where both are written.
fn amounts(container: &Container) -> [Option<&BTreeMap<String, Quantity>>; 2] {
    let resources = container.resources.as_ref();
    [
        resources.and_then(|r| r.requests.as_ref()),
        resources.and_then(|r| r.limits.as_ref()),
    ]
}

fn wanted(container: &Container, name: &str) -> u32 {
    let mut found = amounts(container).into_iter().flatten();
    let found = found.find_map(|amounts| amounts.get(name));
    // What cannot be read is as much as there is.
    found.map_or(0, |quantity| count(quantity, u32::MAX))
}

/// The quantity, or `unclear` where it is no whole number that we count to: the API
/// server lets none pass.
fn count(quantity: &Quantity, unclear: u32) -> u32 {
    let number = quantity::whole(&quantity.0).ok();
    number
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(unclear)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(spec: &Value, expected: &[(&str, u32)]) {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let settings = Settings {
            extra: vec!["nvidia.com/gpu.shared".to_owned()],
            ..Settings::default()
        };
        let expected: Seats = expected
            .iter()
            .map(|(name, n)| ((*name).into(), *n))
            .collect();
        assert_eq!(requests(&pod, &settings).seats, expected, "{spec}");
    }

    fn container(resources: &Value) -> Value {
        json!({"name": "c", "resources": resources})
    }

    #[test]
    fn the_names_that_thousands_of_nodes_use_are_one_string() {
        assert!(Arc::ptr_eq(
            &shared("nvidia.com/gpu"),
            &shared("nvidia.com/gpu")
        ));
        for number in 0..2 * SHARED {
            let made_up = format!("nvidia.com/mig-{number}");
            assert_eq!(&*shared(&made_up), made_up);
        }
        assert!(NAMES.lock().len() <= SHARED);
    }

    #[test]
    fn a_pod_requests_seats_under_each_resource_of_ours() {
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

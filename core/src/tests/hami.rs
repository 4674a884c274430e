//! HAMi's rules as tables: each row begins with the number of its rule, as in
//! docs/migrating-from-hami.md. Rules that are missing here differ, as that page explains.

mod choice;
mod codec;
mod devices;
mod pods;
mod preferences;
mod scores;

use crate::inventory::{Gpu, Inventory};
use crate::node::NodeState;
use crate::preferences::Preferences;
use crate::request::GpuRequest;
use crate::tests::{demand, fit, gpu, inventory};
use crate::{Demand, Stage};

/// An annotation's name and value.
type Annotation<'a> = (&'a str, &'a str);

fn pod(containers: &[(Stage, GpuRequest)], annotations: &[Annotation<'_>]) -> Demand {
    let containers: Vec<_> = containers
        .iter()
        .map(|(s, request)| (*s, Some(*request)))
        .collect();
    let value_of = |key: &str| annotations.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let preferences = Preferences::read(value_of).unwrap();
    Demand {
        node_policy: preferences.node_policy,
        gpu_policy: preferences.gpu_policy,
        rules: preferences.rules,
        ..demand(&containers)
    }
}

/// One app container.
fn requests(request: GpuRequest, annotations: &[Annotation<'_>]) -> Demand {
    pod(&[(Stage::App, request)], annotations)
}

/// A node of devices of 1000 MiB and 4 replicas, each changed by `change`, with what pods
/// use of each: MiB and percent.
fn node_of(used: &[&[(u64, u32)]], change: impl Fn(usize, &mut Gpu)) -> NodeState {
    fit::state(devices(used.len(), change), used)
}

fn devices(count: usize, change: impl Fn(usize, &mut Gpu)) -> Inventory {
    let devices = (0..).take(count).enumerate().map(|(place, index)| {
        let mut device = gpu(index, 1000, 4);
        change(place, &mut device);
        device
    });
    inventory(devices.collect())
}

fn node(used: &[&[(u64, u32)]]) -> NodeState {
    node_of(used, |_, _| {})
}

/// Devices of two NUMA nodes: `first` on the first, the others on the second.
fn halves(used: &[&[(u64, u32)]], first: usize) -> NodeState {
    node_of(used, |place, device| {
        device.numa = Some(u32::from(place >= first));
    })
}

/// Which devices each container gets by this rule, or why the pod does not fit.
fn check(rule: &str, node: &NodeState, demand: &Demand, expected: &str) {
    assert_eq!(fit::shown(node, demand), expected, "rule {rule}");
}

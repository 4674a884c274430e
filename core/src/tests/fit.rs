//! Tables for [`crate::fit`]: a node, a pod, and its devices or the refusal.

use crate::fit::fit;
use crate::inventory::ForeignAllocation;
use crate::node::NodeState;
use crate::refusal::Reason;
use crate::request::GpuRequest;
use crate::score::Policies;
use crate::tests::{demand, gpu, inventory, publication, request, uses};
use crate::units::HostResources;
use crate::usage::AllocatedUse;
use crate::{Inventory, PodUid, Stage};

/// A node of devices of 1000 MiB and 4 replicas, each with the uses given.
fn node(devices: &[&[(u64, u32)]]) -> NodeState {
    let gpus = (0..).zip(devices).map(|(i, _)| gpu(i, 1000, 4)).collect();
    state(inventory(gpus), devices)
}

pub(crate) fn state(inventory: Inventory, devices: &[&[(u64, u32)]]) -> NodeState {
    let mut pods: Vec<(PodUid, AllocatedUse)> = Vec::new();
    for (number, used) in devices.iter().enumerate() {
        for (pod, &(memory, cores)) in used.iter().enumerate() {
            let given = uses(&format!("GPU-{number}"), memory, cores);
            pods.push((format!("{number}-{pod}").into(), given));
        }
    }
    let allocated: Vec<_> = pods.iter().map(|(pod, given)| (pod, given)).collect();
    let published = publication(inventory);
    NodeState::new(&published, &allocated, HostResources::default())
}

/// The devices that each container gets, or why the pod does not fit.
pub(crate) fn shown(node: &NodeState, demand: &crate::Demand) -> String {
    let found = match fit(node, demand, &Policies::default()) {
        Err(refusal) => return refusal.to_string(),
        Ok(found) => found,
    };
    let inventory = node.inventory.as_ref().unwrap();
    let allocation = found.allocation(&"n".into(), inventory, demand);
    let mut all: Vec<_> = allocation
        .all()
        .map(|(name, grants)| {
            let devices: Vec<_> = grants.iter().map(|g| &g.gpu.as_str()[4..]).collect();
            format!("{name}:{}", devices.join("+"))
        })
        .collect();
    all.sort();
    all.join(" ")
}

fn check(node: &NodeState, containers: &[(Stage, Option<GpuRequest>)], expected: &str) {
    assert_eq!(shown(node, &demand(containers)), expected);
}

fn app(count: u32, memory: u64, cores: u32) -> (Stage, Option<GpuRequest>) {
    (Stage::App, Some(request(count, memory, cores)))
}

#[test]
fn pod_of_another_plugin_closes_its_gpu() {
    let mut made = inventory(vec![gpu(0, 1000, 4), gpu(1, 1000, 4)]);
    made.foreign.push(ForeignAllocation {
        gpu: "GPU-0".into(),
        pod: "d/p".to_owned(),
    });
    let node = state(made, &[&[], &[]]);
    let closed: Vec<_> = node.devices.iter().map(|device| device.closed).collect();
    assert_eq!(closed, [Some(Reason::GpuHeldByForeignPod), None]);
}

#[test]
fn unproven_allocation_closes_node_only_with_device_ids() {
    let check = |allocated: &AllocatedUse, listed: &[&str], closed: bool| {
        let mut made = inventory(vec![gpu(0, 1000, 4)]);
        made.unreadable = listed.iter().map(|&pod| pod.into()).collect();
        let pods = [(&"p".into(), allocated)];
        let node = NodeState::new(&publication(made), &pods, HostResources::default());
        let expected = closed.then_some(Reason::NodeAllocationUnreadable);
        assert_eq!(node.closed, expected, "{allocated:?} {listed:?}");
    };
    check(&AllocatedUse::Unproven, &[], false);
    check(&AllocatedUse::Unproven, &["other"], false);
    check(&AllocatedUse::Unproven, &["other", "p"], true);
    check(&AllocatedUse::Unreadable, &[], true);
    check(&AllocatedUse::nothing(), &["p"], false);
}

#[test]
fn init_containers_reuse_devices_of_app_containers() {
    let init = (Stage::Init, Some(request(1, 900, 90)));
    let sidecar = (Stage::Sidecar, Some(request(1, 200, 20)));
    check(
        &node(&[&[], &[(100, 0)]]),
        &[init, app(1, 900, 90)],
        "c0:0 c1:0",
    );
    // 900 beside the sidecar's 200 is too much for one device: the other one is used.
    check(
        &node(&[&[], &[]]),
        &[sidecar, init, app(1, 100, 0)],
        "c0:0 c1:1 c2:1",
    );
    check(
        &node(&[&[]]),
        &[sidecar, init, app(1, 100, 0)],
        "1 CardInsufficientMemory",
    );
    // The init container finishes before the sidecar starts.
    check(
        &node(&[&[]]),
        &[init, sidecar, app(1, 100, 0)],
        "c0:0 c1:0 c2:0",
    );
}

#[test]
fn fits_pod_whatever_the_order_of_its_containers() {
    // Spread puts the small one on the only device that can take the large one.
    check(
        &node(&[&[(300, 0)], &[]]),
        &[app(1, 600, 0), app(1, 1000, 0)],
        "c0:0 c1:1",
    );
}

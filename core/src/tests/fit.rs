//! Tables for [`crate::fit`]: a node, a pod, and its devices or the refusal.

use std::sync::Arc;

use crate::fit::fit;
use crate::inventory::{ForeignAllocation, Health};
use crate::node::{NodePublication, NodeState};
use crate::refusal::Reason;
use crate::request::{GpuRequest, Memory};
use crate::score::Policies;
use crate::tests::{demand, gpu, inventory, request};
use crate::units::{HostResources, Mib, Percent};
use crate::usage::{AllocatedUse, DeviceUse, DeviceUses};
use crate::{Inventory, PodUid, Policy, Stage};

/// A node of devices of 1000 MiB and 4 replicas, each with the uses given.
fn node(devices: &[&[(u64, u32)]]) -> NodeState {
    let gpus = (0..).zip(devices).map(|(i, _)| gpu(i, 1000, 4)).collect();
    state(inventory(gpus), devices)
}

pub(crate) fn state(inventory: Inventory, devices: &[&[(u64, u32)]]) -> NodeState {
    let mut pods = Vec::new();
    for (number, uses) in devices.iter().enumerate() {
        for (pod, &(memory, cores)) in uses.iter().enumerate() {
            let used = DeviceUse::of(Mib(memory), Percent(cores));
            let given = DeviceUses::from([(format!("GPU-{number}").into(), used)]);
            let uid = PodUid::from(format!("{number}-{pod}"));
            pods.push((uid, AllocatedUse::Known(given)));
        }
    }
    let allocated: Vec<_> = pods
        .iter()
        .map(|(pod, allocated)| (pod, allocated))
        .collect();
    let published = NodePublication {
        inventory: Some(Arc::new(inventory)),
        cordoned: vec!["GPU-9".into()],
        ..NodePublication::default()
    };
    NodeState::of(&published, &allocated, HostResources::default())
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
fn refuses_each_device_for_one_reason() {
    check(
        &node(&[&[(600, 0)]]),
        &[app(1, 500, 0)],
        "1 CardInsufficientMemory",
    );
    check(
        &node(&[&[(1, 60)]]),
        &[app(1, 1, 50)],
        "1 CardInsufficientCore",
    );
    check(
        &node(&[&[(1, 60), (1, 40)]]),
        &[app(1, 1, 0)],
        "1 CardComputeUnitsExhausted",
    );
    check(
        &node(&[&[(1, 0)]]),
        &[app(1, 1, 100)],
        "1 ExclusiveDeviceAllocateConflict",
    );
    check(
        &node(&[&[(1, 100)]]),
        &[app(1, 1, 0)],
        "1 CardComputeUnitsExhausted",
    );
    check(
        &node(&[&[(1, 0); 4]]),
        &[app(1, 1, 0)],
        "1 CardTimeSlicingExhausted",
    );
    check(&node(&[&[]]), &[app(2, 1, 0)], "1 NodeInsufficientDevice");
    check(
        &node(&[&[], &[(900, 0)]]),
        &[app(2, 500, 0)],
        "1 CardInsufficientMemory, 1 AllocatedCardsInsufficientRequest",
    );
    let unknown = NodeState::of(&NodePublication::default(), &[], HostResources::default());
    check(&unknown, &[app(1, 1, 0)], "1 NodeNotRegistered");
    let known = NodePublication {
        inventory: Some(Arc::new(inventory(vec![gpu(0, 1000, 4)]))),
        ..NodePublication::default()
    };
    let pods = [(&"p".into(), &AllocatedUse::Unreadable)];
    let full = NodeState::of(&known, &pods, HostResources::default());
    check(&full, &[app(1, 1, 0)], "1 NodeAllocationUnreadable");
    let mut sick = inventory(vec![gpu(0, 1000, 4)]);
    sick.gpus[0].health = Health::Unhealthy("xid 79".to_owned());
    let sick = state(sick, &[&[]]);
    let out = state(inventory(vec![gpu(9, 1000, 4)]), &[&[]]);
    check(&out, &[app(1, 1, 0)], "1 CardCordoned");
    let mut other = inventory(vec![gpu(0, 1000, 4)]);
    other.gpus[0].resource = "nvidia.com/other".to_owned();
    check(&state(other, &[&[]]), &[app(1, 1, 0)], "1 CardTypeMismatch");
    check(&sick, &[app(1, 1, 0)], "1 CardNotHealth");
}

#[test]
fn counts_hami_allocation_only_of_pods_with_device_ids() {
    let share = DeviceUse::of(Mib(600), Percent(0));
    let known = AllocatedUse::ByHami(Some([("GPU-0".into(), share)].into()));
    let (pod, unreadable) = ("p".into(), AllocatedUse::ByHami(None));
    let check = |served_by_hami, holds: bool, allocated: &AllocatedUse, expected| {
        let mut made = inventory(vec![gpu(0, 1000, 4)]);
        if holds {
            made.foreign.push(ForeignAllocation {
                gpu: "GPU-0".into(),
                pod: "d/p".to_owned(),
                hami: Some("p".into()),
            });
        }
        let published = NodePublication {
            inventory: Some(Arc::new(made)),
            served_by_hami,
            ..NodePublication::default()
        };
        let node = NodeState::of(&published, &[(&pod, allocated)], HostResources::default());
        let used = node.devices[0].allocated.used.memory.0;
        let found = (node.closed, node.devices[0].closed, used);
        assert_eq!(found, expected, "{served_by_hami} {holds} {allocated:?}");
    };
    // Whoever writes the annotation to a pod without device ids changes nothing.
    check(false, false, &known, (None, None, 0));
    check(false, false, &unreadable, (None, None, 0));
    check(false, true, &known, (None, None, 600));
    let closed = Some(Reason::NodeAllocationUnreadable);
    check(false, true, &unreadable, (closed, None, 0));
    // Where the annotation is not read, the whole GPU counts.
    let foreign = Some(Reason::CardHeldByForeignPod);
    check(false, true, &AllocatedUse::nothing(), (None, foreign, 0));
    let theirs = Some(Reason::NodeServedByHami);
    check(true, false, &known, (theirs, None, 600));
}

#[test]
fn unproven_allocation_closes_node_only_with_device_ids() {
    let check = |allocated: &AllocatedUse, listed: &[&str], closed: bool| {
        let mut made = inventory(vec![gpu(0, 1000, 4)]);
        made.unreadable = listed.iter().map(|&pod| pod.into()).collect();
        let published = NodePublication {
            inventory: Some(Arc::new(made)),
            ..NodePublication::default()
        };
        let pods = [(&"p".into(), allocated)];
        let node = NodeState::of(&published, &pods, HostResources::default());
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
fn spreads_containers_and_counts_over_devices() {
    check(&node(&[&[(1, 0)], &[]]), &[app(1, 500, 0)], "c0:1");
    check(&node(&[&[], &[]]), &[app(2, 500, 10)], "c0:0+1");
    check(
        &node(&[&[], &[]]),
        &[app(1, 500, 10), app(1, 500, 10)],
        "c0:0 c1:1",
    );
    check(
        &node(&[&[]]),
        &[app(1, 500, 50), app(1, 500, 50)],
        "c0:0 c1:0",
    );
    check(
        &node(&[&[]]),
        &[app(1, 500, 50), app(1, 501, 50)],
        "1 CardInsufficientMemory",
    );
}

#[test]
fn resolves_percentage_on_the_chosen_device() {
    let half = GpuRequest {
        memory: Memory::Share(Percent(50)),
        ..request(1, 0, 0)
    };
    check(
        &node(&[&[(501, 0)]]),
        &[(Stage::App, Some(half))],
        "1 CardInsufficientMemory",
    );
    check(&node(&[&[(500, 0)]]), &[(Stage::App, Some(half))], "c0:0");
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

#[test]
fn binpack_prefers_the_fuller_node_and_spread_the_emptier() {
    let full = node(&[&[(500, 50)], &[]]);
    let empty = node(&[&[], &[]]);
    let mut demand = demand(&[app(1, 100, 10)]);
    let score = |node: &NodeState, demand: &crate::Demand| {
        fit(node, demand, &Policies::default()).unwrap().score
    };
    assert!(score(&full, &demand) > score(&empty, &demand));
    demand.node_policy = Some(Policy::Spread);
    assert!(score(&full, &demand) < score(&empty, &demand));
}

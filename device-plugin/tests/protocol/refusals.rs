//! A container starts whose pod or GPU is not as it was bound: what the pod's user reads.

use aliquot_device_plugin::gpus::allocatable::{AllocatedIds, GpuLayout};
use aliquot_device_plugin::gpus::inventory::GpuReadings;
use aliquot_device_plugin::pods::pod::Pod;
use aliquot_nvml::{DeviceHealth, DriverHealth};
use aliquot_profiles::Mode;
use aliquot_profiles::mode::{Mps, Timeslice};

use crate::node::{Node, node};

fn change_pod(node: &Node, change: impl FnOnce(&mut Pod)) {
    let bound = node.pods.get(&"u1".into()).expect("bound");
    let mut pod = Pod::clone(&bound);
    change(&mut pod);
    node.pods.apply(pod);
}

fn edit_allocation(node: &Node, from: &str, to: &str) {
    let edited = |text: String| {
        assert!(text.contains(from), "{text}");
        text.replace(from, to)
    };
    change_pod(node, |pod| {
        pod.allocation = pod.allocation.take().map(edited);
    });
}

fn change_layout(node: &Node, change: impl FnOnce(&mut GpuLayout)) {
    let published = &node.allocations.published;
    let mut layout = published.get().layout.clone();
    change(layout.gpus.get_mut("GPU-a").expect("a GPU"));
    published.set_layout(layout, None);
}

fn change_readings(node: &Node, change: impl FnOnce(&mut GpuReadings)) {
    let published = &node.allocations.published;
    let mut readings = published.get().readings.clone();
    change(&mut readings);
    published.set_readings(readings, AllocatedIds::new());
}

/// What happens to a node, and how the refusal begins that it causes.
type Cause = (fn(&Node), &'static str);

/// The other causes are in tests of their own.
#[tokio::test(flavor = "multi_thread")]
async fn names_the_cause_of_each_refusal() {
    let causes: [Cause; 11] = [
        (
            |node| node.pods.delete(&"u1".into()),
            "the API server has no pod with uid u1 on this node",
        ),
        (
            |node| edit_allocation(node, "\"v\":1", "\"v\":9"),
            "annotation aliquot.dev/allocation of default/u1 is invalid",
        ),
        (
            |node| edit_allocation(node, "\"n1\"", "\"n2\""),
            "the pod's allocation is for node n2",
        ),
        (
            |node| edit_allocation(node, "\"main\"", "\"side\""),
            "the pod's allocation has no devices for container main",
        ),
        (
            |node| edit_allocation(node, "GPU-a", "GPU-z"),
            "GPU-z of the pod's allocation is no longer on this node",
        ),
        (
            |node| {
                edit_allocation(node, "3000", "0");
                edit_allocation(node, "30", "0");
            },
            "the pod's allocation of GPU-a has no amounts",
        ),
        (
            |node| change_layout(node, |gpu| gpu.mode = Mode::Timeslice(Timeslice::new(3))),
            "3000 MiB and 30 % compute of GPU-a, whose sharing mode is now timeslice",
        ),
        (
            |node| {
                change_layout(node, |gpu| gpu.mode = Mode::Mps(Mps::new(3)));
                change_pod(node, |pod| pod.containers[0].mounts_shm = true);
            },
            "container main mounts a volume at /dev/shm",
        ),
        (
            |node| {
                change_layout(node, |gpu| {
                    gpu.cordon = Some("changes from vgpu to exclusive".to_owned());
                    gpu.switching = true;
                });
            },
            "GPU-a of the pod's allocation changes from vgpu to exclusive",
        ),
        (
            |node| {
                change_readings(node, |read| {
                    let (uuid, health) = ("GPU-a".to_owned(), DriverHealth::Xid(79));
                    read.health = vec![DeviceHealth { uuid, health }];
                });
            },
            "GPU-a of the pod's allocation is unhealthy (xid 79)",
        ),
        (
            |node| change_readings(node, |read| read.facts.gpus[0].mig.enabled = true),
            "GPU-a has too little capacity left for this pod (CardTypeMismatch)",
        ),
    ];
    for (cause, expected) in causes {
        let mut node = node().connected().await;
        node.bind("u1", "GPU-a", 3000);
        node.admit("u1", "GPU-a::0").await;
        cause(&node);
        let error = node.start("GPU-a::0").await.expect_err(expected);
        assert!(error.contains(expected), "{error}");
        assert_eq!(node.files(), 0, "{expected}");
    }
}

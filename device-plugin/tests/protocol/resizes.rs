//! Resizes of a running container: what is on its limits page and what the node reports, while a
//! process of the container uses memory.

use std::path::Path;
use std::sync::Arc;

use aliquot_core::Allocation;
use aliquot_core::inventory::ResizeReport;
use aliquot_core::resize::RESIZE_STATUS;
use aliquot_device_plugin::allocation::accepted::Store;
use aliquot_device_plugin::allocation::resize;
use aliquot_node_state::container_directory::{ContainerDirectory, LIB};
use aliquot_region::limits::HostLimitsPage;
use aliquot_region::slot::ProcessSlot;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::kubelet::DEADLINE;
use crate::node::{Node, RESOURCE, node, pod};

const MIB: u64 = 1 << 20;

fn allocation(memory: u64, cores: u32) -> Value {
    let grant = json!([{"resource": RESOURCE, "gpu": "GPU-a", "memory": memory, "cores": cores}]);
    json!({"v": 1, "node": "n1", "containers": {"main": grant}, "init": {}, "priority": 1})
}

/// The pod's allocation, and what the scheduler granted.
fn grant(node: &Node, generation: u64, allocation: &Value, to: &Value) {
    let status = json!({"v": 1, "generation": generation, "state": "waiting", "message": "",
        "request": "", "pending": {"to": to, "from": allocation, "until": 9}});
    let mut granted = pod("u1", &[("main", false, "GPU-a", 1)]);
    granted.allocation = Some(allocation.to_string());
    granted.resize = Some(status.to_string());
    node.pods.apply(granted);
}

/// The node's report of this number.
async fn report(node: &Node, generation: u64) -> ResizeReport {
    reported(node, |report| report.generation == generation).await
}

/// That it is applied.
async fn applied(node: &Node, generation: u64) {
    let applied = |report: &ResizeReport| report.generation == generation && report.waits.is_none();
    assert_eq!(reported(node, applied).await.refused, None);
}

async fn reported(node: &Node, wanted: impl Fn(&ResizeReport) -> bool) -> ResizeReport {
    let mut published = node.allocations.published.subscribe();
    let found = published.wait_for(|node| node.inventory.resizes.iter().any(&wanted));
    let found = tokio::time::timeout(DEADLINE, found).await;
    let found = found.expect("reported in time").expect("published");
    let report = found.inventory.resizes.iter().find(|report| wanted(report));
    report.cloned().expect("found")
}

/// Memory and compute on the limits page.
fn limits(directory: &Path) -> (u64, u32) {
    let page = HostLimitsPage::open(&ContainerDirectory::new(directory).limits()).expect("a page");
    (page.page().memory(0) / MIB, page.page().cores(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn resizes_running_container_but_never_below_its_use() {
    let mut node = node().connected().await;
    node.bind("u1", "GPU-a", 3000);
    let name = node.admit("u1", "GPU-a::0").await;
    let before = allocation(3000, 30);
    let stop = CancellationToken::new();
    let resizing = tokio::spawn(resize::run(Arc::clone(&node.starter), stop.clone()));

    // Not before the pod has started.
    let larger = allocation(8000, 50);
    grant(&node, 1, &larger, &larger);
    let waits = report(&node, 1).await.waits;
    assert_eq!(
        waits.as_deref(),
        Some("the pod has not started on its node")
    );
    grant(&node, 1, &before, &before);
    node.start("GPU-a::0").await.expect("accepted");
    let directory = node
        .allocations
        .paths
        .container_directories
        .join(&name["aliquot.dev/vgpu=".len()..]);
    assert_eq!(limits(&directory), (3000, 30));

    grant(&node, 2, &larger, &larger);
    applied(&node, 2).await;
    assert_eq!(limits(&directory), (8000, 50));

    // The container's processes are counted, as with the limiter.
    std::fs::create_dir(directory.join(LIB)).expect("made");
    let counters = directory.join("counters/slots");
    let node_of_driver = Path::new("/dev/null");
    let process = ProcessSlot::take(&counters, None, node_of_driver).expect("a slot");
    process
        .reserve(0, 5000 * MIB, 8000 * MIB)
        .expect("within the limit");
    let smaller = allocation(4000, 20);
    grant(&node, 3, &larger, &smaller);
    let waits = report(&node, 3).await.waits;
    assert_eq!(
        waits.as_deref(),
        Some("container main uses more than 4000 MiB of GPU-a; what would fit: 5120 MiB")
    );
    assert_eq!(
        limits(&directory),
        (8000, 50),
        "its next allocation must not fail"
    );
    process.release(0, 1000 * MIB);
    applied(&node, 3).await;
    assert_eq!(limits(&directory), (4000, 20));

    // A stored share survives a restart, and an older grant changes nothing.
    let store = Store::open(node.allocations.paths.accepted.clone()).expect("opened");
    let stored = store.get(&"u1".into()).expect("stored");
    assert_eq!(stored.resize, Some(3));
    assert_eq!(stored.allocation.containers["main"][0].memory.0, 4000);
    grant(&node, 2, &larger, &larger);
    let waits = report(&node, 2).await.waits;
    assert_eq!(waits.as_deref(), Some("a later one is enforced"));

    // What the annotation does not prove.
    grant(&node, 4, &smaller, &larger);
    let refused = report(&node, 4).await.refused;
    assert_eq!(
        refused.as_deref(),
        Some("it is more than the pod's allocation")
    );
    let too_large = allocation(10_001, 20);
    grant(&node, 5, &too_large, &too_large);
    let refused = report(&node, 5).await.refused.expect("refused");
    assert!(refused.contains("CardInsufficientMemory"), "{refused}");
    assert_eq!(limits(&directory), (4000, 20));

    // Answered: nothing more to report.
    node.pods
        .apply(pod("u1", &[("main", false, "GPU-a", 4000)]));
    let mut published = node.allocations.published.subscribe();
    let answered = published.wait_for(|node| node.inventory.resizes.is_empty());
    let answered = tokio::time::timeout(DEADLINE, answered).await;
    assert!(
        answered.is_ok_and(|found| found.is_ok()),
        "{RESIZE_STATUS} is gone"
    );
    stop.cancel();
    resizing.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn resize_of_a_killed_agent_is_not_applied_above_it() {
    let mut node = node().connected().await;
    let name = node.run("u1", "GPU-a", 3000, "GPU-a::0").await;
    let directories = &node.allocations.paths.container_directories;
    let directory = directories.join(&name["aliquot.dev/vgpu=".len()..]);
    std::fs::create_dir(directory.join(LIB)).expect("made");
    let counters = directory.join("counters/slots");
    let process = ProcessSlot::take(&counters, None, Path::new("/dev/null")).expect("a slot");
    process
        .reserve(0, 2500 * MIB, 3000 * MIB)
        .expect("within the limit");
    // The agent ended when it had stored the smaller share, before it looked again.
    let (before, smaller) = (allocation(3000, 30), allocation(1000, 30));
    {
        let mut store = node.allocations.store.lock();
        let stored = store.get(&"u1".into()).expect("stored");
        let to = Allocation::decode(&smaller.to_string()).expect("an allocation");
        let resized = stored.resized(to, 1);
        store.put(resized).expect("stored");
    }
    grant(&node, 1, &before, &smaller);
    let stop = CancellationToken::new();
    let resizing = tokio::spawn(resize::run(Arc::clone(&node.starter), stop.clone()));
    let waits = report(&node, 1).await.waits;
    assert_eq!(
        waits.as_deref(),
        Some("container main uses more than 1000 MiB of GPU-a; what would fit: 2560 MiB")
    );
    process.release(0, 1600 * MIB);
    applied(&node, 1).await;
    stop.cancel();
    resizing.await.expect("no panic");
}

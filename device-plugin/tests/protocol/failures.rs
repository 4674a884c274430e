//! Failures around the agent: a runtime without CDI, files that cannot be removed, damaged files,
//! another device plugin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_core::inventory::RefusedPod;
use aliquot_device_plugin::allocation::accepted::Store;
use aliquot_device_plugin::allocation::housekeeping;
use aliquot_device_plugin::gpus::inventory::RuntimeStatus;
use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use aliquot_device_plugin::kubelet::resource_owner::ResourceOwnerMonitor;
use aliquot_device_plugin::metrics::{Metrics, Outcome};
use aliquot_k8s::event;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::kubelet::{DEADLINE, Kubelet};
use crate::node::{Node, RESOURCE, node, node_with_unknown_runtime, pod};

/// Failed registrations after which the pause between them is 3.2 s.
const TRIES: u64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn mig_14_refuses_start_under_runtime_without_cdi() {
    let mut node = node().connected().await;
    node.bind("u1", "GPU-a", 1);
    node.admit("u1", "GPU-a::0").await;
    let old = "containerd 1.6.20 does not support CDI";
    let without = RuntimeStatus {
        without_cdi: Some(old.to_owned()),
        ..RuntimeStatus::default()
    };
    node.allocations.published.set_runtime(without);
    let refused = node.start("GPU-a::0").await.expect_err("refused");
    assert!(refused.contains(old), "{refused}");
    assert_eq!(node.files(), 0);
    let with = RuntimeStatus::default();
    node.allocations.published.set_runtime(with);
    node.start("GPU-a::0").await.expect("accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_runtime_inspection_before_first_start() {
    let mut node = node_with_unknown_runtime().connected().await;
    node.bind("u1", "GPU-a", 1);
    node.admit("u1", "GPU-a::0").await;
    let early = tokio::time::timeout(Duration::from_secs(1), node.start("GPU-a::0")).await;
    assert!(early.is_err(), "it did not wait: {early:?}");
    assert_eq!(node.files(), 0);
    let found = RuntimeStatus::default();
    node.allocations.published.set_runtime(found);
    node.start("GPU-a::0").await.expect("accepted");
    // An accepted pod starts again, although the restarted agent knows nothing yet.
    let mut later = node_with_unknown_runtime().connected().await;
    let accepted = node.allocations.paths.accepted.clone();
    *later.allocations.store.lock() = Store::open(accepted).expect("opened");
    later.admit("u1", "GPU-a::0").await;
    later.start("GPU-a::0").await.expect("served");
}

#[tokio::test(flavor = "multi_thread")]
async fn housekeeping_continues_after_failed_removal() {
    let node = node();
    let directories = &node.allocations.paths.container_directories;
    // The name of its spec would be longer than a file's name may be.
    let stuck = directories.join("A".repeat(250));
    for directory in [&stuck, &directories.join("GPU-z-0-1")] {
        std::fs::create_dir_all(directory).expect("made");
    }
    let proc = node.dir.path().join("proc");
    std::fs::create_dir(&proc).expect("made");
    let refused = RefusedPod {
        pod: "gone".into(),
        namespace: "default".to_owned(),
        name: "gone".to_owned(),
        reason: "too little memory".to_owned(),
    };
    node.allocations.published.add_refused(refused, None);
    housekeeping::run_once(&node.preparer, &proc, &Metrics::default()).expect("a run");
    assert!(stuck.exists() && !directories.join("GPU-z-0-1").exists());
    let published = node.allocations.published.get();
    assert_eq!(published.inventory.refused, [], "it went on to its end");
    let problems = &published.housekeeping_problems;
    assert!(problems.len() == 1 && problems.iter().all(|one| one.contains("AAA")));
    std::fs::remove_dir(&stuck).expect("removed");
    housekeeping::run_once(&node.preparer, &proc, &Metrics::default()).expect("a run");
    let published = node.allocations.published.get();
    assert!(published.housekeeping_problems.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn housekeeping_sets_up_what_has_changed_and_names_each_cause_once() {
    let mut node = node().connected().await;
    for (uid, gpu, id) in [
        ("u1", "GPU-a", "GPU-a::0"),
        ("u2", "GPU-b", "GPU-b::0"),
        ("u3", "GPU-b", "GPU-b::1"),
    ] {
        node.run(uid, gpu, 1, id).await;
    }
    let refresh = |node: &Node| {
        let found = node.preparer.refresh().expect("the checkpoint");
        (found.containers, found.changed, found.problems.len())
    };
    assert_eq!(refresh(&node), (3, 3, 0));
    assert_eq!(refresh(&node), (3, 0, 0));
    node.run("u4", "GPU-b", 1, "GPU-b::2").await;
    assert_eq!(refresh(&node), (4, 1, 0));
    // The driver was loaded again, and its device nodes have other numbers.
    let loaded = "195 nvidia\n509 nvidia-uvm\n";
    std::fs::write(node.dir.path().join("devices"), loaded).expect("written");
    assert_eq!(refresh(&node), (4, 4, 0));

    std::fs::remove_file(&node.allocations.paths.driver_spec).expect("removed");
    let failed = async {
        let mut polls = tokio::time::interval(Duration::from_millis(50));
        loop {
            polls.tick().await;
            let found = refresh(&node);
            if found != (4, 0, 0) {
                return found;
            }
        }
    };
    let failed = tokio::time::timeout(DEADLINE, failed).await;
    assert_eq!(failed.expect("in time"), (0, 0, 1), "one for all of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_damaged_share_by_annotation_or_as_everything() {
    let mut node = node().connected().await;
    let accepted = node.allocations.paths.accepted.clone();
    std::fs::write(accepted.join("u1.json"), r#"{"v":1,"pod":"u1","#).expect("half of a share");
    *node.allocations.store.lock() = Store::open(accepted).expect("opened");
    let start = async |node: &mut Node, uid: &str, gpu: &str, memory: u64, id: &str| {
        node.bind(uid, gpu, memory);
        node.admit(uid, id).await;
        node.start(id).await
    };
    // Its annotation names its share of one GPU.
    node.bind("u1", "GPU-a", 8000);
    let refused = start(&mut node, "u2", "GPU-a", 3000, "GPU-a::1").await;
    let refused = refused.expect_err("it does not fit");
    assert!(refused.contains("CardInsufficientMemory"), "{refused}");
    node.run("u3", "GPU-b", 3000, "GPU-b::0").await;
    // Without an annotation its share is unknown.
    let mut silent = pod("u1", &[("main", false, "GPU-a", 8000)]);
    silent.allocation = None;
    node.pods.apply(silent);
    let refused = start(&mut node, "u4", "GPU-b", 1, "GPU-b::1").await;
    let refused = refused.expect_err("the free capacity is unknown");
    assert!(refused.contains("uid u1"), "{refused}");
    // Its next start is validated again, and it counts like all others.
    node.run("u1", "GPU-a", 8000, "GPU-a::0").await;
    node.start("GPU-b::1").await.expect("all is known");
    assert!(node.allocations.store.lock().damaged().is_empty());
}

/// A restarted kubelet fails each pod that it admits before we are registered.
#[tokio::test(flavor = "multi_thread")]
async fn registers_at_once_with_restarted_kubelet() {
    let mut node = node();
    let ours = node.kubelet.registration().await.endpoint;
    let plugins = node.allocations.paths.plugins.clone();
    // As with `kill -9`, its socket stays. Ours is gone, so the agent tries to register.
    drop(node.kubelet);
    std::fs::remove_file(plugins.join(ours)).expect("removed");
    let failed = Outcome { outcome: "failed" };
    let failures = async {
        let mut polls = tokio::time::interval(Duration::from_millis(5));
        while node.metrics.register.get_or_create(&failed).get() < TRIES {
            polls.tick().await;
        }
    };
    tokio::time::timeout(DEADLINE, failures)
        .await
        .expect("tries");
    let back = Instant::now();
    Kubelet::start(&plugins).registration().await;
    let took = back.elapsed();
    // The pause was five seconds.
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// The kubelet (1.37) refuses a socket that it counts as connected, and its name ever after.
#[tokio::test(flavor = "multi_thread")]
async fn registers_lost_socket_again_under_another_name() {
    let mut node = node();
    let first = node.kubelet.registration().await.endpoint;
    let plugins = node.allocations.paths.plugins.clone();
    // Of an agent that was killed.
    std::fs::write(plugins.join("aliquot-gpu-0000.sock"), "").expect("written");
    std::fs::remove_file(plugins.join(&first)).expect("removed");
    let second = node.kubelet.registration().await.endpoint;
    assert_ne!(first, second);
    let files = std::fs::read_dir(&plugins).expect("listed");
    let files = files.map(|file| file.expect("entry").file_name());
    let files = files.map(|name| name.to_string_lossy().into_owned());
    let ours: Vec<String> = files.filter(|name| name.starts_with("aliquot-")).collect();
    assert_eq!(ours, [second]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_other_plugin_by_event_metric_and_node_state() {
    let mut node = node().connected().await;
    let lists = node.plugin().list_and_watch(api::Empty {}).await;
    let mut lists = lists.expect("streamed").into_inner();
    lists.message().await.expect("read").expect("a list");
    let (notes, mut events) = event::queue();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    let monitor = ResourceOwnerMonitor {
        allocations: Arc::clone(&node.allocations),
        advertised: node.advertised.clone(),
        node: "n1".to_owned(),
        notes,
        metrics: node.metrics.clone(),
    };
    tokio::spawn(monitor.run(Duration::from_millis(100), stop));
    let mut published = node.allocations.published.subscribe();
    let first = published.wait_for(|node| node.taken_resources.is_some());
    let first = tokio::time::timeout(DEADLINE, first).await;
    assert!(first.is_ok_and(|found| found.is_ok()), "no check");
    // NVIDIA's plugin was asked for the devices of a container.
    let checkpoint = json!({"Data": {"PodDeviceEntries": [
        {"PodUID": "u1", "ContainerName": "main", "ResourceName": RESOURCE,
         "DeviceIDs": {"-1": ["GPU-a"]}, "AllocResp": ""}],
        "RegisteredDevices": {RESOURCE: ["GPU-a", "GPU-b"]}}});
    let path = &node.allocations.paths.checkpoint;
    std::fs::write(path.with_extension("new"), checkpoint.to_string()).expect("written");
    std::fs::rename(path.with_extension("new"), path).expect("renamed");
    let event = tokio::time::timeout(DEADLINE, events.recv()).await;
    let event = event.expect("in time").expect("an event");
    let (name, reason) = (event.pod.name.as_str(), event.reason);
    assert_eq!((name, reason), ("n1", "ResourceTaken"));
    let expected = "nvidia.com/gpu (1 device id, such as GPU-a)";
    assert!(event.text.contains(expected), "{}", event.text);
    assert_eq!(node.metrics.foreign_device_ids.get(), 1);
    let taken =
        published.wait_for(|node| node.taken_resources.as_ref().is_some_and(|t| !t.is_empty()));
    let taken = tokio::time::timeout(DEADLINE, taken).await;
    assert!(taken.is_ok_and(|found| found.is_ok()), "not published");
}

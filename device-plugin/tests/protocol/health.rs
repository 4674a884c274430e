//! A GPU fails and recovers: what the kubelet is told, which pods are notified and evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use aliquot_core::inventory::Health;
use aliquot_device_plugin::gpus::device_failures::{FailurePodPolicy, NodeFailures};
use aliquot_device_plugin::gpus::inventory::PublishedNode;
use aliquot_device_plugin::health::errors::ErrorRecord;
use aliquot_device_plugin::health::gpus::{FailureHandling, HealthMonitor};
use aliquot_device_plugin::kubelet::proto::HEALTHY;
use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use aliquot_device_plugin::metrics::Metrics;
use aliquot_k8s::event::{self, EventNote};
use aliquot_nvml::{
    DeviceHealth, Driver, DriverHealth, DriverInventory, GpuEvent, NvmlError, XidActions,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Streaming;

use crate::kubelet::DEADLINE;
use crate::node::{Node, TwoGpus, node};

/// The promised time from a failure to the kubelet's new list.
const PROMISED: Duration = Duration::from_secs(1);

/// Two GPUs whose health and events the test sets.
struct Scripted {
    health: Mutex<DriverHealth>,
    events: Mutex<Receiver<Result<GpuEvent, NvmlError>>>,
    /// Every other call fails.
    gone: AtomicBool,
    /// Readings of the health that failed so.
    failed: AtomicUsize,
    /// `GPU-b` is not listed.
    lacks_b: AtomicBool,
}

impl Driver for Scripted {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        if self.gone.load(Ordering::SeqCst) {
            return Err(no_driver());
        }
        let mut found = TwoGpus.inventory()?;
        if self.lacks_b.load(Ordering::SeqCst) {
            found.gpus.retain(|gpu| gpu.uuid != "GPU-b");
        }
        Ok(found)
    }

    /// Of `GPU-a`.
    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError> {
        if self.gone.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(no_driver());
        }
        let health = self.health.lock().clone();
        let uuid = "GPU-a".to_owned();
        Ok(vec![DeviceHealth { uuid, health }])
    }

    fn clear_errors(&self, _: &str) {
        *self.health.lock() = DriverHealth::Ok;
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        let next = self.events.lock().recv_timeout(timeout);
        next.map_or_else(|_| Ok(Vec::new()), |event| event.map(|event| vec![event]))
    }
}

struct Watched {
    node: Node,
    driver: Arc<Scripted>,
    events: Sender<Result<GpuEvent, NvmlError>>,
    notes: mpsc::Receiver<EventNote>,
    devices: Streaming<api::ListAndWatchResponse>,
    watch: Arc<HealthMonitor>,
    _stop: DropGuard,
}

/// An agent that watches, with pod `u1` on `GPU-a::0` and pod `u2` on `GPU-b`, whose device id is
/// `GPU-a::1`.
async fn watched(pods: FailurePodPolicy) -> Watched {
    let users = [("u1", "GPU-a", "GPU-a::0"), ("u2", "GPU-b", "GPU-a::1")];
    watched_with(pods, &users).await
}

/// The same with these pods: UID, GPU and device id.
async fn watched_with(pods: FailurePodPolicy, users: &[(&str, &str, &str)]) -> Watched {
    let mut node = node().connected().await;
    for &(uid, gpu, id) in users {
        node.run(uid, gpu, 100, id).await;
    }
    let (events, event_rx) = channel();
    let driver = Arc::new(Scripted {
        health: Mutex::new(DriverHealth::Ok),
        events: Mutex::new(event_rx),
        gone: AtomicBool::new(false),
        failed: AtomicUsize::new(0),
        lacks_b: AtomicBool::new(false),
    });
    let (queue, notes) = event::queue();
    let care = FailureHandling {
        actions: XidActions::default(),
        pods,
    };
    let read = (driver.inventory().expect("facts"), Vec::new());
    let watch = HealthMonitor::new(
        Arc::<Scripted>::clone(&driver),
        ErrorRecord::of_this_boot(node.dir.path().join("health.json")),
        Arc::clone(&node.allocations),
        care,
        queue,
        Metrics::default(),
        read,
    );
    let stop = CancellationToken::new();
    tokio::spawn(Arc::clone(&watch).watch_driver(|_| {}, stop.clone()));
    tokio::spawn(Arc::clone(&watch).watch_pods(stop.clone()));
    let devices = node.plugin().list_and_watch(api::Empty {}).await;
    let mut devices = devices.expect("streamed").into_inner();
    assert_eq!(healthy(&mut devices).await.len(), 20);
    Watched {
        node,
        driver,
        events,
        notes,
        devices,
        watch,
        _stop: stop.drop_guard(),
    }
}

impl Watched {
    fn set_health(&self, health: DriverHealth, event: GpuEvent) {
        *self.driver.health.lock() = health;
        self.events.send(Ok(event)).expect("received");
    }

    fn published(&self) -> Arc<PublishedNode> {
        self.node.allocations.published.get()
    }

    async fn next_event(&mut self) -> (String, &'static str, String) {
        let note = tokio::time::timeout(DEADLINE, self.notes.recv()).await;
        let note = note.expect("in time").expect("a note");
        (note.pod.name, note.reason, note.text)
    }
}

/// The healthy device ids of the next list.
async fn healthy(devices: &mut Streaming<api::ListAndWatchResponse>) -> Vec<String> {
    let list = tokio::time::timeout(DEADLINE, devices.message()).await;
    let list = list.expect("in time").expect("read").expect("a list");
    let healthy = list.devices.into_iter().filter(|d| d.health == HEALTHY);
    healthy.map(|device| device.id).collect()
}

/// Those on `GPU-a`.
async fn healthy_on_a(devices: &mut Streaming<api::ListAndWatchResponse>) -> Vec<String> {
    let mut ids = healthy(devices).await;
    assert_eq!(ids.iter().filter(|id| id.starts_with("GPU-b")).count(), 10);
    ids.retain(|id| id.starts_with("GPU-a"));
    ids
}

fn xid(code: u64) -> GpuEvent {
    GpuEvent::Xid {
        uuid: "GPU-a".to_owned(),
        code,
        ignored: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unhealthy_gpu_withdraws_free_replicas_within_1s() {
    let mut watched = watched(FailurePodPolicy::Evict).await;
    let began = Instant::now();
    watched.set_health(DriverHealth::Xid(79), xid(79));
    assert_eq!(
        healthy_on_a(&mut watched.devices).await,
        ["GPU-a::0", "GPU-a::1"]
    );
    let took = began.elapsed();
    assert!(took < PROMISED, "{took:?}, promised {PROMISED:?}");
    let (pod, reason, text) = watched.next_event().await;
    assert_eq!((pod.as_str(), reason), ("u1", "GpuSick"));
    assert!(text.contains("GPU-a") && text.contains("XID 79"), "{text}");
    let evict = &watched.published().inventory.evict;
    let names: Vec<&str> = evict.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["u1"], "u2 has only a device id of GPU-a");

    watched.node.pods.delete(&"u1".into());
    assert_eq!(healthy_on_a(&mut watched.devices).await, ["GPU-a::1"]);
    assert!(watched.published().inventory.evict.is_empty());

    let uuid = "GPU-b".to_owned();
    watched.set_health(DriverHealth::Ok, GpuEvent::Lost { uuid });
    assert_eq!(healthy_on_a(&mut watched.devices).await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn application_xids_take_shared_gpu_from_no_pod() {
    let users = [
        ("u1", "GPU-a", "GPU-a::0"),
        ("u2", "GPU-a", "GPU-a::1"),
        ("u3", "GPU-a", "GPU-a::2"),
    ];
    let mut watched = watched_with(FailurePodPolicy::Drain, &users).await;
    let actions = XidActions::default();
    // A pod is told of each once.
    for code in [13, 13, 31, 43, 45, 68, 109] {
        if !actions.of(code).keeps_gpu_in_service() {
            *watched.driver.health.lock() = DriverHealth::Xid(code);
        }
        watched.events.send(Ok(xid(code))).expect("received");
    }
    // 43 and 45 follow other errors; they are only logged.
    for code in [13, 31, 68, 109] {
        let mut notified = Vec::new();
        for _ in users {
            let (pod, reason, text) = watched.next_event().await;
            assert_eq!(reason, "GpuError", "{text}");
            assert!(text.contains(&format!("XID {code};")), "{text}");
            notified.push(pod);
        }
        notified.sort_unstable();
        assert_eq!(notified, ["u1", "u2", "u3"]);
    }
    let node = watched.published();
    assert_eq!(node.readings.failures, NodeFailures::default());
    assert!(node.inventory.evict.is_empty());
    for gpu in &node.inventory.gpus {
        assert_eq!((&gpu.health, &gpu.cordon), (&Health::Ok, &None));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn detects_lost_gpu_without_driver_events() {
    let mut watched = watched(FailurePodPolicy::Keep).await;
    // The driver is gone for a while.
    watched.driver.gone.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        watched.events.send(Err(no_driver())).expect("received");
    }
    // At the second failure, what follows the first one is published.
    let failed = async {
        let mut polls = tokio::time::interval(Duration::from_millis(50));
        while watched.driver.failed.load(Ordering::SeqCst) < 2 {
            polls.tick().await;
        }
    };
    let failed = tokio::time::timeout(DEADLINE, failed).await;
    failed.expect("it was read twice");
    assert_eq!(watched.published().inventory.gpus.len(), 2);
    let lost = DriverHealth::Lost("GPU is lost".to_owned());
    *watched.driver.health.lock() = lost;
    watched.driver.gone.store(false, Ordering::SeqCst);
    watched.events.send(Err(no_driver())).expect("received");
    assert_eq!(healthy_on_a(&mut watched.devices).await.len(), 2);
    let (.., text) = watched.next_event().await;
    assert!(text.contains("lost"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_reading_that_lacks_a_gpu_drains_no_node() {
    let watched = watched(FailurePodPolicy::Drain).await;
    watched.driver.lacks_b.store(true, Ordering::SeqCst);
    let watch = Arc::clone(&watched.watch);
    let read = tokio::task::spawn_blocking(move || watch.reread()).await;
    read.expect("ended").expect("read");
    let node = watched.published();
    assert_eq!(node.readings.facts.gpus.len(), 1);
    assert_eq!(node.readings.failures, NodeFailures::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_node_until_owner_clears_gpu() {
    let mut watched = watched(FailurePodPolicy::Drain).await;
    watched.set_health(DriverHealth::Xid(79), xid(79));
    assert_eq!(healthy_on_a(&mut watched.devices).await.len(), 2);
    let node = watched.published();
    let leaving = node.inventory.evict.iter().map(|pod| pod.name.as_str());
    assert_eq!(leaving.collect::<Vec<_>>(), ["u1", "u2"]);
    for gpu in &node.inventory.gpus {
        let why = gpu.cordon.as_deref().unwrap_or_default();
        assert!(why.contains("drained") && why.contains("XID 79"), "{gpu:?}");
    }
    for _ in 0..2 {
        let (pod, reason, text) = watched.next_event().await;
        assert_eq!(reason, "GpuSick");
        for part in ["XID 79", "evicted"] {
            assert!(text.contains(part), "{pod}: {text}");
        }
    }

    let watch = Arc::clone(&watched.watch);
    let clear = move || watch.clear(&["GPU-a".to_owned()]);
    let cleared = tokio::task::spawn_blocking(clear).await.expect("ended");
    cleared.expect("asked");
    let node = watched.published();
    assert!(node.inventory.evict.is_empty());
    assert!(node.inventory.gpus.iter().all(|gpu| gpu.cordon.is_none()));
    assert_eq!(healthy_on_a(&mut watched.devices).await.len(), 10);
}

/// The error of an unloaded driver.
fn no_driver() -> NvmlError {
    let options = aliquot_nvml::Options {
        library: "/nonexistent".into(),
        ..aliquot_nvml::Options::default()
    };
    match aliquot_nvml::Nvml::open(options) {
        Ok(_) => unreachable!("there is no such library"),
        Err(error) => error,
    }
}

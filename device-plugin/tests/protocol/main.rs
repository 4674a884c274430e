//! The agent over real gRPC, without an API server or a GPU: a fake kubelet allocates, writes its
//! checkpoint and starts containers; the specs on disk are read back.

mod failures;
mod health;
mod host_root;
mod kubelet;
mod modes;
mod node;
mod refusals;
mod resizes;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use aliquot_device_plugin::allocation::housekeeping;
use aliquot_device_plugin::gpus::allocatable::AllocatedIds;
use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use aliquot_device_plugin::metrics::Metrics;
use aliquot_device_plugin::pods::pod::Phase;
use aliquot_device_plugin::{admin, agent};
use aliquot_nvml::{DeviceHealth, Driver, DriverInventory, GpuEvent, NvmlError};
use aliquot_serve::Readiness;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use kubelet::{DEADLINE, Kubelet, prestart};
use node::{Node, RESOURCE, TwoGpus, node, pod, settings, spec, variables, write_toolkit};

#[tokio::test(flavor = "multi_thread")]
async fn delivers_share_through_whole_protocol() {
    let mut node = node().connected().await;
    let options = node.plugin().get_device_plugin_options(api::Empty {}).await;
    let options = options.expect("answered").into_inner();
    assert!(options.pre_start_required && options.get_preferred_allocation_available);
    let list = node.plugin().list_and_watch(api::Empty {}).await;
    let list = list.expect("streamed").into_inner().message().await;
    let list = list.expect("read").expect("a list");
    assert_eq!(list.devices.len(), 20);

    node.bind("u1", "GPU-b", 3000);
    let available: Vec<String> = list.devices.into_iter().map(|device| device.id).collect();
    let request = api::PreferredAllocationRequest {
        container_requests: vec![api::ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: Vec::new(),
            allocation_size: 1,
        }],
    };
    let preferred = node.plugin().get_preferred_allocation(request).await;
    let preferred = preferred.expect("answered").into_inner();
    let preferred = &preferred.container_responses[0].device_i_ds;
    assert_eq!(*preferred, ["GPU-b::0"]);

    let request = api::AllocateRequest {
        container_requests: vec![api::ContainerAllocateRequest {
            devices_ids: vec!["GPU-b::0".to_owned()],
        }],
    };
    let answer = node.plugin().allocate(request).await;
    let answer = answer.expect("answered").into_inner();
    let envs = &answer.container_responses[0].envs;
    let visible = envs.get("NVIDIA_VISIBLE_DEVICES").map(String::as_str);
    assert_eq!(
        visible,
        Some("void"),
        "a runtime that ignores CDI opens no GPU"
    );
    let name = node.admit("u1", "GPU-b::0").await;
    assert_eq!(node.files(), 0, "Allocate writes nothing");
    node.start("GPU-b::0").await.expect("accepted");
    let spec = node.spec(&name);
    for expected in [
        "CUDA_DEVICE_MEMORY_LIMIT_0=3000m",
        "CUDA_DEVICE_SM_LIMIT=30",
        "ALIQUOT_VISIBLE_DEVICES=GPU-b",
    ] {
        assert!(variables(&spec).contains(&expected), "{expected}");
    }
    let mounts = &spec["devices"][0]["containerEdits"]["mounts"];
    for mount in mounts.as_array().expect("mounts") {
        let path = mount["hostPath"].as_str().expect("a path");
        assert!(Path::new(path).exists(), "{path}");
    }

    // When the annotation changes, the pod's next start retains what was accepted.
    node.bind("u1", "GPU-b", 9000);
    node.start("GPU-b::0").await.expect("served");
    assert_eq!(node.spec(&name), spec);
}

#[tokio::test(flavor = "multi_thread")]
async fn init_and_app_container_have_own_limits() {
    let mut node = node().connected().await;
    let shares = [
        ("first", true, "GPU-a", 9000),
        ("main", false, "GPU-a", 3000),
    ];
    node.pods.apply(pod("u1", &shares));
    // The kubelet passes the init container's device on. Their sum is more than the GPU has.
    let plugin = node.plugin.as_mut().expect("connected");
    let ids = ["GPU-a::0"];
    let first = node.kubelet.admit(plugin, "u1", "first", &ids).await;
    let main = node.admit("u1", "GPU-a::0").await;
    assert_ne!(first, main);
    node.start("GPU-a::0").await.expect("accepted");
    for (name, expected) in [(&first, "9000m"), (&main, "3000m")] {
        let spec = node.spec(name);
        let limit = format!("CUDA_DEVICE_MEMORY_LIMIT_0={expected}");
        assert!(variables(&spec).contains(&limit.as_str()), "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_pod_leaves_only_inventory_entry() {
    let mut node = node().connected().await;
    let mut bare = pod("u1", &[("main", false, "GPU-a", 1)]);
    bare.allocation = None;
    node.pods.apply(bare);
    node.admit("u1", "GPU-a::0").await;
    let refused = node.start("GPU-a::0").await.expect_err("refused");
    let how = "schedulerName: aliquot-scheduler";
    assert!(refused.contains(how), "{refused}");
    assert_eq!(node.files(), 0);
    let published = node.allocations.published.get();
    assert_eq!(published.inventory.refused[0].name, "u1");

    // An annotation added later makes it start.
    node.bind("u1", "GPU-a", 1);
    node.start("GPU-a::0").await.expect("accepted");
    let published = node.allocations.published.get();
    assert!(published.inventory.refused.is_empty());
}

/// Its first reading takes until the sender is dropped.
struct SlowDriver(Mutex<mpsc::Receiver<()>>);

impl Driver for SlowDriver {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        let _ended = self.0.lock().recv();
        TwoGpus.inventory()
    }

    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError> {
        TwoGpus.health()
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        TwoGpus.wait_events(timeout)
    }
}

/// The answer of an agent's port to the kubelet's liveness probe.
fn healthz(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_the_liveness_probe_before_the_gpus_are_read() {
    let dir = tempfile::tempdir().expect("tempdir");
    let mut settings = settings(dir.path());
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    settings.listen = free.local_addr().expect("an address");
    let address = settings.listen;
    drop(free);
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse().expect("a uri"));
    let client = kube::Client::try_from(nowhere).expect("a client");
    let (reading, read) = mpsc::channel();
    let driver: Arc<dyn Driver> = Arc::new(SlowDriver(Mutex::new(read)));
    let open = move || Ok(Arc::clone(&driver));
    let stop = CancellationToken::new();
    let readiness = Readiness::new([admin::REGISTERED]);
    let running = agent::run(settings, open, client, readiness, stop.clone());
    let running = tokio::spawn(running);
    let answered = async {
        let mut polls = tokio::time::interval(Duration::from_millis(20));
        loop {
            polls.tick().await;
            let asked = tokio::task::spawn_blocking(move || healthz(address));
            if let Ok(Ok(answer)) = asked.await {
                return answer;
            }
        }
    };
    let answer = tokio::time::timeout(DEADLINE, answered).await;
    let answer = answer.expect("while the GPUs are read");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(reading);
    stop.cancel();
    let ended = tokio::time::timeout(DEADLINE, running).await;
    ended.expect("in time").expect("joined").expect("no error");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_at_a_restart_reaches_the_scheduler_until_the_container_starts() {
    let mut node = node().connected().await;
    node.run("u1", "GPU-b", 1, "GPU-b::0").await;
    let refused = |node: &Node| {
        let refused = node.allocations.published.get().inventory.refused.clone();
        refused.into_iter().map(|pod| pod.name).collect::<Vec<_>>()
    };
    // Another GPU is in its place after a restart of the node.
    let with = node.allocations.published.get().readings.clone();
    let mut without = with.clone();
    without.facts.gpus.retain(|gpu| gpu.uuid != "GPU-b");
    let published = node.allocations.published.clone();
    published.set_readings(without.clone(), AllocatedIds::new());
    // That the pods of the other one are waited for delays nothing.
    let mut layout = published.get().layout.clone();
    let waiting = layout.gpus.get_mut("GPU-a").expect("a GPU");
    waiting.cordon = Some("changes from vgpu to exclusive".to_owned());
    published.set_layout(layout, None);
    let error = node.start("GPU-b::0").await.expect_err("refused");
    let gone = "GPU-b of the pod's allocation is no longer on this node";
    assert!(error.contains(gone), "{error}");
    assert_eq!(refused(&node), ["u1"]);
    published.set_readings(with.clone(), AllocatedIds::new());
    assert!(refused(&node).is_empty(), "the kubelet may try much later");
    published.set_readings(without, AllocatedIds::new());
    assert_eq!(refused(&node), ["u1"]);
    published.set_readings(with, AllocatedIds::new());
    node.start("GPU-b::0").await.expect("served");
    assert!(refused(&node).is_empty());

    // The kubelet allocated one more replica to the container.
    let ids = ["GPU-b::0", "GPU-b::1"];
    node.kubelet.forget("u1");
    let plugin = node.plugin.as_mut().expect("connected");
    node.kubelet.admit(plugin, "u1", "main", &ids).await;
    let error = prestart(node.plugin(), &ids).await.expect_err("refused");
    assert!(error.contains("allocated 2 replica(s)"), "{error}");
    assert_eq!(refused(&node), ["u1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn removes_files_after_pod_and_processes_end_whatever_the_checkpoint_lists() {
    let mut node = node().connected().await;
    let uid = "0123456789abcdef0123456789abcdef";
    node.run(uid, "GPU-a", 1, "GPU-a::0").await;
    let proc = node.dir.path().join("proc");
    std::fs::create_dir_all(proc.join("7")).expect("made");
    let check = |node: &Node, files: usize, orphaned: usize| {
        housekeeping::run_once(&node.preparer, &proc, &Metrics::default()).expect("a run");
        let inventory = &node.allocations.published.get().inventory;
        let found = (node.files(), inventory.orphaned.len());
        assert_eq!(found, (files, orphaned));
    };
    check(&node, 3, 0);
    node.pods.delete(&uid.into());
    // The watch may not know it yet.
    check(&node, 3, 0);
    let accepted = node.allocations.paths.accepted.join(format!("{uid}.json"));
    let accepted = File::options().write(true).open(accepted).expect("open");
    let long_ago = SystemTime::now() - Duration::from_mins(1);
    accepted.set_modified(long_ago).expect("an older file");
    node.bind(uid, "GPU-a", 1);
    check(&node, 3, 0);
    let mut ended = pod(uid, &[("main", false, "GPU-a", 1)]);
    ended.phase = Phase::Ended;
    node.pods.apply(ended);
    let cgroup = format!("0::/kubepods/pod{uid}/x\n");
    std::fs::write(proc.join("7/cgroup"), cgroup).expect("written");
    check(&node, 3, 1);
    std::fs::remove_dir_all(proc.join("7")).expect("it ended");
    check(&node, 0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_a_pod_that_has_just_gone_keep_their_share() {
    let mut node = node().connected().await;
    let uid = "0123456789abcdef0123456789abcdef";
    node.run(uid, "GPU-a", 8000, "GPU-a::0").await;
    let process = node.starter.proc.join("7");
    std::fs::create_dir(&process).expect("made");
    let cgroup = format!("0::/kubepods/pod{uid}/x\n");
    std::fs::write(process.join("cgroup"), cgroup).expect("written");
    node.pods.delete(&uid.into());
    node.run("u2", "GPU-a", 1000, "GPU-a::1").await;
    node.bind("u3", "GPU-a", 8000);
    node.admit("u3", "GPU-a::2").await;
    let refused = node.start("GPU-a::2").await.expect_err("refused");
    assert!(refused.contains("when they have ended"), "{refused}");
    std::fs::remove_dir_all(process).expect("it ended");
    node.start("GPU-a::2").await.expect("accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn distinguishes_foreign_devices_and_bad_checkpoint() {
    let mut node = node().connected().await;
    let missing = node.start("GPU-a::0").await.expect_err("no holder");
    assert!(missing.contains("lists no container"), "{missing}");
    let checkpoint = node.allocations.paths.checkpoint.clone();
    let foreign = json!({"Data": {"PodDeviceEntries": [
        {"PodUID": "old", "ContainerName": "main", "ResourceName": RESOURCE,
         "DeviceIDs": {"-1": ["GPU-a::0"]}, "AllocResp": ""}]}});
    std::fs::write(&checkpoint, foreign.to_string()).expect("written");
    node.start("GPU-a::0").await.expect("untouched");
    std::fs::write(&checkpoint, "{").expect("written");
    let broken = node.start("GPU-a::0").await.expect_err("unreadable");
    assert!(broken.contains("kubelet_internal_checkpoint"), "{broken}");
    assert_eq!(node.files(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_share_after_restarts_without_api_server() {
    let mut node = node().connected().await;
    let name = node.run("u1", "GPU-a", 3000, "GPU-a::0").await;
    let Node {
        dir,
        mut kubelet,
        _stop: first_agent,
        ..
    } = node;
    drop(first_agent);
    let spec_before = spec(dir.path(), &name);

    // A whole agent with an unreachable API server.
    let mut settings = settings(dir.path());
    let paths = settings.paths();
    settings.host_root = "/".into();
    settings.toolkit = dir.path().join("programs");
    write_toolkit(&settings.toolkit, &paths.driver_spec);
    let plugins = paths.plugins;
    let nowhere = kube::Config::new("http://127.0.0.1:9".parse().expect("a uri"));
    let client = kube::Client::try_from(nowhere).expect("a client");
    let stop = CancellationToken::new();
    let readiness = Readiness::new([admin::REGISTERED]);
    let open = || Ok(Arc::new(TwoGpus) as Arc<dyn Driver>);
    let running = agent::run(settings, open, client, readiness, stop.clone());
    let running = tokio::spawn(running);
    let mut plugin = kubelet.plugin().await;
    prestart(&mut plugin, &["GPU-a::0"]).await.expect("served");
    assert_eq!(spec(dir.path(), &name), spec_before);
    let ids = ["GPU-a::1"];
    kubelet.admit(&mut plugin, "u2", "main", &ids).await;
    let unknown = prestart(&mut plugin, &ids).await.expect_err("first start");
    assert!(unknown.contains("cannot read pod u2"), "{unknown}");

    // The kubelet restarts: its sockets are new, its checkpoint stays.
    drop(kubelet);
    let mut kubelet = Kubelet::start(&plugins);
    let mut plugin = kubelet.plugin().await;
    prestart(&mut plugin, &["GPU-a::0"]).await.expect("served");
    assert_eq!(spec(dir.path(), &name), spec_before);

    stop.cancel();
    let ended = tokio::time::timeout(DEADLINE, running).await;
    ended.expect("in time").expect("joined").expect("no error");
}

//! A node without an API server: a fake kubelet, two simulated GPUs, pods that the test applies,
//! and the agent's serving half.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{Allocation, Mib};
use aliquot_device_plugin::allocation::accepted::Store;
use aliquot_device_plugin::allocation::environment::NodeRules;
use aliquot_device_plugin::allocation::node_allocations::{CheckpointCache, NodeAllocations};
use aliquot_device_plugin::allocation::prepare::Preparer;
use aliquot_device_plugin::allocation::start::ContainerStarter;
use aliquot_device_plugin::allocation::validation::Validator;
use aliquot_device_plugin::container_edits::cdi;
use aliquot_device_plugin::gpus::allocatable::NodeLayout;
use aliquot_device_plugin::gpus::inventory::NodePublisher;
use aliquot_device_plugin::gpus::inventory::RuntimeStatus;
use aliquot_device_plugin::kubelet::plugin::CallHandlers;
use aliquot_device_plugin::kubelet::plugins::register_all;
use aliquot_device_plugin::kubelet::proto::v1beta1::device_plugin_client::DevicePluginClient;
use aliquot_device_plugin::kubelet::resource_owner::AdvertisedLists;
use aliquot_device_plugin::metrics::Metrics;
use aliquot_device_plugin::modes::SharingModes;
use aliquot_device_plugin::pods::Pods;
use aliquot_device_plugin::pods::pod::Pod;
use aliquot_device_plugin::settings::Settings;
use aliquot_nvml::{
    DeviceHealth, Driver, DriverInventory, GpuEvent, GpuFacts, MigError, MigLayout, NvmlError,
};
use aliquot_profiles::Defaults;
use clap::Parser as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use crate::kubelet::{Kubelet, prestart};

pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

/// Two healthy GPUs of 10,000 MiB.
pub(crate) struct TwoGpus;

impl Driver for TwoGpus {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        let gpu = |(index, uuid): (u32, &str)| GpuFacts {
            uuid: uuid.to_owned(),
            index,
            minor: Some(index),
            model: "NVIDIA A100-SXM4-80GB".to_owned(),
            memory: Mib(10_000),
            ..GpuFacts::default()
        };
        Ok(DriverInventory {
            driver_version: "580.82".to_owned(),
            gpus: (0..).zip(["GPU-a", "GPU-b"]).map(gpu).collect(),
            notes: Vec::new(),
        })
    }

    fn health(&self) -> Result<Vec<DeviceHealth>, NvmlError> {
        Ok(Vec::new())
    }

    fn wait_events(&self, timeout: Duration) -> Result<Vec<GpuEvent>, NvmlError> {
        std::thread::park_timeout(timeout);
        Ok(Vec::new())
    }

    /// MIG mode is off.
    fn mig_layout(&self, _: &str) -> Result<MigLayout, MigError> {
        Ok(MigLayout::default())
    }
}

pub(crate) fn settings(dir: &Path) -> Settings {
    let path = |name: &str| dir.join(name).display().to_string();
    let loaded = "195 nvidia\n508 nvidia-uvm\n";
    std::fs::write(dir.join("devices"), loaded).expect("written");
    Settings::parse_from([
        "agent",
        "--node-name=n1",
        "--listen=127.0.0.1:0",
        &format!("--kubelet-dir={}", path("kubelet")),
        &format!("--cdi-dir={}", path("cdi")),
        &format!("--state-dir={}", path("state")),
        &format!("--proc-devices={}", path("devices")),
    ])
}

/// Writes NVIDIA's CDI spec, with a file in the place of the driver's library.
fn write_driver_spec(path: &Path) {
    let folder = path.parent().expect("in a folder");
    std::fs::create_dir_all(folder).expect("made");
    let library = folder.join("libcuda.so.580.82");
    std::fs::write(&library, "").expect("written");
    let devices = ["GPU-a", "GPU-b"].map(|name| json!({"name": name, "containerEdits": {}}));
    let mount = json!({"hostPath": library, "containerPath": "/usr/lib64/libcuda.so.580.82"});
    let spec = json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices,
        "containerEdits": {"mounts": [mount]}});
    std::fs::write(path, spec.to_string()).expect("written");
}

/// `GPU-b` was partitioned when the node was restarted.
fn write_last_instances(state: &Path) {
    let folder = state.join("mig");
    std::fs::create_dir_all(&folder).expect("made");
    let last = json!({"GPU-b": [{"profile": "1g.5gb", "start": 0, "uuid": "MIG-b"}]});
    std::fs::write(folder.join("names.json"), last.to_string()).expect("written");
}

/// Writes NVIDIA's programs for a whole agent: the generator prints the spec that is stored now.
pub(crate) fn write_toolkit(folder: &Path, stored: &Path) {
    std::fs::create_dir_all(folder).expect("made");
    let spec = folder.join("spec.json");
    std::fs::copy(stored, &spec).expect("copied");
    let generator = format!("#!/bin/sh\nexec cat '{}'\n", spec.display());
    std::fs::write(folder.join("nvidia-ctk"), generator).expect("written");
    std::fs::write(folder.join("nvidia-cdi-hook"), "#!/bin/sh\n").expect("written");
}

/// The agent without an API server: pods are applied by the test.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) kubelet: Kubelet,
    /// The kubelet's connection, after [`Node::connected`].
    pub(crate) plugin: Option<DevicePluginClient<Channel>>,
    pub(crate) pods: Pods,
    pub(crate) allocations: Arc<NodeAllocations>,
    pub(crate) preparer: Arc<Preparer>,
    pub(crate) starter: Arc<ContainerStarter>,
    pub(crate) advertised: AdvertisedLists,
    pub(crate) metrics: Metrics,
    pub(crate) _stop: DropGuard,
}

pub(crate) fn node() -> Node {
    let node = node_with_unknown_runtime();
    let runtime = RuntimeStatus::default();
    node.allocations.published.set_runtime(runtime);
    node
}

/// The same, and nobody has looked at the container runtime yet.
pub(crate) fn node_with_unknown_runtime() -> Node {
    let dir = tempfile::tempdir().expect("tempdir");
    let settings = settings(dir.path());
    let paths = settings.paths();
    write_driver_spec(&paths.driver_spec);
    write_last_instances(dir.path());
    std::fs::create_dir(dir.path().join("processes")).expect("made");
    let kubelet = Kubelet::start(&paths.plugins);
    std::fs::create_dir_all(&paths.cdi).expect("made");
    let defaults = Defaults {
        split: 10,
        memory_scaling: settings.device_memory_scaling,
    };
    let facts = TwoGpus.inventory().expect("facts");
    let layout = NodeLayout::built_in(&facts, RESOURCE, &defaults);
    let driver: Arc<dyn Driver> = Arc::new(TwoGpus);
    let pods = Pods::default();
    pods.reset(Vec::new());
    let allocations = Arc::new(NodeAllocations {
        default_resource: RESOURCE.to_owned(),
        modes: SharingModes::new(&driver, dir.path()),
        store: Mutex::new(Store::open(paths.accepted.clone()).expect("opened")),
        paths: paths.clone(),
        pods: pods.clone(),
        published: NodePublisher::new(facts, Vec::new(), layout),
        checkpoint: CheckpointCache::default(),
    });
    let context = Some(Mib(512));
    let preparer = Arc::new(Preparer::new(Arc::clone(&allocations), None, context));
    let starter = Arc::new(ContainerStarter {
        allocations: Arc::clone(&allocations),
        validator: Validator {
            node: "n1".into(),
            rules: NodeRules::new(true),
            namespace_rights: None,
        },
        preparer: Arc::clone(&preparer),
        lookup: Arc::new(|_| Box::pin(async { Ok(None) })),
        proc: dir.path().join("processes"),
    });
    let (stop, metrics) = (CancellationToken::new(), Metrics::default());
    let advertised = AdvertisedLists::default();
    let handlers = CallHandlers {
        starter: Arc::clone(&starter),
        advertised: advertised.clone(),
        metrics: metrics.clone(),
    };
    tokio::spawn(register_all(
        paths.plugins,
        Arc::new(handlers),
        tokio::sync::watch::channel(None).1,
        |_| {},
        stop.clone(),
    ));
    Node {
        dir,
        kubelet,
        plugin: None,
        pods,
        allocations,
        preparer,
        starter,
        advertised,
        metrics,
        _stop: stop.drop_guard(),
    }
}

impl Node {
    /// After the kubelet has connected to the plugin.
    pub(crate) async fn connected(mut self) -> Self {
        self.plugin = Some(self.kubelet.plugin().await);
        self
    }

    pub(crate) fn plugin(&mut self) -> &mut DevicePluginClient<Channel> {
        self.plugin.as_mut().expect("connected")
    }

    /// Binds a pod whose container `main` has this share of one GPU.
    pub(crate) fn bind(&self, uid: &str, gpu: &str, memory: u64) {
        self.pods.apply(pod(uid, &[("main", false, gpu, memory)]));
    }

    /// Allocates a device id for that container, as at admission; what the answer names.
    pub(crate) async fn admit(&mut self, uid: &str, id: &str) -> String {
        let plugin = self.plugin.as_mut().expect("connected");
        self.kubelet.admit(plugin, uid, "main", &[id]).await
    }

    /// Starts the container that has this device id.
    pub(crate) async fn start(&mut self, id: &str) -> Result<(), String> {
        prestart(self.plugin(), &[id]).await
    }

    /// All three; the container starts.
    pub(crate) async fn run(&mut self, uid: &str, gpu: &str, memory: u64, id: &str) -> String {
        self.bind(uid, gpu, memory);
        let name = self.admit(uid, id).await;
        self.start(id).await.expect("accepted");
        name
    }

    pub(crate) fn spec(&self, qualified: &str) -> Value {
        spec(self.dir.path(), qualified)
    }

    pub(crate) fn files(&self) -> usize {
        let count = |path: &Path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let paths = &self.allocations.paths;
        count(&paths.cdi) + count(&paths.container_directories) + count(&paths.accepted)
    }
}

pub(crate) fn spec(dir: &Path, qualified: &str) -> Value {
    let name = qualified.strip_prefix("aliquot.dev/vgpu=").expect("ours");
    let path = dir.join("cdi").join(cdi::file_name(name));
    let text = std::fs::read(&path).expect("a spec of this name");
    serde_json::from_slice(&text).expect("json")
}

pub(crate) fn variables(spec: &Value) -> Vec<&str> {
    let env = &spec["devices"][0]["containerEdits"]["env"];
    let env = env.as_array().expect("variables").iter();
    env.filter_map(Value::as_str).collect()
}

/// A bound pod; `shares` are (container, is init, GPU, MiB).
pub(crate) fn pod(uid: &str, shares: &[(&str, bool, &str, u64)]) -> Pod {
    let grants = |init: bool| -> Value {
        let chosen = shares.iter().filter(|share| share.1 == init);
        let grants = chosen.map(|(name, _, gpu, memory)| {
            let grant = json!([{"resource": RESOURCE, "gpu": gpu, "memory": memory, "cores": 30}]);
            ((*name).to_owned(), grant)
        });
        Value::Object(grants.collect())
    };
    let containers = |init: bool| -> Vec<Value> {
        let chosen = shares.iter().filter(|share| share.1 == init);
        chosen.map(|share| json!({"name": share.0})).collect()
    };
    bound(
        uid,
        &grants(false),
        &grants(true),
        &containers(false),
        &containers(true),
    )
}

/// A bound pod with these grants by container.
pub(crate) fn bound(
    uid: &str,
    grants: &Value,
    init_grants: &Value,
    containers: &[Value],
    init: &[Value],
) -> Pod {
    let text = json!({"v": 1, "node": "n1", "containers": grants, "init": init_grants,
                      "priority": 1})
    .to_string();
    Allocation::decode(&text).expect("an allocation");
    let object = json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "default",
                     "annotations": {"aliquot.dev/allocation": text}},
        "spec": {"nodeName": "n1", "containers": containers, "initContainers": init},
    });
    Pod::read(&serde_json::from_value(object).expect("a pod")).expect("bound")
}

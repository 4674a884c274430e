//! The node agent's own code on a node, without a kubelet or an API server: `Allocate`, the checkpoint
//! as the kubelet writes it, and `PreStartContainer`, which writes the files of a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{Mib, Scaling};
use aliquot_device_plugin::allocation::accepted::Store;
use aliquot_device_plugin::allocation::counters_file;
use aliquot_device_plugin::allocation::environment::NodeRules;
use aliquot_device_plugin::allocation::node_allocations::{CheckpointCache, NodeAllocations};
use aliquot_device_plugin::allocation::prepare::Preparer;
use aliquot_device_plugin::allocation::start::ContainerStarter;
use aliquot_device_plugin::allocation::validation::Validator;
use aliquot_device_plugin::container_edits::driver_spec::SpecGenerator;
use aliquot_device_plugin::container_edits::injection;
use aliquot_device_plugin::gpus::allocatable::{AllocatedIds, GpuLayout, NodeLayout};
use aliquot_device_plugin::gpus::device_failures::NodeFailures;
use aliquot_device_plugin::gpus::inventory::RuntimeStatus;
use aliquot_device_plugin::gpus::inventory::{GpuReadings, NodePublisher};
use aliquot_device_plugin::kubelet::plugin::{CallHandlers, Plugin};
use aliquot_device_plugin::kubelet::proto::v1beta1 as api;
use aliquot_device_plugin::kubelet::resource_owner::AdvertisedLists;
use aliquot_device_plugin::metrics::Metrics;
use aliquot_device_plugin::modes::SharingModes;
use aliquot_device_plugin::pods::Pods;
use aliquot_device_plugin::pods::pod::Pod;
use aliquot_device_plugin::settings::Settings;
use aliquot_gpusim::STATE_VARIABLE;
use aliquot_nvml::{
    DeviceHealth, Driver, DriverInventory, GpuEvent, GpuFacts, GpuInstance, MigDevice, NvmlError,
};
use aliquot_profiles::mode::{LayoutEntry, Mig, Strategy};
use aliquot_profiles::{Defaults, Mode};
use anyhow::{Context as _, Result, anyhow};
use api::device_plugin_server::DevicePlugin as _;
use base64::Engine as _;
use clap::Parser as _;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tonic::Request;

use crate::node::{CONTEXT, DRIVER, FIRST, Instance, Node, SECOND};
use crate::programs::{self, Release};

const RESOURCE: &str = "nvidia.com/gpu";
/// The memory that each container is allocated, in MiB.
const SHARE: u64 = 3000;

/// How many containers share a device, and with how much memory.
const DEFAULTS: Defaults = Defaults {
    split: 100,
    memory_scaling: Scaling::ONE,
};

/// A node agent that has started.
pub struct Agent {
    runtime: Runtime,
    plugin: Plugin,
    allocations: Arc<NodeAllocations>,
    /// The checkpoint's entries.
    entries: Vec<Value>,
}

impl Agent {
    pub(crate) fn start(node: &Node) -> Result<Self> {
        let folder = node.folder().join("agent");
        let flag = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
        let root = node.driver_root();
        let settings = Settings::try_parse_from([
            "agent".to_owned(),
            "--node-name=n1".to_owned(),
            flag("kubelet-dir", folder.join("kubelet")),
            flag("cdi-dir", folder.join("cdi")),
            flag("state-dir", folder.join("state")),
            flag("driver-root", root.clone()),
            flag("host-driver-root", root),
            flag("host-root", "/".into()),
            flag("toolkit", Release::Newest.folder()),
            flag("proc-devices", node.proc().join("devices")),
            flag("mig-capabilities-dir", node.proc().join("capabilities")),
        ])?;
        let paths = settings.paths();
        fs::create_dir_all(&paths.plugins)?;
        fs::create_dir_all(&paths.cdi)?;
        let limiter = injection::install(&programs::limiter()?, &paths.limiter, &paths.programs)?;
        let driver: Arc<dyn Driver> = Arc::new(TwoGpus);
        let facts = driver.inventory()?;
        let runtime = Runtime::new()?;
        let generator = Arc::new(generator(node, &settings));
        runtime.block_on(generator.update(&facts));
        if let Some(problem) = generator.problem() {
            return Err(anyhow!("{problem}"));
        }
        let layout = NodeLayout::built_in(&facts, RESOURCE, &DEFAULTS);
        let pods = Pods::default();
        pods.reset(Vec::new());
        let allocations = Arc::new(NodeAllocations {
            default_resource: RESOURCE.to_owned(),
            modes: SharingModes::new(&driver, &folder),
            store: Mutex::new(Store::open(paths.accepted.clone())?),
            paths,
            pods,
            published: NodePublisher::new(facts, Vec::new(), layout),
            checkpoint: CheckpointCache::default(),
        });
        allocations.published.set_runtime(RuntimeStatus::default());
        let context = Some(Mib(CONTEXT));
        let preparer = Preparer::new(Arc::clone(&allocations), Some(limiter), context);
        let starter = ContainerStarter {
            allocations: Arc::clone(&allocations),
            validator: Validator {
                node: "n1".into(),
                rules: NodeRules::new(true),
                namespace_rights: None,
            },
            preparer: Arc::new(preparer),
            lookup: Arc::new(|_| Box::pin(async { Ok(None) })),
            proc: "/proc".into(),
        };
        let handlers = CallHandlers {
            starter: Arc::new(starter),
            advertised: AdvertisedLists::default(),
            metrics: Metrics::default(),
        };
        let plugin = Plugin::new(RESOURCE, Arc::new(handlers), CancellationToken::new());
        Ok(Self {
            runtime,
            plugin,
            allocations,
            entries: Vec::new(),
        })
    }

    /// The folder with the agent's own CDI specs.
    pub fn specs(&self) -> &Path {
        &self.allocations.paths.cdi
    }

    /// Partitions the first GPU into this instance, which one container gets, whole and unlimited.
    pub fn set_instance(&self, instance: &Instance) -> Result<()> {
        let profile = "1g.10gb";
        let published = &self.allocations.published;
        let node = published.get();
        let mut facts = node.readings.facts.clone();
        let gpu = facts.gpus.first_mut().context("a GPU")?;
        gpu.layout.instances = vec![GpuInstance {
            profile: profile.to_owned(),
            start: 0,
            memory: Mib(9856),
            id: instance.gpu_instance,
            devices: vec![MigDevice {
                uuid: instance.uuid.clone(),
                id: instance.compute_instance,
                whole: true,
            }],
        }];
        let entry = LayoutEntry {
            profile: profile.to_owned(),
            count: 1,
            on: None,
        };
        let mig = Mig {
            layout: vec![entry],
            dynamic: false,
            allow: Vec::new(),
            strategy: Strategy::Single,
        };
        let mode = Mode::Mig(mig).with_defaults(&DEFAULTS);
        let mut layout = node.layout.clone();
        layout.gpus.insert(FIRST.into(), GpuLayout::serving(mode));
        let readings = GpuReadings {
            facts,
            health: Vec::new(),
            failures: NodeFailures::default(),
        };
        published.set_readings(readings, AllocatedIds::new());
        published.set_layout(layout, None);
        Ok(())
    }

    /// Writes the files of one more container with a share of the first GPU, and returns what the
    /// kubelet passes to the container runtime.
    pub fn start_container(&mut self) -> Result<api::ContainerAllocateResponse> {
        self.start_container_on(FIRST)
    }

    /// The same with a share of this device.
    pub fn start_container_on(&mut self, device: &str) -> Result<api::ContainerAllocateResponse> {
        let number = self.entries.len();
        let pod = format!("pod-{number}");
        let ids = vec![format!("{device}::{number}")];
        self.allocations.pods.apply(bound_pod(&pod, device)?);
        let request = api::AllocateRequest {
            container_requests: vec![api::ContainerAllocateRequest {
                devices_ids: ids.clone(),
            }],
        };
        let answer = self
            .runtime
            .block_on(self.plugin.allocate(Request::new(request)))?;
        let answer = answer.into_inner().container_responses.pop();
        let answer = answer.context("Allocate answers for one container")?;
        let encoded = base64::engine::general_purpose::STANDARD.encode(answer.encode_to_vec());
        self.entries.push(json!({
            "PodUID": pod, "ContainerName": "main", "ResourceName": RESOURCE,
            "DeviceIDs": {"-1": ids}, "AllocResp": encoded,
        }));
        let checkpoint = json!({
            "Data": {"PodDeviceEntries": self.entries, "RegisteredDevices": {}}, "Checksum": 1,
        });
        // By rename, as the kubelet does.
        let path = &self.allocations.paths.checkpoint;
        let new = path.with_extension("new");
        fs::write(&new, checkpoint.to_string())?;
        fs::rename(new, path)?;
        let request = api::PreStartContainerRequest { devices_ids: ids };
        let started = self.plugin.pre_start_container(Request::new(request));
        self.runtime.block_on(started)?;
        Ok(answer)
    }
}

/// What generates NVIDIA's spec of the simulated driver.
fn generator(node: &Node, settings: &Settings) -> SpecGenerator {
    let programs = settings.toolkit.clone();
    let mut generator = SpecGenerator::new(&settings.paths(), programs);
    let state = (STATE_VARIABLE.into(), node.state().into());
    generator.variables.push(state);
    generator
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Where the machine's mounts are shared, each directory has a file system in it.
        let directories = fs::read_dir(&self.allocations.paths.container_directories);
        for directory in directories.into_iter().flatten().flatten() {
            let _ = counters_file::unmount(&directory.path());
        }
    }
}

/// A pod that the scheduler has bound.
fn bound_pod(uid: &str, device: &str) -> Result<Pod> {
    let grant = json!({"resource": RESOURCE, "gpu": device, "memory": SHARE, "cores": 1});
    let allocation = json!({
        "v": 1, "node": "n1", "containers": {"main": [grant]}, "init": {}, "priority": 1,
    });
    let object = json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "default",
                     "annotations": {"aliquot.dev/allocation": allocation.to_string()}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
    });
    Pod::read(&serde_json::from_value(object)?).ok_or_else(|| anyhow!("pod {uid} is not bound"))
}

/// What NVML reports of the simulated machine.
struct TwoGpus;

impl Driver for TwoGpus {
    fn inventory(&self) -> Result<DriverInventory, NvmlError> {
        let gpu = |(index, uuid): (u32, &str)| GpuFacts {
            uuid: uuid.to_owned(),
            index,
            minor: Some(index),
            model: "NVIDIA A100-SXM4-80GB".to_owned(),
            memory: Mib(81_920),
            ..GpuFacts::default()
        };
        Ok(DriverInventory {
            driver_version: DRIVER.to_owned(),
            gpus: (0..).zip([FIRST, SECOND]).map(gpu).collect(),
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
}

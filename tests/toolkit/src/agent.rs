//! The node agent's own code on a node, without a kubelet or an API server: `Allocate`, the checkpoint
//! as the kubelet writes it, and `PreStartContainer`, which writes the files of a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::{Mib, Scaling};
use aliquot_device_plugin::accepted::Store;
use aliquot_device_plugin::allocatable::NodeLayout;
use aliquot_device_plugin::call_state::CallState;
use aliquot_device_plugin::environment::NodeRules;
use aliquot_device_plugin::inventory::NodePublisher;
use aliquot_device_plugin::metrics::Metrics;
use aliquot_device_plugin::modes::SharingModes;
use aliquot_device_plugin::plugin::Plugin;
use aliquot_device_plugin::pod::Pod;
use aliquot_device_plugin::pods::Pods;
use aliquot_device_plugin::preallocated::Preallocated;
use aliquot_device_plugin::prestart::PreStart;
use aliquot_device_plugin::proto::v1beta1 as api;
use aliquot_device_plugin::runtime::device_list::RuntimeStatus;
use aliquot_device_plugin::settings::Settings;
use aliquot_device_plugin::{counters_file, injection};
use aliquot_nvml::{DeviceHealth, Driver, DriverInventory, GpuEvent, GpuFacts, NvmlError};
use aliquot_profiles::Defaults;
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

use crate::node::{CONTEXT, DRIVER, FIRST, Installer, Node, SECOND};
use crate::programs;

const RESOURCE: &str = "nvidia.com/gpu";
/// The memory that each container is allocated, in MiB.
const SHARE: u64 = 3000;

/// Where the driver in a container comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverSource {
    /// NVIDIA's CDI spec, from which the agent takes the edits.
    NvidiaSpec,
    /// The driver's root, from which the agent mounts the libraries.
    DriverRoot,
    /// NVIDIA's runtime, for `NVIDIA_VISIBLE_DEVICES`; the agent uses no CDI.
    NvidiaRuntime,
    /// Nowhere: CDI is used, and nothing has the driver.
    Nothing,
}

/// All sources of a driver.
pub const DRIVER_SOURCES: [DriverSource; 3] = [
    DriverSource::NvidiaSpec,
    DriverSource::DriverRoot,
    DriverSource::NvidiaRuntime,
];

/// A node agent that has started.
pub struct Agent {
    runtime: Runtime,
    plugin: Plugin,
    prestart: Arc<PreStart>,
    /// The checkpoint's entries.
    entries: Vec<Value>,
}

impl Agent {
    pub(crate) fn start(node: &Node, source: DriverSource) -> Result<Self> {
        let folder = node.folder().join(format!("agent-{source:?}"));
        let flag = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
        let specs = match source {
            DriverSource::NvidiaSpec => node.specs(Installer::Package),
            _ => folder.join("none"),
        };
        let list = match source {
            DriverSource::NvidiaRuntime => "envvar",
            _ => "cdi",
        };
        let root = match source {
            DriverSource::Nothing => folder.join("none"),
            _ => node.driver_root(),
        };
        let settings = Settings::try_parse_from([
            "agent".to_owned(),
            "--node-name=n1".to_owned(),
            format!("--device-list={list}"),
            flag("kubelet-dir", folder.join("kubelet")),
            flag("cdi-dir", folder.join("cdi")),
            flag("state-dir", folder.join("state")),
            flag("nvidia-cdi-dirs", specs),
            flag("driver-root", root.clone()),
            flag("host-driver-root", root),
        ])?;
        let paths = settings.paths();
        fs::create_dir_all(&paths.plugins)?;
        fs::create_dir_all(&paths.cdi)?;
        let limiter = injection::install(&programs::limiter()?, &paths.limiter)?;
        let driver: Arc<dyn Driver> = Arc::new(TwoGpus);
        let facts = driver.inventory()?;
        let defaults = Defaults {
            split: 100,
            memory_scaling: Scaling::ONE,
        };
        let layout = NodeLayout::built_in(&facts, RESOURCE, &defaults);
        let pods = Pods::default();
        pods.reset(Vec::new());
        let prestart = Arc::new(PreStart {
            call_state: CallState::default(),
            node: "n1".into(),
            default_resource: RESOURCE.to_owned(),
            rules: NodeRules::new(true),
            namespace_rights: None,
            modes: SharingModes::new(&driver, &folder),
            store: Mutex::new(Store::open(paths.accepted.clone())?),
            preallocated: Arc::new(Preallocated::new(paths.preallocated.clone(), None)?),
            paths,
            device_list: settings.device_list,
            limiter: Some(limiter),
            context: Mib(CONTEXT),
            pods,
            published: NodePublisher::new(facts, Vec::new(), layout),
            lookup: Arc::new(|_| Box::pin(async { Ok(None) })),
        });
        prestart.published.set_runtime(RuntimeStatus::default());
        let plugin = Plugin::new(
            RESOURCE,
            Arc::clone(&prestart),
            Metrics::default(),
            CancellationToken::new(),
        );
        Ok(Self {
            runtime: Runtime::new()?,
            plugin,
            prestart,
            entries: Vec::new(),
        })
    }

    /// The folder with the agent's own CDI specs.
    pub fn specs(&self) -> &Path {
        &self.prestart.paths.cdi
    }

    /// The folder with the installed limiter and the shim libraries.
    pub fn limiter(&self) -> &Path {
        &self.prestart.paths.limiter
    }

    /// Writes the files of one more container with a share of the first GPU, and returns what the
    /// kubelet passes to the container runtime.
    pub fn start_container(&mut self) -> Result<api::ContainerAllocateResponse> {
        let number = self.entries.len();
        let pod = format!("pod-{number}");
        let ids = vec![format!("{FIRST}::{number}")];
        self.prestart.pods.apply(bound_pod(&pod)?);
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
        let path = &self.prestart.paths.checkpoint;
        let new = path.with_extension("new");
        fs::write(&new, checkpoint.to_string())?;
        fs::rename(new, path)?;
        let request = api::PreStartContainerRequest { devices_ids: ids };
        let started = self.plugin.pre_start_container(Request::new(request));
        self.runtime.block_on(started)?;
        Ok(answer)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Where the machine's mounts are shared, each directory has a file system in it.
        let directories = fs::read_dir(&self.prestart.paths.container_directories);
        for directory in directories.into_iter().flatten().flatten() {
            let _ = counters_file::unmount(&directory.path());
        }
    }
}

/// A pod that the scheduler has bound.
fn bound_pod(uid: &str) -> Result<Pod> {
    let grant = json!({"resource": RESOURCE, "gpu": FIRST, "memory": SHARE, "cores": 1});
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
            pci_bus_id: None,
            pci_device_id: None,
            model: "NVIDIA A100-SXM4-80GB".to_owned(),
            memory: Mib(81_920),
            reserved: None,
            compute_capability: None,
            numa: None,
            mig: aliquot_nvml::MigMode::default(),
            layout: aliquot_nvml::MigLayout::default(),
            links: std::collections::BTreeMap::new(),
        };
        Ok(DriverInventory {
            driver_version: DRIVER.to_owned(),
            cuda_version: None,
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

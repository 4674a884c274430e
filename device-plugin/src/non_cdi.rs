//! Passing GPUs to containers without CDI, for runtimes that have none: what Allocate answers, and
//! the check at the container's start that this is what the pod was allocated. Allocate answers
//! before the pod is known, so what depends on the pod (a share through MPS, an instance of dynamic
//! MIG) needs CDI.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use aliquot_core::inventory::Mode;
use aliquot_core::{GpuUuid, Grant};
use clap::ValueEnum;

use crate::accepted::AcceptedAllocation;
use crate::capabilities::{self, AllowedCapabilities};
use crate::checkpoint::CheckpointEntry;
use crate::container_edits;
use crate::device_id::{AnswerName, DeviceId, DeviceIds};
use crate::environment::{COUNTERS, DIRECTORY, NVIDIA_VISIBLE, SHARED_CACHE, VISIBLE, VOID};
use crate::files::{self, FileError};
use crate::host::{self, HostDevice};
use crate::injection::{PRELOAD, PRELOAD_FILE};
use crate::inventory::PublishedNode;
use crate::pod::Pod;
use crate::prestart::PreStart;
use crate::proto::v1beta1 as api;
use crate::settings::Paths;
use crate::validation::{NonCdiRefusal, Refusal};

/// Where NVIDIA's runtime looks for GPUs that are named by mounts, which an image cannot add.
const VOLUMES: &str = "/var/run/nvidia-container-devices";
/// The file that is mounted there.
const DEV_NULL: &str = "/dev/null";

/// How Allocate passes GPUs to containers, as in NVIDIA's `deviceListStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceListStrategy {
    /// CDI; where the container runtime lacks it and NVIDIA's runtime starts the containers, the
    /// way that this one is configured for. Chosen when the agent starts.
    Auto,
    /// A CDI device, whose spec is written when the pod is known.
    #[default]
    Cdi,
    /// `NVIDIA_VISIBLE_DEVICES`, for NVIDIA's container runtime.
    Envvar,
    /// The same with GPUs named by mounts, which a pod's environment cannot override.
    VolumeMounts,
}

impl DeviceListStrategy {
    /// The value of the flag.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cdi => "cdi",
            Self::Envvar => "envvar",
            Self::VolumeMounts => "volume-mounts",
        }
    }
}

impl PublishedNode {
    /// How new containers get their GPUs; `None`: that is not known yet.
    pub fn device_list(&self) -> Option<DeviceListStrategy> {
        self.runtime.as_ref()?.device_list
    }
}

/// The devices that an answer without CDI named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NonCdiAnswer {
    /// The devices, by the UUIDs that they had then.
    pub visible: BTreeSet<String>,
    /// Named by mounts, which no environment overrides.
    pub mounted: bool,
    /// The answer mounts a preload list with the limiter.
    pub preloads: bool,
}

/// Longest wait for the choice; after it Allocate answers with CDI.
const CHOICE_TIMEOUT: Duration = Duration::from_secs(10);

impl PreStart {
    /// Waits until the strategy is chosen. An answer is final for its container, and in its first
    /// second the agent has not inspected the container runtime.
    pub(crate) async fn device_list_chosen(&self) {
        if self.device_list == DeviceListStrategy::Auto {
            let mut node = self.published.subscribe();
            let known = node.wait_for(|node| node.device_list().is_some());
            let _timed_out = tokio::time::timeout(CHOICE_TIMEOUT, known).await;
        }
    }

    /// The answer for the container that gets these device ids.
    pub(crate) fn answer_allocate(
        &self,
        name: &AnswerName,
        ids: &DeviceIds,
    ) -> api::ContainerAllocateResponse {
        let node = self.published.get();
        let list = match self.device_list {
            DeviceListStrategy::Auto => node.device_list().unwrap_or_default(),
            configured => configured,
        };
        if list == DeviceListStrategy::Cdi {
            let name = name.qualified();
            return api::ContainerAllocateResponse {
                cdi_devices: vec![api::CdiDevice { name }],
                ..api::ContainerAllocateResponse::default()
            };
        }
        let limits = self.limiter.is_some();
        answer(list, name, ids, &node, &self.paths, limits)
    }

    /// Checks that what Allocate named, before the pod was known, is what each container was
    /// allocated.
    pub(crate) fn check_non_cdi_answers(
        &self,
        accepted: &AcceptedAllocation,
        holders: &[CheckpointEntry],
        node: &PublishedNode,
        pod: Option<&Pod>,
    ) -> Result<(), Refusal> {
        for holders in container_edits::entries_by_container(holders) {
            let grants = accepted.allocation.grants(&holders[0].container);
            let mode = |device: &GpuUuid| accepted.mode(device);
            let grants = grants.unwrap_or_default();
            let limits = self.limiter.is_some();
            check_non_cdi_answer(&holders, grants, mode, node, limits, pod)
                .map_err(Refusal::NonCdi)?;
        }
        Ok(())
    }
}

fn answer(
    list: DeviceListStrategy,
    name: &AnswerName,
    ids: &DeviceIds,
    node: &PublishedNode,
    paths: &Paths,
    limits: bool,
) -> api::ContainerAllocateResponse {
    let devices: BTreeSet<GpuUuid> = ids
        .iter()
        .filter_map(|id| Some(DeviceId::parse(id)?.gpu))
        .collect();
    let devices = devices
        .iter()
        .filter_map(|device| node.inventory.gpu(device));
    // Which instance, or which daemon, is known only with the pod.
    let known_now = |mode: Mode| !matches!(mode, Mode::Mig | Mode::Mps);
    let devices: Vec<_> = devices.filter(|device| known_now(device.mode)).collect();
    let present = devices
        .iter()
        .filter_map(|device| node.devices.get(&device.uuid));
    let present: Vec<HostDevice> = present.cloned().collect();
    let allowed = AllowedCapabilities::of_all(devices.iter().copied(), &node.layout);
    let directory = paths
        .container_directories
        .join(name.as_str())
        .display()
        .to_string();
    let mount = |host: String, container: &str, read_only| api::Mount {
        container_path: container.to_owned(),
        host_path: host,
        read_only,
    };
    let mut mounts = vec![
        mount(directory.clone(), DIRECTORY, true),
        mount(format!("{directory}/counters/slots"), COUNTERS, false),
    ];
    let mut envs = Vec::new();
    if let Some(allowed) = allowed {
        envs.push((capabilities::VARIABLE, allowed.names().join(",")));
        if limits {
            envs.push((SHARED_CACHE, COUNTERS.to_owned()));
            mounts.push(mount(format!("{directory}/{PRELOAD_FILE}"), PRELOAD, true));
        }
    }
    let visible: Vec<&str> = present.iter().map(HostDevice::current_uuid).collect();
    if list == DeviceListStrategy::VolumeMounts {
        let device = |id| mount(DEV_NULL.to_owned(), &format!("{VOLUMES}/{id}"), false);
        mounts.extend(visible.iter().map(device));
        envs.push((NVIDIA_VISIBLE, VOLUMES.to_owned()));
    } else if visible.is_empty() {
        envs.push((NVIDIA_VISIBLE, VOID.to_owned()));
    } else {
        envs.push((NVIDIA_VISIBLE, visible.join(",")));
    }
    if !visible.is_empty() {
        envs.push((VISIBLE, visible.join(",")));
    }
    let root = paths.driver_root.as_ref();
    let nodes = host::driver(&[], root, &paths.capabilities, &present).edits;
    let devices = nodes.device_nodes.iter().filter_map(|node| {
        let path = node["path"].as_str()?;
        Some(api::DeviceSpec {
            container_path: path.to_owned(),
            host_path: node["hostPath"].as_str().unwrap_or(path).to_owned(),
            permissions: "rw".to_owned(),
        })
    });
    api::ContainerAllocateResponse {
        envs: envs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        mounts,
        devices: devices.collect(),
        ..api::ContainerAllocateResponse::default()
    }
}

/// Our name in an answer without CDI, and what the answer named; `None`: another plugin answered.
pub fn read(answer: &api::ContainerAllocateResponse) -> Option<(AnswerName, NonCdiAnswer)> {
    let at = |path: &str| answer.mounts.iter().find(|one| one.container_path == path);
    let directory = Path::new(&at(DIRECTORY)?.host_path);
    let name = AnswerName::parse(directory.file_name()?.to_str()?)?;
    let listed = answer.envs.get(NVIDIA_VISIBLE).map_or("", String::as_str);
    let mounted = answer.mounts.iter().filter_map(|mount| {
        let rest = mount.container_path.strip_prefix(VOLUMES)?;
        rest.strip_prefix('/')
    });
    let is_mounted = listed == VOLUMES;
    let visible: BTreeSet<String> = if is_mounted {
        mounted.map(str::to_owned).collect()
    } else {
        listed.split(',').map(str::to_owned).collect()
    };
    let preloads = at(PRELOAD).is_some();
    let named = NonCdiAnswer {
        visible,
        mounted: is_mounted,
        preloads,
    };
    Some((name, named))
}

/// The same of one container: `holders` are its entries, `mode` is a device's sharing mode when the
/// pod was accepted, `limits` whether this node enforces limits.
fn check_non_cdi_answer(
    holders: &[&CheckpointEntry],
    grants: &[Grant],
    mode: impl Fn(&GpuUuid) -> Mode,
    node: &PublishedNode,
    limits: bool,
    pod: Option<&Pod>,
) -> Result<(), NonCdiRefusal> {
    let Some(named) = holders.iter().find_map(|holder| holder.non_cdi.as_ref()) else {
        return Ok(());
    };
    let container = &holders[0].container;
    let needs = |what| NonCdiRefusal::NeedsCdi(container.clone(), what);
    if holders.len() > 1 {
        return Err(needs("devices of two resources"));
    }
    if grants.iter().any(|grant| grant.mig.is_some()) {
        return Err(needs("a MIG instance that is created for it"));
    }
    if grants.iter().any(|grant| mode(&grant.gpu) == Mode::Mps) {
        return Err(needs("a share of a GPU in mode mps"));
    }
    let current = |grant: &Grant| {
        let device = node.devices.get(&grant.gpu);
        device.map_or_else(
            || grant.gpu.to_string(),
            |device| device.current_uuid().to_owned(),
        )
    };
    let given: BTreeSet<String> = grants.iter().map(current).collect();
    if given != named.visible {
        return Err(NonCdiRefusal::OtherDevices {
            container: container.clone(),
            named: named.visible.iter().cloned().collect(),
            given: given.into_iter().collect(),
        });
    }
    let shared = grants.iter().any(|grant| mode(&grant.gpu) == Mode::Vgpu);
    if shared && limits && !named.preloads {
        return Err(NonCdiRefusal::Unlimited(container.clone()));
    }
    // A pod's own environment overrides that of the answer.
    let own = pod.and_then(|pod| pod.containers.iter().find(|one| one.name == *container));
    if !named.mounted && own.is_some_and(|own| own.env_from) {
        return Err(NonCdiRefusal::EnvFrom(container.clone()));
    }
    let devices = grants.iter().filter_map(|g| node.inventory.gpu(&g.gpu));
    let Some(allowed) = AllowedCapabilities::of_all(devices, &node.layout) else {
        return Ok(());
    };
    let own = own.and_then(|own| own.env.get(capabilities::VARIABLE));
    match own.and_then(|own| allowed.first_disallowed(own)) {
        None => Ok(()),
        Some(capability) => Err(NonCdiRefusal::Capability {
            container: container.clone(),
            capability: capability.to_owned(),
            allowed: allowed.names().join(","),
        }),
    }
}

/// Creates the preload list that an answer mounts, empty where nothing limits the container.
pub(crate) fn create_preload_list(directory: &Path, named: &NonCdiAnswer) -> Result<(), FileError> {
    let list = directory.join(PRELOAD_FILE);
    if named.preloads && !list.exists() {
        files::put(&list, b"")?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "non_cdi_tests.rs"]
mod tests;

//! What Allocate answers: a CDI device, or, for container runtimes without CDI, the environment that
//! NVIDIA's runtime reads. The answer is given before the pod is known, so what depends on the pod (a
//! share through MPS, an instance of dynamic MIG) needs CDI.

use std::collections::BTreeSet;

use aliquot_core::GpuUuid;
use aliquot_core::inventory::Mode;
use clap::ValueEnum;

use crate::allocation::capabilities::{self, AllowedCapabilities};
use crate::allocation::environment::SHARED_CACHE;
use crate::allocation::host;
use crate::gpus::host_device::HostDevice;
use crate::gpus::inventory::{NodePublisher, PublishedNode};
use crate::kubelet::proto::v1beta1 as api;
use crate::paths::Paths;
use aliquot_node_state::allocate_answer::{NVIDIA_VISIBLE, VISIBLE, VOID};
use aliquot_node_state::container_directory::{
    COUNTERS, COUNTERS_IN_CONTAINER, IN_CONTAINER, PRELOAD_IN_CONTAINER, PRELOAD_LIST,
};
use aliquot_node_state::device_id::{AnswerName, DeviceId, DeviceIds};

/// How Allocate passes GPUs to containers, as in NVIDIA's `deviceListStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceListStrategy {
    /// A CDI device, whose spec is written when the pod is known.
    #[default]
    Cdi,
    /// `NVIDIA_VISIBLE_DEVICES`, for NVIDIA's container runtime.
    Envvar,
}

pub struct AllocateAnswers {
    /// How GPUs are passed to containers.
    pub device_list: DeviceListStrategy,
    /// The agent has a limiter.
    pub limits: bool,
    pub paths: Paths,
    pub published: NodePublisher,
}

impl AllocateAnswers {
    /// The answer with this name for the container that gets these device ids.
    pub(crate) fn answer(
        &self,
        name: &AnswerName,
        ids: &DeviceIds,
    ) -> api::ContainerAllocateResponse {
        match self.device_list {
            DeviceListStrategy::Cdi => api::ContainerAllocateResponse {
                cdi_devices: vec![api::CdiDevice {
                    name: name.qualified(),
                }],
                ..api::ContainerAllocateResponse::default()
            },
            DeviceListStrategy::Envvar => {
                environment(name, ids, &self.published.get(), &self.paths, self.limits)
            }
        }
    }
}

/// The answer without CDI.
fn environment(
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
        mount(directory.clone(), IN_CONTAINER, true),
        mount(
            format!("{directory}/{COUNTERS}"),
            COUNTERS_IN_CONTAINER,
            false,
        ),
    ];
    let mut envs = Vec::new();
    if let Some(allowed) = allowed {
        envs.push((capabilities::VARIABLE, allowed.names().join(",")));
        if limits {
            envs.push((SHARED_CACHE, COUNTERS_IN_CONTAINER.to_owned()));
            mounts.push(mount(
                format!("{directory}/{PRELOAD_LIST}"),
                PRELOAD_IN_CONTAINER,
                true,
            ));
        }
    }
    let visible: Vec<&str> = present.iter().map(HostDevice::current_uuid).collect();
    if visible.is_empty() {
        envs.push((NVIDIA_VISIBLE, VOID.to_owned()));
    } else {
        envs.push((NVIDIA_VISIBLE, visible.join(",")));
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

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;

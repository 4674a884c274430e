//! Containers, processes and shares for tests.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::Mode;
use aliquot_core::{Mib, Percent};
use aliquot_k8s::event::PodRef;
use aliquot_node_state::cgroup::ProcessLocation;
use aliquot_node_state::container_directory::ContainerDirectory;
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_node_state::processes::{ProcessIdentity, ProcessStatus};
use aliquot_node_state::state::StateDirectory;
use tempfile::TempDir;

use crate::lending::LentShare;
use crate::managed_containers::{ContainerDevice, ManagedContainer, ManagedContainers};
use crate::node_sample::{DevicePage, NodeSample, ProcessSample};
use crate::pods::{GpuSource, Pod};

pub(crate) fn state_directory() -> TempDir {
    let dir = tempfile::tempdir().expect("tempdir");
    fs::create_dir(StateDirectory(dir.path()).accepted()).expect("created");
    dir
}

/// A device of 3000 MiB and 30 percent.
pub(crate) fn device(uuid: &str) -> ContainerDevice {
    ContainerDevice {
        uuid: uuid.into(),
        memory: Mib(3000),
        cores: Percent(30),
        mode: Mode::Vgpu,
        profile: None,
    }
}

pub(crate) fn container(
    name: &str,
    pod: &str,
    container: &str,
    devices: &[&str],
) -> ManagedContainer {
    ManagedContainer {
        id: name.to_owned(),
        pod: pod.into(),
        namespace: "default".to_owned(),
        pod_name: format!("pod-{pod}"),
        name: container.to_owned(),
        devices: devices.iter().map(|uuid| device(uuid)).collect(),
        effective: EffectiveLimits {
            oom_killer: true,
            ..EffectiveLimits::default()
        },
        limited: true,
        directory: ContainerDirectory::new(format!("/nonexistent/{name}")),
    }
}

pub(crate) fn process(pid: u32, pod: Option<&str>, container: &str) -> ProcessStatus {
    ProcessStatus {
        identity: ProcessIdentity { pid, start: 1 },
        location: ProcessLocation {
            pod: pod.map(Into::into),
            container: pod.map(|_| container.to_owned()),
            path: format!("/kubepods/{pod:?}/{container}"),
        },
        container_pid: Some(pid % 1000),
        exiting: false,
    }
}

pub(crate) fn process_sample(gpu: &str, process: ProcessStatus, bytes: u64) -> ProcessSample {
    ProcessSample {
        gpu: gpu.to_owned(),
        instance: None,
        bytes: Some(bytes),
        process,
    }
}

pub(crate) fn node_sample(containers: Vec<ManagedContainer>) -> NodeSample {
    let containers = ManagedContainers {
        all: containers,
        ..ManagedContainers::default()
    };
    NodeSample {
        containers: Arc::new(containers),
        ..NodeSample::default()
    }
}

/// What the limits page says of a device whose limit was requested.
pub(crate) fn page(limit: u64) -> DevicePage {
    DevicePage {
        limit,
        request: limit,
        guaranteed: limit,
        ..DevicePage::default()
    }
}

/// A pod with these containers: the runtime's id and the name of each.
pub(crate) fn pod(uid: &str, containers: &[(&str, &str)]) -> Pod {
    let containers = containers.iter();
    Pod {
        reference: PodRef {
            namespace: "default".to_owned(),
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
        },
        gpu: GpuSource::Nothing,
        ended: false,
        ended_containers: std::collections::BTreeSet::new(),
        containers: containers
            .map(|(id, name)| ((*id).to_owned(), (*name).to_owned()))
            .collect(),
        has_mps_label: false,
    }
}

/// The grace period of a [`share`].
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// A share of 2000 MiB that may use 8000; sizes in MiB.
pub(crate) fn share(number: usize, used: u64, lacking: u64) -> LentShare {
    const MIB: u64 = 1 << 20;
    LentShare {
        at: (number, 0),
        container: format!("c{number}"),
        request: 2000 * MIB,
        limit: 8000 * MIB,
        used: used * MIB,
        tolerated: 0,
        lacking: lacking * MIB,
        yields: false,
        grace: GRACE,
    }
}

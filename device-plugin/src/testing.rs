//! Values for tests: a pod, devices, grants, with defaults that a test overrides.

use std::ffi::OsStr;
use std::path::Path;

use aliquot_core::inventory::Gpu;
use aliquot_core::mig::published::{FixedInstance, Mig, MigPlacement};
use aliquot_core::usage::Stage;
use aliquot_core::{Allocation, Grant, Inventory, Mib, Percent, Scaling};
use aliquot_node_state::accepted::{AcceptedAllocation, AcceptedContainer};
use aliquot_node_state::checkpoint::CheckpointEntry;
use aliquot_node_state::device_id::AnswerName;
use aliquot_node_state::limits::EffectiveLimits;
use aliquot_node_state::mps::{DaemonPhase, DaemonSpec, DaemonStatus};
use aliquot_nvml::{DeviceHealth, DriverHealth, GpuInstance, MigDevice};
use aliquot_profiles::Defaults;
use aliquot_profiles::mode::{InstanceSharing, LayoutEntry};
use serde_json::Value;

use crate::gpus::allocatable::{GpuLayout, NodeLayout};
use crate::gpus::device_failures::NodeFailures;
use crate::gpus::inventory::{GpuReadings, NodePublisher};
use crate::host_device::{HostDevice, InstanceIds};
use crate::pods::pod::{Container, Phase, Pod};

/// The resource of all test values.
pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

/// A running pod on node `n1` with one app container `main`, named like its uid.
pub(crate) fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.into(),
        kubelet_uid: uid.into(),
        namespace: "default".to_owned(),
        name: uid.to_owned(),
        node: "n1".into(),
        phase: Phase::Running,
        created: 0,
        mirror: false,
        allocation: None,
        resize: None,
        ids: std::collections::BTreeMap::new(),
        containers: vec![container("main", Stage::App)],
    }
}

/// A checkpoint entry of a pod's container `main`.
pub(crate) fn entry(pod: &str, name: Option<&str>, ids: &[&str]) -> CheckpointEntry {
    CheckpointEntry {
        pod: pod.into(),
        container: "main".to_owned(),
        resource: RESOURCE.to_owned(),
        ids: ids.iter().map(|&id| id.to_owned()).collect(),
        name: name.and_then(AnswerName::parse),
    }
}

/// A container without environment.
pub(crate) fn container(name: &str, stage: Stage) -> Container {
    Container {
        name: name.to_owned(),
        stage,
        env: std::collections::BTreeMap::new(),
        mounts_shm: false,
        requested: std::collections::BTreeMap::new(),
    }
}

impl Pod {
    pub(crate) fn with(mut self, allocation: &Allocation) -> Self {
        self.allocation = Some(allocation.encode().expect("json"));
        self
    }
}

pub(crate) fn grant(gpu: &str, memory: u64, cores: u32) -> Grant {
    Grant {
        resource: RESOURCE.to_owned(),
        gpu: gpu.into(),
        memory: Mib(memory),
        cores: Percent(cores),
        replicas: 1,
        burst: None,
        mig: None,
    }
}

/// A share of an instance that is made on a GPU with dynamic MIG.
pub(crate) fn instance_grant(gpu: &str, profile: &str, start: u8) -> Grant {
    Grant {
        mig: Some(MigPlacement {
            profile: profile.to_owned(),
            start,
        }),
        ..grant(gpu, 1, 100)
    }
}

/// An allocation on `n1` with these app containers.
pub(crate) fn allocation(containers: &[(&str, &[Grant])]) -> Allocation {
    Allocation {
        v: 1,
        node: "n1".into(),
        containers: containers
            .iter()
            .map(|(name, grants)| ((*name).to_owned(), grants.to_vec()))
            .collect(),
        init: std::collections::BTreeMap::new(),
        priority: 1,
    }
}

/// A healthy GPU of 10,000 MiB with 10 replicas.
pub(crate) fn gpu(uuid: &str, index: u32) -> Gpu {
    let model = "NVIDIA A100-SXM4-80GB".to_owned();
    Gpu {
        replicas: 10,
        ..Gpu::vgpu(uuid.into(), index, model, Mib(10_000))
    }
}

/// What is published of an instance in a layout of this GPU.
pub(crate) fn fixed_instance(parent: &str, profile: &str) -> Mig {
    Mig::Fixed(FixedInstance {
        parent: parent.into(),
        profile: profile.to_owned(),
        start: 0,
        gi: 1,
        ci: 0,
    })
}

/// A complete instance as the driver reports it.
pub(crate) fn reported_instance(start: u8, uuid: &str) -> GpuInstance {
    GpuInstance {
        profile: "1g.5gb".to_owned(),
        start,
        memory: Mib(4864),
        id: 7 + u32::from(start),
        devices: vec![MigDevice {
            uuid: uuid.to_owned(),
            id: 0,
            whole: true,
        }],
    }
}

/// `GPU-a` as the host has it, or its instance with this UUID.
pub(crate) fn host_device(minor: u32, instance: Option<&str>) -> HostDevice {
    HostDevice {
        uuid: "GPU-a".into(),
        minor: Some(minor),
        instance: instance.map(|uuid| InstanceIds {
            uuid: uuid.to_owned(),
            gpu_instance: 1,
            compute_instance: 0,
        }),
    }
}

pub(crate) fn layout_entry(profile: &str, count: u32, on: Option<InstanceSharing>) -> LayoutEntry {
    LayoutEntry {
        profile: profile.to_owned(),
        count,
        on,
    }
}

/// An inventory of healthy GPUs with these UUIDs.
pub(crate) fn inventory(uuids: &[&str]) -> Inventory {
    let gpus = (0..)
        .zip(uuids)
        .map(|(index, uuid)| gpu(uuid, index))
        .collect();
    Inventory {
        driver: "580.82".to_owned(),
        topology_policy: "none".to_owned(),
        ..Inventory::new(gpus)
    }
}

/// The accepted allocation of a pod with the container `main`.
pub(crate) fn accepted(uid: &str, allocation: Allocation) -> AcceptedAllocation {
    let main = AcceptedContainer {
        name: "main".to_owned(),
        stage: Stage::App,
        effective: EffectiveLimits {
            oom_killer: true,
            ..EffectiveLimits::default()
        },
    };
    let (namespace, name) = ("default".to_owned(), uid.to_owned());
    AcceptedAllocation::new(uid.into(), namespace, name, allocation, vec![main])
}

/// A pod's share of each of these devices.
pub(crate) fn share_of(uid: &str, gpus: &[&str]) -> AcceptedAllocation {
    let grants: Vec<Grant> = gpus.iter().map(|gpu| grant(gpu, 3000, 30)).collect();
    accepted(uid, allocation(&[("main", &grants)]))
}

/// A layout with mode vgpu and two replicas on each of these GPUs.
pub(crate) fn layout_of(uuids: &[&str]) -> NodeLayout {
    let defaults = Defaults {
        split: 2,
        memory_scaling: Scaling::ONE,
    };
    NodeLayout::built_in(&facts(uuids), RESOURCE, &defaults)
}

/// The publisher of a node with these healthy GPUs in [`layout_of`].
pub(crate) fn published(uuids: &[&str]) -> NodePublisher {
    NodePublisher::new(facts(uuids), Vec::new(), layout_of(uuids))
}

/// Readings of these GPUs in which these failed.
pub(crate) fn readings(uuids: &[&str], failures: NodeFailures) -> GpuReadings {
    GpuReadings {
        facts: facts(uuids),
        health: Vec::new(),
        failures,
    }
}

pub(crate) fn health(gpu: &str, health: DriverHealth) -> DeviceHealth {
    DeviceHealth {
        uuid: gpu.to_owned(),
        health,
    }
}

/// A layout of three GPUs: vgpu with two replicas, an exclusive one, and time-slicing with three
/// replicas under a resource name of its own.
pub(crate) fn mixed_layout() -> NodeLayout {
    use aliquot_profiles::mode;

    let shared = mode::Timeslice {
        rename: Some("nvidia.com/gpu.shared".to_owned()),
        strict: true,
        ..mode::Timeslice::new(3)
    };
    let modes = [
        aliquot_profiles::Mode::Vgpu(mode::Vgpu {
            split: Some(2),
            memory_scaling: Some(Scaling::parse("1.5").expect("good")),
            ..mode::Vgpu::default()
        }),
        aliquot_profiles::Mode::Exclusive(mode::Exclusive::default()),
        aliquot_profiles::Mode::Timeslice(shared),
    ];
    let names = ["GPU-a", "GPU-b", "GPU-c"];
    NodeLayout {
        default_resource: RESOURCE.to_owned(),
        gpus: names
            .map(aliquot_core::GpuUuid::from)
            .into_iter()
            .zip(modes.map(GpuLayout::serving))
            .collect(),
        ..NodeLayout::default()
    }
}

/// The driver's facts about healthy GPUs of 10,000 MiB with these UUIDs.
pub(crate) fn facts(uuids: &[&str]) -> aliquot_nvml::DriverInventory {
    let gpu = |(index, uuid): (u32, &&str)| aliquot_nvml::GpuFacts {
        uuid: (*uuid).to_owned(),
        index,
        minor: Some(index),
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        memory: Mib(10_000),
        ..aliquot_nvml::GpuFacts::default()
    };
    aliquot_nvml::DriverInventory {
        driver_version: "580.82".to_owned(),
        gpus: (0..).zip(uuids).map(gpu).collect(),
        notes: Vec::new(),
    }
}

/// An API server that gets the body of each request, and answers with this status and object.
pub(crate) fn api_server(
    answer: impl Fn(Value) -> (u16, Value) + Clone + Send + 'static,
) -> kube::Client {
    let service = tower::service_fn(move |request: ::http::Request<kube::client::Body>| {
        let answer = answer.clone();
        async move {
            let body = request.into_body().collect_bytes().await?;
            let (code, answer) = answer(serde_json::from_slice(&body).unwrap_or_default());
            let body = kube::client::Body::from(answer.to_string().into_bytes());
            let answer = ::http::Response::builder().status(code).body(body)?;
            Ok::<_, tower::BoxError>(answer)
        }
    });
    kube::Client::new(service, "default")
}

/// A driver of a node without GPUs that reports no events.
pub(crate) struct IdleDriver;

impl aliquot_nvml::Driver for IdleDriver {
    fn inventory(&self) -> Result<aliquot_nvml::DriverInventory, aliquot_nvml::NvmlError> {
        Ok(facts(&[]))
    }

    fn health(&self) -> Result<Vec<aliquot_nvml::DeviceHealth>, aliquot_nvml::NvmlError> {
        Ok(Vec::new())
    }

    fn wait_events(
        &self,
        timeout: std::time::Duration,
    ) -> Result<Vec<aliquot_nvml::GpuEvent>, aliquot_nvml::NvmlError> {
        std::thread::park_timeout(timeout);
        Ok(Vec::new())
    }
}

pub(crate) fn daemon_status(phase: DaemonPhase, spec: Option<DaemonSpec>) -> DaemonStatus {
    DaemonStatus {
        v: 1,
        phase,
        spec,
        daemon: Some(7),
        since: 0,
        restarts: 0,
        losses: 0,
        faults: 0,
        servers: Vec::new(),
        one_user: false,
    }
}

/// Set in a child that [`run_child`] runs.
pub(crate) const CHILD: &str = "ALIQUOT_TEST_MAY_MOUNT";

/// Makes the place a shared mount, as on a host with systemd.
pub(crate) const SHARE: &str = r#"mount --bind "$1" "$1" && mount --make-shared "$1""#;

/// Runs the test `child` of this program, with `value` in [`CHILD`], in a mount namespace of its own
/// where a shell has done `first` with `place`. It prints CHILD at its end.
pub(crate) fn run_child(child: &str, first: &str, place: &Path, value: &OsStr) {
    let own = std::env::current_exe().expect("this program");
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(format!("{first} && exec \"$2\" --exact \"$3\" --nocapture"))
        .arg("sh")
        .args([place, own.as_path(), Path::new(child)])
        .env(CHILD, value)
        .output()
        .expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains("CHILD"),
        "{output:?}"
    );
}

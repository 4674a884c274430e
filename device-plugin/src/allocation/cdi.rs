//! CDI specs: ours, one for each Allocate answer, and the parts taken from NVIDIA's own.

use std::fmt;
use std::path::{Path, PathBuf};

use aliquot_core::GpuUuid;
use aliquot_node_state::container_directory::{COUNTERS, COUNTERS_IN_CONTAINER, IN_CONTAINER};
use aliquot_node_state::device_id::{AnswerName, KIND};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The oldest CDI version that has all we use (`hostPath` of device nodes); containerd 1.7 and
/// later read it.
const VERSION: &str = "0.5.0";
/// The kinds under which NVIDIA's tools describe the GPUs, in the order of preference: the toolkit's
/// own, that of NVIDIA's device plugin, and that of GPU Operator since 25.10.
pub const NVIDIA_KINDS: [&str; 3] = [
    "nvidia.com/gpu",
    "k8s.device-plugin.nvidia.com/gpu",
    MANAGEMENT_KIND,
];
/// The kind for management containers, whose only device has the nodes of all GPUs.
pub const MANAGEMENT_KIND: &str = "management.nvidia.com/gpu";

const FILE_PREFIX: &str = "aliquot.dev-vgpu_";

/// The file of our spec for a name, inside the CDI directory.
pub fn file_name(name: &str) -> String {
    format!("{FILE_PREFIX}{name}.json")
}

/// The name whose spec this file is; `None` for files of others.
pub fn name_of(file: &str) -> Option<&str> {
    file.strip_prefix(FILE_PREFIX)?.strip_suffix(".json")
}

/// Container edits. Lists that are unknown here are retained as they were read, so that edits of a
/// newer toolkit survive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Value>,
    /// Hooks, additional groups and whatever comes later.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name, unique under the kind.
    pub name: String,
    #[serde(default)]
    pub container_edits: Edits,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(rename = "cdiVersion")]
    pub version: String,
    /// `vendor/class`.
    pub kind: String,
    #[serde(default)]
    pub devices: Vec<Device>,
    /// The edits for every container with any of the devices.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub container_edits: Edits,
}

/// The container edits that provide the driver, and the CDI version that they need.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    /// CDI version of the source.
    pub version: String,
    pub edits: Edits,
}

/// A device, as NVIDIA's specs name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    pub uuid: GpuUuid,
    /// NVML's index of a whole GPU.
    pub index: Option<u32>,
    /// The minor of a whole GPU's device node, where the driver knows it.
    pub minor: Option<u32>,
}

/// A spec of one of [`NVIDIA_KINDS`], and its file.
#[derive(Clone, Debug, PartialEq)]
pub struct NvidiaSpec {
    pub file: PathBuf,
    pub spec: Spec,
}

/// Why a spec of NVIDIA's is not used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecRefusal {
    /// It mounts, or runs as a hook, what is not on the host.
    MissingPath { file: PathBuf, path: PathBuf },
    /// The GPU that it names by an index is another one by now.
    OtherMinor {
        file: PathBuf,
        /// The index, which is the device's name.
        index: u32,
        /// The device node that it has for this index.
        node: String,
        uuid: GpuUuid,
        /// That GPU's minor.
        minor: u32,
    },
}

impl SpecRefusal {
    pub fn file(&self) -> &Path {
        match self {
            Self::MissingPath { file, .. } | Self::OtherMinor { file, .. } => file,
        }
    }
}

impl fmt::Display for SpecRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingPath { file, path } => write!(
                f,
                "{} names {}, which does not exist on the host",
                file.display(),
                path.display()
            ),
            Self::OtherMinor {
                file,
                index,
                node,
                uuid,
                minor,
            } => write!(
                f,
                "{} has {node} for device {index}, but {uuid}, which NVML lists at index {index}, is /dev/nvidia{minor}",
                file.display()
            ),
        }
    }
}

impl NvidiaSpec {
    /// Whether its only device has the nodes of all GPUs.
    pub fn is_management(&self) -> bool {
        self.spec.kind == MANAGEMENT_KIND
    }

    /// The driver's edits for these devices, in the container's order; `None` when the spec does
    /// not name them all, by UUID or by an index that is still theirs.
    pub fn edits_for(&self, devices: &[NamedDevice]) -> Option<Driver> {
        if self.is_management() {
            return None;
        }
        let mut edits = self.spec.container_edits.clone();
        for named in devices {
            edits.merge(&self.device(named)?.container_edits);
        }
        Some(Driver {
            version: self.spec.version.clone(),
            edits,
        })
    }

    /// The edits that all its devices have in common, with those of these device nodes that are not
    /// among them.
    pub fn common_edits(&self, nodes: &[Value]) -> Driver {
        let mut edits = self.spec.container_edits.clone();
        for node in nodes {
            let path = |one: &Value| one["path"] == node["path"];
            if !edits.device_nodes.iter().any(path) {
                edits.device_nodes.push(node.clone());
            }
        }
        Driver {
            version: self.spec.version.clone(),
            edits,
        }
    }

    /// Why the spec cannot be used for one of these GPUs.
    pub fn other_minor(&self, gpus: &[NamedDevice]) -> Option<SpecRefusal> {
        let by_index = gpus.iter().filter(|gpu| self.by_uuid(gpu).is_none());
        let mut refusals = by_index.filter_map(|gpu| {
            let device = self.by_index(gpu)?;
            let minor = gpu.minor?;
            Some(SpecRefusal::OtherMinor {
                file: self.file.clone(),
                index: gpu.index?,
                node: other_gpu_node(device, minor)?,
                uuid: gpu.uuid.clone(),
                minor,
            })
        });
        refusals.next()
    }

    /// The paths on the host that the runtime mounts or runs as hooks.
    pub fn host_paths(&self) -> impl Iterator<Item = &Path> {
        let devices = self.spec.devices.iter().map(|one| &one.container_edits);
        let edits = [&self.spec.container_edits].into_iter().chain(devices);
        edits.flat_map(|edits| {
            let hooks = edits.other.get("hooks").and_then(Value::as_array);
            let hooks = hooks.into_iter().flatten().map(|hook| &hook["path"]);
            let mounts = edits.mounts.iter().map(|mount| &mount["hostPath"]);
            mounts.chain(hooks).filter_map(Value::as_str).map(Path::new)
        })
    }

    fn device(&self, named: &NamedDevice) -> Option<&Device> {
        let by_index = || {
            let device = self.by_index(named)?;
            let other = named.minor.and_then(|minor| other_gpu_node(device, minor));
            other.is_none().then_some(device)
        };
        self.by_uuid(named).or_else(by_index)
    }

    fn by_uuid(&self, named: &NamedDevice) -> Option<&Device> {
        let mut devices = self.spec.devices.iter();
        devices.find(|device| device.name == named.uuid.as_str())
    }

    fn by_index(&self, named: &NamedDevice) -> Option<&Device> {
        let index = named.index?.to_string();
        self.spec.devices.iter().find(|device| device.name == index)
    }
}

/// The first GPU's node on the host among the device's edits that has not this minor.
fn other_gpu_node(device: &Device, minor: u32) -> Option<String> {
    let nodes = device.container_edits.device_nodes.iter();
    let paths = nodes.filter_map(|node| {
        let on_host = node["hostPath"].as_str();
        on_host.or_else(|| node["path"].as_str())
    });
    let mut others = paths.filter(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let number = name.strip_prefix("nvidia");
        let number = number.and_then(|number| number.parse::<u32>().ok());
        number.is_some_and(|number| number != minor)
    });
    others.next().map(str::to_owned)
}

/// The driver's edits without a spec of NVIDIA's: the device nodes that exist.
pub fn from_nodes(device_nodes: Vec<Value>) -> Driver {
    Driver {
        version: VERSION.to_owned(),
        edits: Edits {
            device_nodes,
            ..Edits::default()
        },
    }
}

/// Our spec for `name` with only `variables` (`NAME=value`): for the second and further names of a
/// container, whose first name brings everything else.
pub fn variables_only(name: &AnswerName, variables: Vec<String>) -> Spec {
    let edits = Edits {
        env: variables,
        ..Edits::default()
    };
    of(name, VERSION, edits)
}

/// Our spec for `name`: `variables` (`NAME=value`), the container directory mounted read-only with
/// its counters file writable inside, and the driver's edits. Our variables override the driver's.
/// `recursive`: mounts the directory with what is mounted below it, all read-only; a runtime that
/// mounts from within a user namespace (`hostUsers: false`) can mount it in no other way.
pub fn spec(
    name: &AnswerName,
    variables: Vec<String>,
    container_directory: &str,
    driver: &Driver,
    recursive: bool,
) -> Spec {
    let mut edits = driver.edits.clone();
    edits.env.retain(|theirs| {
        !variables
            .iter()
            .any(|ours| variable(ours) == variable(theirs))
    });
    edits.env.extend(variables);
    let counters = format!("{container_directory}/{COUNTERS}");
    let options: &[&str] = if recursive {
        &["ro", "nosuid", "nodev", "rbind", "rro"]
    } else {
        &["ro", "nosuid", "nodev", "bind"]
    };
    edits.mounts.push(json!({
        "hostPath": container_directory,
        "containerPath": IN_CONTAINER,
        "options": options,
    }));
    edits.mounts.push(json!({
        "hostPath": counters,
        "containerPath": COUNTERS_IN_CONTAINER,
        "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
    }));
    of(name, newer(VERSION, &driver.version), edits)
}

fn of(name: &AnswerName, version: &str, edits: Edits) -> Spec {
    Spec {
        version: version.to_owned(),
        kind: KIND.to_owned(),
        devices: vec![Device {
            name: name.as_str().to_owned(),
            container_edits: edits,
        }],
        container_edits: Edits::default(),
    }
}

impl Edits {
    pub fn add_hook(&mut self, hook: Value) {
        match self.other.get_mut("hooks") {
            Some(Value::Array(hooks)) => hooks.push(hook),
            _ => {
                self.other.insert("hooks".to_owned(), json!([hook]));
            }
        }
    }

    fn merge(&mut self, more: &Self) {
        append(&mut self.env, &more.env);
        append(&mut self.device_nodes, &more.device_nodes);
        append(&mut self.mounts, &more.mounts);
        for (key, value) in &more.other {
            match (self.other.get_mut(key), value) {
                (Some(Value::Array(ours)), Value::Array(theirs)) => append(ours, theirs),
                _ => {
                    self.other.insert(key.clone(), value.clone());
                }
            }
        }
    }
}

/// Appends what is missing: two GPUs share most of their edits.
fn append<T: Clone + PartialEq>(ours: &mut Vec<T>, theirs: &[T]) {
    for item in theirs {
        if !ours.contains(item) {
            ours.push(item.clone());
        }
    }
}

fn variable(assignment: &str) -> &str {
    assignment.split('=').next().unwrap_or_default()
}

fn newer<'a>(one: &'a str, other: &'a str) -> &'a str {
    let key = |version: &str| -> Vec<u32> {
        version
            .trim_start_matches('v')
            .split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    if key(other) > key(one) { other } else { one }
}

fn is_empty(edits: &Edits) -> bool {
    *edits == Edits::default()
}

#[cfg(test)]
#[path = "cdi_tests.rs"]
mod tests;

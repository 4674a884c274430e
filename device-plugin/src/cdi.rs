//! CDI specs: ours, one for each Allocate answer, and the parts taken from NVIDIA's own.

use aliquot_core::GpuUuid;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::device_id::{AnswerName, KIND};
use crate::environment::{COUNTERS, DIRECTORY};

/// The oldest CDI version that has all we use (`hostPath` of device nodes); containerd 1.7 and
/// later read it.
const VERSION: &str = "0.5.0";
/// The kind under which NVIDIA's toolkit describes its GPUs.
pub const NVIDIA_KIND: &str = "nvidia.com/gpu";

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
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<Value>,
    /// Mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Value>,
    /// Hooks, additional groups and whatever comes later.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One device of a spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name, unique under the kind.
    pub name: String,
    /// The edits for a container that requests it.
    #[serde(default)]
    pub container_edits: Edits,
}

/// A CDI spec file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the CDI specification.
    #[serde(rename = "cdiVersion")]
    pub version: String,
    /// `vendor/class`.
    pub kind: String,
    /// The devices.
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
    /// The edits for all GPUs of one container.
    pub edits: Edits,
}

/// The driver's edits for `gpus` (uuid and, of whole GPUs, index, in the container's order) from
/// NVIDIA's specs, which name a device by uuid or by index; `None` when no spec of NVIDIA's kind
/// names them all.
pub fn from_nvidia(specs: &[Spec], gpus: &[(GpuUuid, Option<u32>)]) -> Option<Driver> {
    specs
        .iter()
        .filter(|spec| spec.kind == NVIDIA_KIND)
        .find_map(|spec| {
            let mut edits = spec.container_edits.clone();
            for (uuid, index) in gpus {
                let index = index.map(|index| index.to_string());
                let named = |device: &&Device| Some(&device.name) == index.as_ref();
                let device = spec
                    .devices
                    .iter()
                    .find(|device| device.name == uuid.as_str())
                    .or_else(|| spec.devices.iter().find(named))?;
                edits.merge(&device.container_edits);
            }
            Some(Driver {
                version: spec.version.clone(),
                edits,
            })
        })
}

/// The common edits of NVIDIA's first spec, and these device nodes.
pub fn common_of_nvidia(specs: &[Spec], nodes: Vec<Value>) -> Option<Driver> {
    let spec = specs.iter().find(|spec| spec.kind == NVIDIA_KIND)?;
    let mut edits = spec.container_edits.clone();
    edits.merge(&from_nodes(nodes, Vec::new()).edits);
    Some(Driver {
        version: spec.version.clone(),
        edits,
    })
}

/// The driver's edits without a spec of NVIDIA's: the device nodes that exist, and the libraries
/// that were found.
pub fn from_nodes(device_nodes: Vec<Value>, mounts: Vec<Value>) -> Driver {
    Driver {
        version: VERSION.to_owned(),
        edits: Edits {
            device_nodes,
            mounts,
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
    let counters = format!("{container_directory}/counters/slots");
    let options: &[&str] = if recursive {
        &["ro", "nosuid", "nodev", "rbind", "rro"]
    } else {
        &["ro", "nosuid", "nodev", "bind"]
    };
    edits.mounts.push(json!({
        "hostPath": container_directory,
        "containerPath": DIRECTORY,
        "options": options,
    }));
    edits.mounts.push(json!({
        "hostPath": counters,
        "containerPath": COUNTERS,
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
    /// Appends a hook.
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

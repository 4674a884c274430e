//! CDI specs: ours, one per Allocate answer, and the parts taken over from
//! NVIDIA's own.
//!
//! Fed by: accepted shares, NVIDIA's spec files, device nodes of the host.
//! Must not: touch files; that is [`crate::files`].

use aliquot_core::GpuUuid;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::environment::{COUNTERS, DIRECTORY};
use crate::seat::{KIND, Name};

/// The oldest CDI version that has all we use (`hostPath` of device nodes).
/// containerd 1.7 and later read it.
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

/// What a runtime changes in a container. Lists that we do not name are kept as
/// they were read, so that edits of a newer toolkit survive.
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
    /// What a container that asks for it gets.
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
    /// What every container with any of the devices gets.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub container_edits: Edits,
}

/// How the driver itself gets into a container, and the CDI version that its
/// description needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    /// CDI version of the source.
    pub version: String,
    /// The edits for all GPUs of one container.
    pub edits: Edits,
}

/// The driver's edits for `gpus` (uuid and, of whole cards, index, in the container's order) from
/// NVIDIA's specs; `None` when no spec of NVIDIA's kind names them all. A
/// device of the spec is named by uuid or by index.
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

/// What NVIDIA's first spec says of every container, and these device nodes.
pub fn common_of_nvidia(specs: &[Spec], nodes: Vec<Value>) -> Option<Driver> {
    let spec = specs.iter().find(|spec| spec.kind == NVIDIA_KIND)?;
    let mut edits = spec.container_edits.clone();
    edits.merge(&from_nodes(nodes, Vec::new()).edits);
    Some(Driver {
        version: spec.version.clone(),
        edits,
    })
}

/// The driver's edits where NVIDIA wrote no spec: the device nodes that exist, and the libraries
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

/// Our spec for `name` with `variables` (`NAME=value`) alone: for the second and every further
/// name of a container, whose first has all else.
pub fn variables_only(name: &Name, variables: Vec<String>) -> Spec {
    let edits = Edits {
        env: variables,
        ..Edits::default()
    };
    of(name, VERSION, edits)
}

/// Our spec for `name`: `variables` (`NAME=value`), the seat directory of the
/// host mounted read-only with its counters file writable inside, and the
/// driver's edits. Variables of ours win over the driver's. `whole`: the seat's directory with what
/// is mounted below it, all read-only; a runtime that mounts from within a user namespace
/// (`hostUsers: false`) can mount it in no other way.
pub fn spec(
    name: &Name,
    variables: Vec<String>,
    seat_directory: &str,
    driver: &Driver,
    whole: bool,
) -> Spec {
    let mut edits = driver.edits.clone();
    edits.env.retain(|theirs| {
        !variables
            .iter()
            .any(|ours| variable(ours) == variable(theirs))
    });
    edits.env.extend(variables);
    let counters = format!("{seat_directory}/counters/slots");
    let options: &[&str] = if whole {
        &["ro", "nosuid", "nodev", "rbind", "rro"]
    } else {
        &["ro", "nosuid", "nodev", "bind"]
    };
    edits.mounts.push(json!({
        "hostPath": seat_directory,
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

fn of(name: &Name, version: &str, edits: Edits) -> Spec {
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
    /// Adds a hook behind those that are there.
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

/// Adds what is not there yet: two GPUs share most of their edits.
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

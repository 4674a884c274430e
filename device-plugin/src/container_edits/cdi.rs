//! CDI specs: ours, one for each Allocate answer, and the parts taken from NVIDIA's own.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use aliquot_node_state::container_directory::{COUNTERS, COUNTERS_IN_CONTAINER, IN_CONTAINER};
use aliquot_node_state::device_id::{AnswerName, KIND};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::host_device::HostDevice;

/// The oldest CDI version that has all we use (`hostPath` of device nodes); containerd 1.7 and
/// later read it.
const VERSION: &str = "0.5.0";

const FILE_PREFIX: &str = "aliquot.dev-vgpu_";
/// Where CUDA looks for an MPS daemon that somebody runs on the host itself.
const HOST_MPS: &str = "/tmp/nvidia-mps";

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriverEdits {
    /// CDI version of the source.
    pub version: String,
    pub edits: Edits,
}

impl Spec {
    /// The driver's edits for these devices, in the container's order: what all have in common, and
    /// what those have besides that the spec names by UUID. It may be older than an instance.
    pub fn driver(&self, devices: &[HostDevice]) -> DriverEdits {
        let mut edits = self.container_edits.clone();
        for device in devices {
            let mut named = self.devices.iter();
            if let Some(own) = named.find(|one| one.name == device.visible_uuid()) {
                edits.merge(&own.container_edits);
            }
        }
        // Programs would be its clients, whatever the mode, and could change its files.
        edits
            .mounts
            .retain(|mount| mount["containerPath"] != HOST_MPS);
        DriverEdits {
            version: self.version.clone(),
            edits,
        }
    }

    /// The paths on the host that the runtime mounts or runs as hooks.
    pub fn host_paths(&self) -> impl Iterator<Item = &Path> {
        let devices = self.devices.iter().map(|one| &one.container_edits);
        let edits = [&self.container_edits].into_iter().chain(devices);
        edits.flat_map(|edits| {
            let hooks = edits.other.get("hooks").and_then(Value::as_array);
            let hooks = hooks.into_iter().flatten().map(|hook| &hook["path"]);
            let mounts = edits.mounts.iter().map(|mount| &mount["hostPath"]);
            mounts.chain(hooks).filter_map(Value::as_str).map(Path::new)
        })
    }
}

/// Whether the kernel can make a tree of mounts read-only (`mount_setattr`, Linux 5.12).
pub fn mounts_whole_trees() -> bool {
    static SINCE_5_12: OnceLock<bool> = OnceLock::new();
    *SINCE_5_12.get_or_init(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        is_since_5_12(&release)
    })
}

fn is_since_5_12(release: &str) -> bool {
    let numbers = release.trim().split(['.', '-']);
    let mut numbers = numbers.map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next()) >= (5, 12)
}

/// Our spec for `name` with only `variables` (`NAME=value`): for the second and further names of a
/// container, whose first name brings everything else.
pub fn variables_only(name: &AnswerName, variables: Vec<String>) -> Spec {
    let edits = Edits {
        env: variables,
        ..Edits::default()
    };
    spec_with(name, VERSION, edits)
}

/// Our spec for `name`: `variables` (`NAME=value`), the container directory mounted read-only with
/// its counters file writable inside, and the driver's edits. Our variables override the driver's.
/// `recursive`: mounts the directory with what is mounted below it, all read-only; a runtime that
/// mounts from within a user namespace (`hostUsers: false`) can mount it in no other way.
pub fn spec(
    name: &AnswerName,
    variables: Vec<String>,
    container_directory: &str,
    driver: &DriverEdits,
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
    spec_with(name, newer(VERSION, &driver.version), edits)
}

fn spec_with(name: &AnswerName, version: &str, edits: Edits) -> Spec {
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

//! Converts the configuration of NVIDIA's device plugin, version v1, to a profile. A setting without
//! a counterpart gets a note.
//!
//! Source: its documentation and types (k8s-device-plugin 0.20). `devices` and `rename` take effect
//! here; that plugin reads them and drops them with a warning. A key in the wrong place, which that
//! plugin ignores (such as `renameByDefault` under `flags`), is an error.

use std::collections::BTreeSet;

use aliquot_core::mig;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config::{Config, Profile, Rule};
use crate::error::{ProfileError, ProfileErrors, child_path};
use crate::gpu_selector::GpuSelector;
use crate::mode::{Exclusive, Mode, Mps, Timeslice};
use crate::read;
use crate::schema::ValueSchema::{Any, Flag, Keys, List, Text, Whole, Words};
use crate::schema::{ValueSchema, optional, required};
use crate::text_format;

const PREFIX: &str = "nvidia.com/";
const GPU: &str = "nvidia.com/gpu";

const FILE: ValueSchema = Keys(&[
    required("version", Words(&["v1"]), ""),
    optional("flags", FLAGS, ""),
    optional("resources", Any, ""),
    optional("sharing", SHARING, ""),
    optional("imex", Any, ""),
]);
const FLAGS: ValueSchema = Keys(&[
    optional("migStrategy", Words(&["none", "single", "mixed"]), ""),
    optional("failOnInitError", Any, ""),
    optional("mpsRoot", Any, ""),
    optional("nvidiaDriverRoot", Any, ""),
    optional("nvidiaDevRoot", Any, ""),
    optional("gdrcopyEnabled", Any, ""),
    optional("gdsEnabled", Any, ""),
    optional("mofedEnabled", Any, ""),
    optional("useNodeFeatureAPI", Any, ""),
    optional("deviceDiscoveryStrategy", Any, ""),
    optional("plugin", Any, ""),
    optional("gfd", Any, ""),
]);
const SHARING: ValueSchema = Keys(&[
    optional("timeSlicing", SHARING_METHOD, ""),
    optional("mps", SHARING_METHOD, ""),
]);
const SHARING_METHOD: ValueSchema = Keys(&[
    optional("renameByDefault", Flag, ""),
    optional("failRequestsGreaterThanOne", Flag, ""),
    required("resources", List(&RESOURCE, 1), ""),
]);
const RESOURCE: ValueSchema = Keys(&[
    required("name", Text(text_format::ANY), ""),
    optional("rename", Text(text_format::ANY), ""),
    optional("devices", Any, ""),
    required(
        "replicas",
        Whole {
            least: 1,
            most: crate::mode::MAX_REPLICAS,
        },
        "",
    ),
]);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    pub config: Config,
    /// Notes for the reader, such as on settings without a counterpart; one line each.
    pub notes: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error(transparent)]
    Invalid(#[from] ProfileErrors),
    #[error(transparent)]
    Write(#[from] crate::config::WriteError),
}

impl Converted {
    /// The configuration as valid YAML, with the notes as comments above it.
    pub fn to_yaml(&self) -> Result<String, ConvertError> {
        let text = self.config.to_yaml()?;
        read::read(&text)?;
        let notes = self.notes.iter().map(|note| format!("# {note}\n"));
        Ok(notes.collect::<String>() + &text)
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    flags: Map<String, Value>,
    #[serde(default)]
    resources: Value,
    #[serde(default)]
    sharing: Sharing,
    #[serde(default)]
    imex: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sharing {
    time_slicing: Option<SharingSettings>,
    mps: Option<SharingSettings>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SharingSettings {
    #[serde(default)]
    rename_by_default: bool,
    fail_requests_greater_than_one: Option<bool>,
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    rename: Option<String>,
    #[serde(default)]
    devices: Value,
    replicas: u32,
}

/// Converts one file to the profile of this name.
pub fn convert(text: &str, name: &str) -> Result<Converted, ProfileErrors> {
    let file: File = read::parse_typed(&FILE, read::parse_yaml(text)?)?;
    let mut notes = notes(&file);
    let sharing = match (&file.sharing.mps, &file.sharing.time_slicing) {
        (Some(mps), time_slicing) => {
            if time_slicing.is_some() {
                notes.push(
                    "sharing has mps and timeSlicing: mps applies, as in NVIDIA's plugin"
                        .to_owned(),
                );
            }
            Some(("mps", mps))
        }
        (None, Some(time_slicing)) => Some(("timeSlicing", time_slicing)),
        (None, None) => None,
    };
    let mut gpus: Vec<Rule> = Vec::new();
    let mut errors = Vec::new();
    if let Some((kind, sharing)) = sharing {
        for (index, resource) in sharing.resources.iter().enumerate() {
            let path = format!("sharing.{kind}.resources[{index}]");
            match rules((kind, sharing), resource, &path, &mut notes) {
                Ok(rules) => gpus.extend(rules),
                Err(error) => errors.push(error),
            }
        }
    }
    if !errors.is_empty() {
        return Err(ProfileErrors(errors));
    }
    let renamed: BTreeSet<&str> = gpus
        .iter()
        .filter_map(|rule| rule.mode.resource(GPU))
        .filter(|name| *name != GPU)
        .collect();
    if !renamed.is_empty() {
        let names: Vec<&str> = renamed.into_iter().collect();
        let names = names.join(", ");
        notes.push(format!("the chart's extraResources must list {names}"));
    }
    // A whole GPU for one container, the default of NVIDIA's plugin.
    let whole = Mode::Exclusive(Exclusive::default());
    let rest = (!gpus.iter().any(|rule| rule.select.all)).then_some(whole);
    let profile = Profile {
        gpus,
        rest,
        ..Profile::default()
    };
    let config = Config::new(name, profile);
    Ok(Converted { config, notes })
}

/// The rules for one resource, which is at `path`.
fn rules(
    (kind, sharing): (&str, &SharingSettings),
    resource: &Resource,
    path: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<Rule>, ProfileError> {
    let full = full(&resource.name);
    if full.starts_with(mig::RESOURCES) {
        notes.push(format!(
            "{path}: {full} is left out, because this file does not tell which GPUs have such instances; give those GPUs mode mig with `on` under that profile: replicas {}",
            resource.replicas
        ));
        if let Some(name) = rename(sharing, resource) {
            notes.push(format!(
                "{path}: pods cannot ask for {name} any more: they ask for {full}, or for a `rename` outside {}",
                mig::RESOURCES
            ));
        }
        return Ok(Vec::new());
    }
    if full != GPU {
        return Err(ProfileError::new(
            child_path(path, "name"),
            &json!(resource.name),
            "is not a GPU resource",
            "nvidia.com/gpu, nvidia.com/mig-<profile>",
        ));
    }
    let mode = mode(kind, sharing, resource).ok_or_else(|| {
        ProfileError::new(
            child_path(path, "replicas"),
            &json!(resource.replicas),
            "is out of range",
            "2 or more with timeSlicing, 1 to 48 with mps",
        )
    })?;
    let is_all = resource.devices.is_null() || resource.devices == "all";
    for (key, is_ignored) in [("devices", !is_all), ("rename", resource.rename.is_some())] {
        if is_ignored {
            let path = child_path(path, key);
            notes.push(format!(
                "{path} takes effect here; NVIDIA's plugin ignores it"
            ));
        }
    }
    let selects = select(&resource.devices, &child_path(path, "devices"))?.into_iter();
    Ok(selects.map(|one| Rule::new(one, mode.clone())).collect())
}

fn full(name: &str) -> String {
    if name.starts_with(PREFIX) {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    }
}

/// The name that pods ask for instead of the resource's.
fn rename(sharing: &SharingSettings, resource: &Resource) -> Option<String> {
    let by_default = || {
        sharing
            .rename_by_default
            .then(|| format!("{}.shared", resource.name))
    };
    let rename = resource.rename.clone().or_else(by_default);
    rename.map(|name| full(&name))
}

fn mode(kind: &str, sharing: &SharingSettings, resource: &Resource) -> Option<Mode> {
    let rename = rename(sharing, resource);
    let replicas = resource.replicas;
    // As in NVIDIA's plugin: rejected by default with MPS, allowed with time-slicing.
    if kind == "mps" {
        let strict = sharing.fail_requests_greater_than_one.unwrap_or(true);
        let most = crate::mode::MAX_MPS_CLIENTS;
        return (u64::from(replicas) <= most).then(|| {
            Mode::Mps(Mps {
                rename,
                strict,
                ..Mps::new(replicas)
            })
        });
    }
    let strict = sharing.fail_requests_greater_than_one.unwrap_or(false);
    (replicas > 1).then(|| {
        Mode::Timeslice(Timeslice {
            rename,
            strict,
            ..Timeslice::new(replicas)
        })
    })
}

/// `all`, a number, or a list of indices and uuids: one selector for each kind of key.
fn select(devices: &Value, path: &str) -> Result<Vec<GpuSelector>, ProfileError> {
    let expected = "all, a number, or a list of GPU indices and uuids";
    let none = || vec![GpuSelector::all()];
    match devices {
        Value::Null => Ok(none()),
        Value::String(word) if word == "all" => Ok(none()),
        Value::Number(number) => {
            let many = number.as_u64().and_then(|n| u32::try_from(n).ok());
            let many = many.filter(|n| (1..=1024).contains(n));
            let many = many.ok_or_else(|| {
                ProfileError::new(path, devices, "is not a number of GPUs", expected)
            })?;
            Ok(vec![GpuSelector {
                index: (0..many).collect(),
                ..GpuSelector::default()
            }])
        }
        Value::Array(entries) if !entries.is_empty() => {
            let mut select = [GpuSelector::default(), GpuSelector::default()];
            for (position, entry) in entries.iter().enumerate() {
                let text = entry
                    .as_str()
                    .map_or_else(|| entry.to_string(), str::to_owned);
                if (text_format::UUID.matches)(&text) {
                    select[1].uuid.push(text.into());
                } else if let Ok(index) = text.parse() {
                    select[0].index.push(index);
                } else {
                    let path = format!("{path}[{position}]");
                    let expected =
                        "a GPU's index or uuid (to share a MIG instance, use its MIG layout)";
                    return Err(ProfileError::new(
                        path,
                        entry,
                        "does not name a GPU",
                        expected,
                    ));
                }
            }
            let is_set_selector = |select: &GpuSelector| *select != GpuSelector::default();
            Ok(select.into_iter().filter(is_set_selector).collect())
        }
        _ => Err(ProfileError::new(
            path,
            devices,
            "does not name GPUs",
            expected,
        )),
    }
}

/// Notes on settings without a counterpart in a profile.
fn notes(file: &File) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(strategy) = file.flags.get("migStrategy").filter(|s| *s != "none") {
        notes.push(format!(
            "flags.migStrategy {strategy}: NVIDIA's plugin does not partition GPUs; give those GPUs mode mig with this strategy"
        ));
    }
    for (key, value) in &file.flags {
        if key != "migStrategy" && is_set(value) {
            notes.push(format!(
                "flags.{key} is for the plugin itself, not for a profile: left out"
            ));
        }
    }
    for (key, value) in [("resources", &file.resources), ("imex", &file.imex)] {
        if is_set(value) {
            notes.push(format!("{key} has no counterpart: left out"));
        }
    }
    notes.sort();
    notes
}

/// Whether a value is set: not null, empty or false.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_devices_as_all_number_or_list() {
        let index = |index: &[u32]| GpuSelector {
            index: index.to_vec(),
            ..GpuSelector::default()
        };
        let uuid = "GPU-11111111-2222-3333-4444-555555555555";
        let by_uuid = GpuSelector {
            uuid: vec![uuid.into()],
            ..GpuSelector::default()
        };
        let zero = "devices: 0 is not a number of GPUs; expected: all, a number, or a list of GPU indices and uuids";
        let instance = "devices[0]: \"0:1\" does not name a GPU; expected: a GPU's index or uuid (to share a MIG instance, use its MIG layout)";
        let none = "devices: [] does not name GPUs; expected: all, a number, or a list of GPU indices and uuids";
        for (devices, expected) in [
            (Value::Null, Ok(vec![GpuSelector::all()])),
            (json!("all"), Ok(vec![GpuSelector::all()])),
            (json!(2), Ok(vec![index(&[0, 1])])),
            (json!([0, "3"]), Ok(vec![index(&[0, 3])])),
            (json!([uuid, 1]), Ok(vec![index(&[1]), by_uuid])),
            (json!(0), Err(zero.to_owned())),
            (json!(["0:1"]), Err(instance.to_owned())),
            (json!([]), Err(none.to_owned())),
        ] {
            let found = select(&devices, "devices").map_err(|error| error.to_string());
            assert_eq!(found, expected, "{devices}");
        }
    }
}

//! The configuration of mig-parted, which is also that of the operator's MIG manager.
//!
//! Source: its README and example files. Each of its configurations becomes a profile of the same name.
//! GPUs without MIG become whole GPUs. A `device-filter` is the PCI device id that our selector takes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Converted, profile, whole_gpu};
use crate::config::{Config, Rule, VERSION};
use crate::error::{ProfileError, ProfileErrors, child_path};
use crate::gpu_selector::{GpuSelector, Pci};
use crate::mode::{LayoutEntry, Mig, Mode};
use crate::read;
use crate::schema::ValueSchema::{Any, Flag, Keys, List, Map, Whole, Words};
use crate::schema::{ValueSchema, optional, required};
use crate::text_format;

const FILE: ValueSchema = Keys(&[
    required("version", Words(&["v1"]), ""),
    required("mig-configs", Map(text_format::NAME, &List(&ENTRY, 1)), ""),
]);
const ENTRY: ValueSchema = Keys(&[
    optional("device-filter", Any, ""),
    required("devices", Any, ""),
    required("mig-enabled", Flag, ""),
    optional(
        "mig-devices",
        Map(text_format::MIG_PROFILE, &Whole { least: 0, most: 7 }),
        "",
    ),
]);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    mig_configs: BTreeMap<String, Vec<MigConfig>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct MigConfig {
    #[serde(default)]
    device_filter: Value,
    devices: Value,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

/// Converts one file. No profile becomes the default: mig-parted has none either.
pub fn convert(text: &str) -> Result<Converted, ProfileErrors> {
    let file: File = read::parse_typed(&FILE, read::parse_yaml(text)?)?;
    let mut notes = Vec::new();
    let mut errors = Vec::new();
    let mut profiles = BTreeMap::new();
    for (name, entries) in &file.mig_configs {
        let top = child_path("mig-configs", name);
        let mut gpus = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let path = format!("{top}[{index}]");
            match rule_of(entry, &path, &mut notes) {
                Ok(rule) => gpus.push(rule),
                Err(error) => errors.push(error),
            }
        }
        profiles.insert(name.clone(), profile(gpus, whole_gpu()));
    }
    if !errors.is_empty() {
        return Err(ProfileErrors(errors));
    }
    notes.push(
        "GPUs without MIG get mode exclusive: whole GPUs, as NVIDIA's plugin allocates them"
            .to_owned(),
    );
    let config = Config {
        api_version: VERSION.to_owned(),
        default: None,
        profiles,
    };
    Ok(Converted { config, notes })
}

fn rule_of(entry: &MigConfig, path: &str, notes: &mut Vec<String>) -> Result<Rule, ProfileError> {
    let index = devices(&entry.devices, &child_path(path, "devices"))?;
    let pci = filter(&entry.device_filter, &child_path(path, "device-filter"))?;
    let select = GpuSelector {
        all: index.is_empty() && pci.is_empty(),
        index,
        pci,
        ..GpuSelector::default()
    };
    let mode = if !entry.mig_enabled {
        if entry.mig_devices.values().any(|count| *count > 0) {
            let expected = "mig-devices with mig-enabled: true, or {}";
            let path = child_path(path, "mig-devices");
            return Err(ProfileError::without_value(
                path,
                "lists instances of GPUs without MIG",
                expected,
            ));
        }
        whole_gpu()
    } else if entry.mig_devices.values().all(|count| *count == 0) {
        notes.push(format!(
            "{path} enables MIG without instances: they are created when pods need them (dynamic)"
        ));
        Mode::Mig(Mig {
            dynamic: true,
            ..Mig::default()
        })
    } else {
        let some = entry.mig_devices.iter().filter(|(_, count)| **count > 0);
        let slice = |(profile, count): (&String, &u32)| LayoutEntry {
            profile: profile.clone(),
            count: *count,
            on: None,
        };
        Mode::Mig(Mig {
            layout: some.map(slice).collect(),
            ..Mig::default()
        })
    };
    let filtered = !select.pci.is_empty();
    // A filter is used because other nodes have other GPUs.
    Ok(Rule {
        optional: filtered,
        ..Rule::new(select, mode)
    })
}

/// The indices; none for `all`.
fn devices(value: &Value, path: &str) -> Result<Vec<u32>, ProfileError> {
    let error = |value: &Value| {
        ProfileError::new(
            path,
            value,
            "does not name GPUs",
            "all, or a list of GPU indices",
        )
    };
    match value {
        Value::String(word) if word == "all" => Ok(Vec::new()),
        Value::Array(entries) if !entries.is_empty() => {
            let index = |entry: &Value| entry.as_u64().and_then(|n| u32::try_from(n).ok());
            entries
                .iter()
                .map(|entry| index(entry).ok_or_else(|| error(entry)))
                .collect()
        }
        other => Err(error(other)),
    }
}

/// One PCI device id or a list of them; without quotes YAML reads it as a number.
fn filter(value: &Value, path: &str) -> Result<Vec<Pci>, ProfileError> {
    let one = |value: &Value| {
        let pci = match value {
            Value::String(text) => Pci::parse(text).filter(|pci| matches!(pci, Pci::Model(_))),
            Value::Number(number) => {
                let number = number.as_u64().and_then(|n| u32::try_from(n).ok());
                number.map(Pci::Model)
            }
            _ => None,
        };
        pci.ok_or_else(|| {
            ProfileError::new(
                path,
                value,
                "is not a PCI device id",
                "such as 0x20B010DE, or a list of these",
            )
        })
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(entries) => entries.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}

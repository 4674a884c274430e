//! The configuration of mig-parted, which is also that of the operator's MIG manager.
//!
//! Source: its README and example files. Each of its configurations becomes a
//! profile of the same name. Cards without MIG become whole cards.
//! Fed by: the text of one file. Must not: guess a product; a `device-filter` is the
//! PCI device id that our selector takes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Converted, profile, rule, whole};
use crate::config::{Config, Rule, VERSION};
use crate::fault::{Fault, Faults, below};
use crate::form;
use crate::mode::{Mig, Mode, Slice};
use crate::read;
use crate::select::{Pci, Select};
use crate::shape::Shape::{Any, Flag, Keys, List, Map, Whole, Words};
use crate::shape::{Shape, may, must};

const FILE: Shape = Keys(&[
    must("version", Words(&["v1"]), ""),
    must("mig-configs", Map(form::NAME, &List(&ENTRY, 1)), ""),
]);
const ENTRY: Shape = Keys(&[
    may("device-filter", Any, ""),
    must("devices", Any, ""),
    must("mig-enabled", Flag, ""),
    may(
        "mig-devices",
        Map(form::MIG_PROFILE, &Whole { least: 0, most: 7 }),
        "",
    ),
]);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    mig_configs: BTreeMap<String, Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    #[serde(default)]
    device_filter: Value,
    devices: Value,
    mig_enabled: bool,
    #[serde(default)]
    mig_devices: BTreeMap<String, u32>,
}

/// Converts one file. No profile is the default: mig-parted has none either.
pub fn convert(text: &str) -> Result<Converted, Faults> {
    let file: File = read::typed(&FILE, read::yaml(text)?)?;
    let mut notes = Vec::new();
    let mut faults = Vec::new();
    let mut profiles = BTreeMap::new();
    for (name, entries) in &file.mig_configs {
        let top = below("mig-configs", name);
        let mut gpus = Vec::new();
        for (place, entry) in entries.iter().enumerate() {
            let path = format!("{top}[{place}]");
            match of_entry(entry, &path, &mut notes) {
                Ok(rule) => gpus.push(rule),
                Err(fault) => faults.push(fault),
            }
        }
        profiles.insert(name.clone(), profile(gpus, whole()));
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    notes.push(
        "cards without MIG get mode exclusive: whole cards, as NVIDIA's plugin gives them"
            .to_owned(),
    );
    let config = Config {
        api_version: VERSION.to_owned(),
        default: None,
        profiles,
    };
    Ok(Converted { config, notes })
}

fn of_entry(entry: &Entry, path: &str, notes: &mut Vec<String>) -> Result<Rule, Fault> {
    let index = devices(&entry.devices, &below(path, "devices"))?;
    let pci = filter(&entry.device_filter, &below(path, "device-filter"))?;
    let select = Select {
        all: index.is_empty() && pci.is_empty(),
        index,
        pci,
        ..Select::default()
    };
    let mode = if !entry.mig_enabled {
        if entry.mig_devices.values().any(|count| *count > 0) {
            let accepted = "mig-devices with mig-enabled: true, or {}";
            let path = below(path, "mig-devices");
            return Err(Fault::bare(
                path,
                "names instances of cards without MIG",
                accepted,
            ));
        }
        whole()
    } else if entry.mig_devices.values().all(|count| *count == 0) {
        notes.push(format!(
            "{path} enables MIG and cuts nothing: instances are made when pods need them (dynamic)"
        ));
        Mode::Mig(Mig {
            dynamic: true,
            ..Mig::default()
        })
    } else {
        let some = entry.mig_devices.iter().filter(|(_, count)| **count > 0);
        let slice = |(profile, count): (&String, &u32)| Slice {
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
    // A filter is there because other nodes have other cards.
    Ok(Rule {
        optional: filtered,
        ..rule(select, mode)
    })
}

/// The indices; none for `all`.
fn devices(value: &Value, path: &str) -> Result<Vec<u32>, Fault> {
    let fault = |value: &Value| {
        Fault::new(
            path,
            value,
            "names no cards",
            "all, or a list of card indices",
        )
    };
    match value {
        Value::String(word) if word == "all" => Ok(Vec::new()),
        Value::Array(entries) if !entries.is_empty() => {
            let index = |entry: &Value| entry.as_u64().and_then(|n| u32::try_from(n).ok());
            entries
                .iter()
                .map(|entry| index(entry).ok_or_else(|| fault(entry)))
                .collect()
        }
        other => Err(fault(other)),
    }
}

/// One PCI device id or a list of them; without quotes YAML reads it as a number.
fn filter(value: &Value, path: &str) -> Result<Vec<Pci>, Fault> {
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
            Fault::new(
                path,
                value,
                "is no PCI device id",
                "such as 0x20B010DE, or a list of such",
            )
        })
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(entries) => entries.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}

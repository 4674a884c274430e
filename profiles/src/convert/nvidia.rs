//! The configuration of NVIDIA's device plugin, version v1.
//!
//! Source: its documentation and types (reference: k8s-device-plugin 0.20). `devices`
//! and `rename` hold here; that plugin reads them and drops them with a warning.
//! Fed by: the text of one file. Must not: take a key in the wrong place, which that
//! plugin passes over (such as `renameByDefault` under `flags`).

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Converted, profile, rule, says_something, whole};
use crate::config::Config;
use crate::fault::{Fault, Faults, below};
use crate::form;
use crate::mode::{Mode, Mps, Timeslice};
use crate::read;
use crate::select::Select;
use crate::shape::Shape::{Any, Flag, Keys, List, Text, Whole, Words};
use crate::shape::{Shape, may, must};

const PREFIX: &str = "nvidia.com/";

const FILE: Shape = Keys(&[
    must("version", Words(&["v1"]), ""),
    may("flags", FLAGS, ""),
    may("resources", Any, ""),
    may("sharing", SHARING, ""),
    may("imex", Any, ""),
]);
const FLAGS: Shape = Keys(&[
    may("migStrategy", Words(&["none", "single", "mixed"]), ""),
    may("failOnInitError", Any, ""),
    may("mpsRoot", Any, ""),
    may("nvidiaDriverRoot", Any, ""),
    may("nvidiaDevRoot", Any, ""),
    may("gdrcopyEnabled", Any, ""),
    may("gdsEnabled", Any, ""),
    may("mofedEnabled", Any, ""),
    may("useNodeFeatureAPI", Any, ""),
    may("deviceDiscoveryStrategy", Any, ""),
    may("plugin", Any, ""),
    may("gfd", Any, ""),
]);
const SHARING: Shape = Keys(&[may("timeSlicing", WAY, ""), may("mps", WAY, "")]);
const WAY: Shape = Keys(&[
    may("renameByDefault", Flag, ""),
    may("failRequestsGreaterThanOne", Flag, ""),
    must("resources", List(&RESOURCE, 1), ""),
]);
const RESOURCE: Shape = Keys(&[
    must("name", Text(form::ANY), ""),
    may("rename", Text(form::ANY), ""),
    may("devices", Any, ""),
    must(
        "replicas",
        Whole {
            least: 1,
            most: crate::mode::MOST_SEATS,
        },
        "",
    ),
]);

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
    time_slicing: Option<Way>,
    mps: Option<Way>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Way {
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
pub fn convert(text: &str, name: &str) -> Result<Converted, Faults> {
    let file: File = read::typed(&FILE, read::yaml(text)?)?;
    let mut notes = notes(&file);
    let (kind, way) = match (&file.sharing.mps, &file.sharing.time_slicing) {
        (Some(mps), time_slicing) => {
            if time_slicing.is_some() {
                notes.push("sharing has mps and timeSlicing: mps holds, as there".to_owned());
            }
            ("mps", Some(mps))
        }
        (None, Some(time_slicing)) => ("timeSlicing", Some(time_slicing)),
        (None, None) => ("", None),
    };
    let mut gpus = Vec::new();
    let mut faults = Vec::new();
    for (place, resource) in way.iter().flat_map(|way| &way.resources).enumerate() {
        let path = format!("sharing.{kind}.resources[{place}]");
        let full = full(&resource.name);
        if full.starts_with("nvidia.com/mig-") {
            notes.push(format!(
                "{path}: {full} is left out, for this file does not say which cards have such instances; convert the mig-parted file and put `on` under that profile: replicas {}",
                resource.replicas
            ));
            continue;
        }
        if full != "nvidia.com/gpu" {
            let accepted = "nvidia.com/gpu, nvidia.com/mig-<profile>";
            let path = below(&path, "name");
            faults.push(Fault::new(
                path,
                &json!(resource.name),
                "is no resource of a card",
                accepted,
            ));
            continue;
        }
        let Some(mode) = way.and_then(|way| mode(kind, way, resource)) else {
            let accepted = "2 or more with timeSlicing, 1 to 48 with mps";
            let path = below(&path, "replicas");
            faults.push(Fault::new(
                path,
                &json!(resource.replicas),
                "cannot be",
                accepted,
            ));
            continue;
        };
        match select(&resource.devices, &below(&path, "devices")) {
            Ok(selects) => gpus.extend(selects.into_iter().map(|s| rule(s, mode.clone()))),
            Err(fault) => faults.push(fault),
        }
    }
    if !faults.is_empty() {
        return Err(Faults(faults));
    }
    let profile = profile(gpus, whole());
    let config = Config::of(name, profile);
    Ok(Converted { config, notes })
}

fn full(name: &str) -> String {
    if name.starts_with(PREFIX) {
        name.to_owned()
    } else {
        format!("{PREFIX}{name}")
    }
}

fn mode(kind: &str, way: &Way, resource: &Resource) -> Option<Mode> {
    let by_default = || {
        way.rename_by_default
            .then(|| format!("{}.shared", resource.name))
    };
    let rename = resource.rename.clone().or_else(by_default);
    let rename = rename.map(|name| full(&name));
    let replicas = resource.replicas;
    // Theirs: refused by default with MPS, allowed with time-slicing.
    if kind == "mps" {
        let strict = way.fail_requests_greater_than_one.unwrap_or(true);
        let most = crate::mode::MOST_CLIENTS;
        return (u64::from(replicas) <= most).then(|| {
            Mode::Mps(Mps {
                rename,
                strict,
                ..Mps::new(replicas)
            })
        });
    }
    let strict = way.fail_requests_greater_than_one.unwrap_or(false);
    (replicas > 1).then(|| {
        Mode::Timeslice(Timeslice {
            rename,
            strict,
            ..Timeslice::new(replicas)
        })
    })
}

/// `all`, so many, or a list of indices and uuids: a rule for each way to name them.
fn select(devices: &Value, path: &str) -> Result<Vec<Select>, Fault> {
    let accepted = "all, how many, or a list of card indices and uuids";
    let none = || vec![Select::all()];
    match devices {
        Value::Null => Ok(none()),
        Value::String(word) if word == "all" => Ok(none()),
        Value::Number(number) => {
            let many = number.as_u64().and_then(|n| u32::try_from(n).ok());
            let many = many.filter(|n| (1..=1024).contains(n));
            let many =
                many.ok_or_else(|| Fault::new(path, devices, "is no number of cards", accepted))?;
            Ok(vec![Select {
                index: (0..many).collect(),
                ..Select::default()
            }])
        }
        Value::Array(entries) if !entries.is_empty() => {
            let mut select = [Select::default(), Select::default()];
            for (place, entry) in entries.iter().enumerate() {
                let text = entry
                    .as_str()
                    .map_or_else(|| entry.to_string(), str::to_owned);
                if (form::UUID.fits)(&text) {
                    select[1].uuid.push(text.into());
                } else if let Ok(index) = text.parse() {
                    select[0].index.push(index);
                } else {
                    let path = format!("{path}[{place}]");
                    let accepted =
                        "a card's index or uuid (an instance: share it in its MIG layout)";
                    return Err(Fault::new(path, entry, "names no card", accepted));
                }
            }
            let said = |select: &Select| *select != Select::default();
            Ok(select.into_iter().filter(said).collect())
        }
        _ => Err(Fault::new(path, devices, "names no cards", accepted)),
    }
}

/// What a profile has no place for.
fn notes(file: &File) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(strategy) = file.flags.get("migStrategy").filter(|s| *s != "none") {
        notes.push(format!(
            "flags.migStrategy {strategy}: that plugin does not cut cards; give those cards mode mig with this strategy (convert --from mig-parted)"
        ));
    }
    for (key, value) in &file.flags {
        if key != "migStrategy" && says_something(value) {
            notes.push(format!(
                "flags.{key} is for the plugin itself, not for a profile: left out"
            ));
        }
    }
    for (key, value) in [("resources", &file.resources), ("imex", &file.imex)] {
        if says_something(value) {
            notes.push(format!("{key} has no counterpart: left out"));
        }
    }
    notes.sort();
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(devices: &Value, expected: &Result<Vec<Select>, &str>) {
        let found = select(devices, "devices").map_err(|fault| fault.to_string());
        assert_eq!(
            found.as_ref().map_err(String::as_str),
            expected.as_ref().map_err(|e| *e)
        );
    }

    #[test]
    fn devices_are_all_so_many_or_a_list() {
        let index = |index: &[u32]| Select {
            index: index.to_vec(),
            ..Select::default()
        };
        let uuid = "GPU-11111111-2222-3333-4444-555555555555";
        let by_uuid = Select {
            uuid: vec![uuid.into()],
            ..Select::default()
        };
        check(&Value::Null, &Ok(vec![Select::all()]));
        check(&json!("all"), &Ok(vec![Select::all()]));
        check(&json!(2), &Ok(vec![index(&[0, 1])]));
        check(&json!([0, "3"]), &Ok(vec![index(&[0, 3])]));
        check(&json!([uuid, 1]), &Ok(vec![index(&[1]), by_uuid]));
        check(
            &json!(0),
            &Err(
                "devices: 0 is no number of cards; accepted: all, how many, or a list of card indices and uuids",
            ),
        );
        check(
            &json!(["0:1"]),
            &Err(
                "devices[0]: \"0:1\" names no card; accepted: a card's index or uuid (an instance: share it in its MIG layout)",
            ),
        );
        check(
            &json!([]),
            &Err(
                "devices: [] names no cards; accepted: all, how many, or a list of card indices and uuids",
            ),
        );
    }
}

//! HAMi's device-config.yaml, and the file with its exceptions for nodes.
//!
//! Source: HAMi 2.10's documentation of both. The first gives the default profile,
//! each entry of the second a profile for the node of that name.
//! Fed by: the texts of both files. Must not: read other vendors' sections, or the
//! settings of pods (resource names, defaults), which are chart values here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Converted, profile, rule, says_something};
use crate::config::{Config, Profile};
use crate::fault::{Fault, Faults};
use crate::form;
use crate::mode::{MOST_SEATS, Mig, Mode, Mps, Scaling, Vgpu};
use crate::read;
use crate::select::Select;
use crate::shape::Shape::{Any, Keys, List, Text, Whole, Words};
use crate::shape::{Shape, may, must};

/// The label whose value is a node's name.
const HOST: &str = "kubernetes.io/hostname";
/// Name of the profile that device-config.yaml gives.
const DEFAULT: &str = "hami";

const SECTION: Shape = Keys(&[
    may("deviceSplitCount", SPLIT, ""),
    may("deviceMemoryScaling", Shape::Scaling, ""),
    may("deviceCoreScaling", Any, ""),
    may("preConfiguredDeviceMemory", Any, ""),
    may("libCudaLogLevel", Any, ""),
    may("enableNumaTopology", Any, ""),
    may("resourceCountName", Any, ""),
    may("resourceMemoryName", Any, ""),
    may("resourceMemoryPercentageName", Any, ""),
    may("resourceCoreName", Any, ""),
    may("resourcePriorityName", Any, ""),
    may("overwriteEnv", Any, ""),
    may("defaultMemory", Any, ""),
    may("defaultCores", Any, ""),
    may("defaultGPUNum", Any, ""),
    may("memoryFactor", Any, ""),
    may("disableCoreLimit", Any, ""),
    may("gpuCorePolicy", Any, ""),
    may("runtimeClassName", Any, ""),
    may("migProfileAllowlist", Any, ""),
    may("knownMigGeometries", Any, ""),
]);
const NODES: Shape = Keys(&[must("nodeconfig", List(&NODE, 0), "")]);
const NODE: Shape = Keys(&[
    must("name", Text(form::NAME), ""),
    may("operatingmode", Words(&["", "hami-core", "mig", "mps"]), ""),
    may("devicesplitcount", SPLIT, ""),
    may("devicememoryscaling", Shape::Scaling, ""),
    may("devicecorescaling", Any, ""),
    may("preconfigureddevicememory", Any, ""),
    may("libcudaloglevel", Any, ""),
    may("enablenumatopology", Any, ""),
    may("migstrategy", Any, ""),
    may("enablegetpreferredallocation", Any, ""),
    may("filterdevices", FILTER, ""),
]);
const FILTER: Shape = Keys(&[
    may("uuid", List(&Text(form::UUID), 0), ""),
    may(
        "index",
        List(
            &Whole {
                least: 0,
                most: 1023,
            },
            0,
        ),
        "",
    ),
]);
const SPLIT: Shape = Whole {
    least: 1,
    most: MOST_SEATS,
};

/// What both files can say of cards.
#[derive(Clone, Default, Deserialize)]
struct Cards {
    #[serde(default, alias = "deviceSplitCount", alias = "devicesplitcount")]
    split: Option<u32>,
    #[serde(default, alias = "deviceMemoryScaling", alias = "devicememoryscaling")]
    scaling: Option<Scaling>,
    #[serde(default, rename = "operatingmode")]
    mode: String,
    #[serde(default, rename = "filterdevices")]
    filter: Filter,
    #[serde(default)]
    name: String,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Filter {
    uuid: Vec<String>,
    index: Vec<u32>,
}

/// Converts device-config.yaml, and the file for nodes where there is one.
pub fn convert(device_config: &str, node_config: Option<&str>) -> Result<Converted, Faults> {
    let Value::Object(mut file) = read::yaml(device_config)? else {
        let what = "is not HAMi's device-config.yaml";
        return Err(Faults(vec![Fault::bare(
            "(file)",
            what,
            "a section nvidia",
        )]));
    };
    let Some(section) = file.remove("nvidia") else {
        return Err(Faults(vec![Fault::bare(
            "nvidia",
            "is missing",
            "the section of NVIDIA cards",
        )]));
    };
    let mut notes = Vec::new();
    let mut others: Vec<&str> = file.keys().map(String::as_str).collect();
    if !others.is_empty() {
        others.sort_unstable();
        notes.push(format!(
            "sections of others are left out: {}",
            others.join(", ")
        ));
    }
    let common: Cards = read::typed(&SECTION, section).map_err(below_nvidia)?;
    more(&common, "nvidia", &mut notes);
    let mut config = Config::of(DEFAULT, of_cards(&common, &common, "nvidia", &mut notes));
    let Some(node_config) = node_config else {
        return Ok(Converted { config, notes });
    };
    let mut file: BTreeMap<String, Vec<Cards>> = read::typed(&NODES, read::yaml(node_config)?)?;
    for node in file.remove("nodeconfig").unwrap_or_default() {
        let path = format!("nodeconfig {}", node.name);
        more(&node, &path, &mut notes);
        let mut profile = of_cards(&node, &common, &path, &mut notes);
        profile
            .node_selector
            .insert(HOST.to_owned(), node.name.clone());
        if config.profiles.contains_key(&node.name) {
            let what = "is there twice, or has the name of the default profile";
            let value = Value::from(node.name.as_str());
            return Err(Faults(vec![Fault::new(
                "nodeconfig",
                &value,
                what,
                "each node once",
            )]));
        }
        config.profiles.insert(node.name, profile);
    }
    Ok(Converted { config, notes })
}

fn below_nvidia(faults: Faults) -> Faults {
    let below = |mut fault: Fault| {
        fault.path = format!("nvidia.{}", fault.path);
        fault
    };
    Faults(faults.0.into_iter().map(below).collect())
}

fn of_cards(cards: &Cards, common: &Cards, path: &str, notes: &mut Vec<String>) -> Profile {
    let split = cards.split.or(common.split);
    let mode = match cards.mode.as_str() {
        "mig" => Mode::Mig(Mig {
            dynamic: true,
            ..Mig::default()
        }),
        "mps" => {
            notes.push(format!(
                "{path}: operatingmode mps does nothing there; here it is mode mps"
            ));
            let most = u32::try_from(crate::mode::MOST_CLIENTS).unwrap_or(u32::MAX);
            Mode::Mps(Mps::new(split.unwrap_or(10).min(most)))
        }
        _ => Mode::Vgpu(Vgpu {
            split,
            memory_scaling: cards.scaling.or(common.scaling),
            ..Vgpu::default()
        }),
    };
    let hidden = |select: Select| rule(select, Mode::Unmanaged);
    let mut gpus = Vec::new();
    if !cards.filter.uuid.is_empty() {
        let uuid = cards
            .filter
            .uuid
            .iter()
            .map(|uuid| uuid.as_str().into())
            .collect();
        gpus.push(hidden(Select {
            uuid,
            ..Select::default()
        }));
    }
    if !cards.filter.index.is_empty() {
        let index = cards.filter.index.clone();
        gpus.push(hidden(Select {
            index,
            ..Select::default()
        }));
    }
    profile(gpus, mode)
}

/// Notes what a profile has no place for.
fn more(cards: &Cards, path: &str, notes: &mut Vec<String>) {
    let mut others: Vec<(&String, &Value)> = cards.others.iter().collect();
    others.sort_by_key(|(key, _)| *key);
    for (key, value) in others {
        let one = value
            .as_f64()
            .is_some_and(|n| (n - 1.0).abs() < f64::EPSILON);
        let usual = key.eq_ignore_ascii_case("devicecorescaling") && one;
        if says_something(value) && !usual {
            let instead = match key.to_ascii_lowercase().as_str() {
                "migstrategy" => "which HAMi does not read either",
                "devicecorescaling" => "a card has 100 percent of compute here",
                "migprofileallowlist" | "knownmiggeometries" => "see `allow` of mode mig",
                _ => "it is no setting of a card (see the chart's values)",
            };
            notes.push(format!("{path}: {key} is left out, {instead}"));
        }
    }
}

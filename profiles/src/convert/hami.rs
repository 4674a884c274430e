//! HAMi's device-config.yaml, and the file with its exceptions for nodes.
//!
//! Source: HAMi 2.10's documentation of both. The first becomes the default profile, each entry of the
//! second a profile for the node of that name. Other vendors' sections are left out, and so are the
//! settings of pods (resource names, defaults), which are chart values here.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Converted, is_set, profile};
use crate::config::{Config, Profile, Rule};
use crate::error::{ProfileError, ProfileErrors};
use crate::gpu_selector::GpuSelector;
use crate::mode::{MAX_REPLICAS, Mig, Mode, Mps, Scaling, Vgpu};
use crate::read;
use crate::schema::ValueSchema::{Any, Keys, List, Text, Whole, Words};
use crate::schema::{ValueSchema, optional, required};
use crate::text_format;

/// The label whose value is a node's name.
const HOST: &str = "kubernetes.io/hostname";
/// Name of the profile from device-config.yaml.
const DEFAULT: &str = "hami";

const SECTION: ValueSchema = Keys(&[
    optional("deviceSplitCount", SPLIT, ""),
    optional("deviceMemoryScaling", ValueSchema::Scaling, ""),
    optional("deviceCoreScaling", Any, ""),
    optional("preConfiguredDeviceMemory", Any, ""),
    optional("libCudaLogLevel", Any, ""),
    optional("enableNumaTopology", Any, ""),
    optional("resourceCountName", Any, ""),
    optional("resourceMemoryName", Any, ""),
    optional("resourceMemoryPercentageName", Any, ""),
    optional("resourceCoreName", Any, ""),
    optional("resourcePriorityName", Any, ""),
    optional("overwriteEnv", Any, ""),
    optional("defaultMemory", Any, ""),
    optional("defaultCores", Any, ""),
    optional("defaultGPUNum", Any, ""),
    optional("memoryFactor", Any, ""),
    optional("disableCoreLimit", Any, ""),
    optional("gpuCorePolicy", Any, ""),
    optional("runtimeClassName", Any, ""),
    optional("migProfileAllowlist", Any, ""),
    optional("knownMigGeometries", Any, ""),
]);
const NODES: ValueSchema = Keys(&[required("nodeconfig", List(&NODE, 0), "")]);
const NODE: ValueSchema = Keys(&[
    required("name", Text(text_format::NAME), ""),
    optional("operatingmode", Words(&["", "hami-core", "mig", "mps"]), ""),
    optional("devicesplitcount", SPLIT, ""),
    optional("devicememoryscaling", ValueSchema::Scaling, ""),
    optional("devicecorescaling", Any, ""),
    optional("preconfigureddevicememory", Any, ""),
    optional("libcudaloglevel", Any, ""),
    optional("enablenumatopology", Any, ""),
    optional("migstrategy", Any, ""),
    optional("enablegetpreferredallocation", Any, ""),
    optional("filterdevices", FILTER, ""),
]);
const FILTER: ValueSchema = Keys(&[
    optional("uuid", List(&Text(text_format::UUID), 0), ""),
    optional(
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
const SPLIT: ValueSchema = Whole {
    least: 1,
    most: MAX_REPLICAS,
};

/// The settings of GPUs in both files.
#[derive(Clone, Default, Deserialize)]
struct GpuSettings {
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

/// Converts device-config.yaml, and the file for nodes if there is one.
pub fn convert(device_config: &str, node_config: Option<&str>) -> Result<Converted, ProfileErrors> {
    let Value::Object(mut file) = read::parse_yaml(device_config)? else {
        let what = "is not HAMi's device-config.yaml";
        return Err(ProfileErrors(vec![ProfileError::without_value(
            "(file)",
            what,
            "a section nvidia",
        )]));
    };
    let Some(section) = file.remove("nvidia") else {
        return Err(ProfileErrors(vec![ProfileError::without_value(
            "nvidia",
            "is missing",
            "the section of NVIDIA GPUs",
        )]));
    };
    let mut notes = Vec::new();
    let mut others: Vec<&str> = file.keys().map(String::as_str).collect();
    if !others.is_empty() {
        others.sort_unstable();
        notes.push(format!(
            "sections of other vendors are left out: {}",
            others.join(", ")
        ));
    }
    let common: GpuSettings = read::parse_typed(&SECTION, section).map_err(below_nvidia)?;
    note_unsupported(&common, "nvidia", &mut notes);
    let mut config = Config::of(DEFAULT, profile_of(&common, &common, "nvidia", &mut notes));
    let Some(node_config) = node_config else {
        return Ok(Converted { config, notes });
    };
    let mut file: BTreeMap<String, Vec<GpuSettings>> =
        read::parse_typed(&NODES, read::parse_yaml(node_config)?)?;
    for node in file.remove("nodeconfig").unwrap_or_default() {
        let path = format!("nodeconfig {}", node.name);
        note_unsupported(&node, &path, &mut notes);
        let mut profile = profile_of(&node, &common, &path, &mut notes);
        profile
            .node_selector
            .insert(HOST.to_owned(), node.name.clone());
        if config.profiles.contains_key(&node.name) {
            let what = "is a duplicate, or the name of the default profile";
            let value = Value::from(node.name.as_str());
            return Err(ProfileErrors(vec![ProfileError::new(
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

fn below_nvidia(errors: ProfileErrors) -> ProfileErrors {
    let below = |mut error: ProfileError| {
        error.path = format!("nvidia.{}", error.path);
        error
    };
    ProfileErrors(errors.0.into_iter().map(below).collect())
}

fn profile_of(
    settings: &GpuSettings,
    common: &GpuSettings,
    path: &str,
    notes: &mut Vec<String>,
) -> Profile {
    let split = settings.split.or(common.split);
    let mode = match settings.mode.as_str() {
        "mig" => Mode::Mig(Mig {
            dynamic: true,
            ..Mig::default()
        }),
        "mps" => {
            notes.push(format!(
                "{path}: operatingmode mps has no effect in HAMi; here it is mode mps"
            ));
            let most = u32::try_from(crate::mode::MAX_MPS_CLIENTS).unwrap_or(u32::MAX);
            Mode::Mps(Mps::new(split.unwrap_or(10).min(most)))
        }
        _ => Mode::Vgpu(Vgpu {
            split,
            memory_scaling: settings.scaling.or(common.scaling),
            ..Vgpu::default()
        }),
    };
    let hidden = |select: GpuSelector| Rule::new(select, Mode::Unmanaged);
    let mut gpus = Vec::new();
    if !settings.filter.uuid.is_empty() {
        let uuid = settings
            .filter
            .uuid
            .iter()
            .map(|uuid| uuid.as_str().into())
            .collect();
        gpus.push(hidden(GpuSelector {
            uuid,
            ..GpuSelector::default()
        }));
    }
    if !settings.filter.index.is_empty() {
        let index = settings.filter.index.clone();
        gpus.push(hidden(GpuSelector {
            index,
            ..GpuSelector::default()
        }));
    }
    profile(gpus, mode)
}

/// Adds notes on settings without a counterpart in a profile.
fn note_unsupported(settings: &GpuSettings, path: &str, notes: &mut Vec<String>) {
    let mut others: Vec<(&String, &Value)> = settings.others.iter().collect();
    others.sort_by_key(|(key, _)| *key);
    for (key, value) in others {
        let is_one = value
            .as_f64()
            .is_some_and(|n| (n - 1.0).abs() < f64::EPSILON);
        let usual = key.eq_ignore_ascii_case("devicecorescaling") && is_one;
        if is_set(value) && !usual {
            let instead = match key.to_ascii_lowercase().as_str() {
                "migstrategy" => "HAMi does not read it either",
                "devicecorescaling" => "a GPU has 100 percent of compute here",
                "migprofileallowlist" | "knownmiggeometries" => "see `allow` of mode mig",
                "defaultmemory" => "set the chart's scheduler.defaultMem, in MiB",
                "defaultcores" => "set the chart's scheduler.defaultCores",
                "defaultgpunum" => "set the chart's scheduler.defaultGPUNum",
                "memoryfactor" => "the unit of memory is MiB: multiply the requests by it",
                "gpucorepolicy" => {
                    "no policy applies to all pods: set GPU_CORE_UTILIZATION_POLICY in a pod's environment"
                }
                "disablecorelimit" => {
                    "set GPU_CORE_UTILIZATION_POLICY=disable in a pod's environment"
                }
                "libcudaloglevel" => "set LIBCUDA_LOG_LEVEL in a pod's environment",
                "overwriteenv" => {
                    "let NVIDIA's container toolkit refuse NVIDIA_VISIBLE_DEVICES from pods (docs/migrating-from-hami.md)"
                }
                "runtimeclassname" => "set the chart's webhook.runtimeClassName",
                _ => "it is not a setting of a GPU (see the chart's values)",
            };
            notes.push(format!("{path}: {key} is left out: {instead}"));
        }
    }
}

//! Node labels that describe the GPUs, for node selectors, in what NVIDIA's GPU Feature Discovery
//! cannot know: how Aliquot shares them. The keys that were written stand in an annotation of the
//! node, written in the same patch.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::{Gpu, Inventory, Mode};
use aliquot_core::mig::{RESOURCES, resource};
use aliquot_k8s::node::{MAX_LABEL_LENGTH, label_value};
use aliquot_nvml::DriverInventory;
use serde_json::{Map, Value, json};

use crate::gpus::allocatable::parent_gpu;
use crate::node_view::NodeView;

/// The node annotation with the keys of our labels, separated by commas.
pub const OWNED: &str = "aliquot.dev/feature-labels";
const PREFIX: &str = "aliquot.dev/";

/// All labels of a node. `default_resource` is the resource name of whole GPUs. Each product, mode
/// and MIG profile has a label of its own, because a selector cannot match a list.
pub fn node_labels(
    inventory: &Inventory,
    facts: &DriverInventory,
    default_resource: &str,
) -> BTreeMap<String, String> {
    if facts.gpus.is_empty() {
        return BTreeMap::new();
    }
    let mut all = mig_labels(inventory, facts, default_resource);
    for (name, number) in numbers(inventory, facts) {
        all.insert(name, number.to_string());
    }
    all.into_iter()
        .filter(|(name, value)| name.len() <= MAX_LABEL_LENGTH && *value == label_value(value))
        .map(|(name, value)| (format!("{PREFIX}{name}"), value))
        .collect()
}

/// GPUs by product and by mode, their memory, and how many instances there are or could be.
fn numbers(inventory: &Inventory, facts: &DriverInventory) -> BTreeMap<String, u64> {
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    for gpu in &facts.gpus {
        let product = label_value(&gpu.model);
        let least = numbers.entry(format!("memory.{product}"));
        let least = least.or_insert(gpu.memory.0);
        *least = (*least).min(gpu.memory.0);
        *numbers.entry(format!("product.{product}")).or_default() += 1;
    }
    let mut seen = BTreeSet::new();
    for device in &inventory.gpus {
        let profile = mig_profile(device);
        let mode = match device.mode {
            _ if profile.is_some() => Mode::Mig,
            Mode::Unknown => continue,
            mode => mode,
        };
        if seen.insert(parent_gpu(device)) {
            *numbers.entry(format!("mode.{}", mode.name())).or_default() += 1;
        }
        if let Some(profile) = profile {
            let name = profile_name(profile);
            *numbers.entry(format!("mig-{name}.count")).or_default() += 1;
        }
        let dynamic = device.mig.as_ref().and_then(|mig| mig.dynamic());
        for kind in dynamic.iter().flat_map(|mig| mig.geometry.profiles()) {
            let name = profile_name(&kind.name);
            let most = numbers.entry(format!("mig-{name}.most")).or_default();
            *most += u64::from(kind.most);
        }
    }
    numbers
}

/// Whether and how GPUs are partitioned, and the product of each kind of instance.
fn mig_labels(
    inventory: &Inventory,
    facts: &DriverInventory,
    default_resource: &str,
) -> BTreeMap<String, String> {
    let capable = facts.gpus.iter().any(|gpu| gpu.mig.capable);
    let mut all = BTreeMap::from([("mig.capable".to_owned(), capable.to_string())]);
    for device in &inventory.gpus {
        let profile = mig_profile(device);
        if let Some(profile) = profile {
            let name = format!("mig-{}.product", profile_name(profile));
            all.entry(name)
                .or_insert_with(|| instance_product(device, profile, default_resource));
        } else if device.mode != Mode::Mig {
            continue;
        }
        let single = profile.is_some() && device.resource == default_resource;
        let strategy = all.entry("mig.strategy".to_owned()).or_default();
        if *strategy != "mixed" {
            let word = if single { "single" } else { "mixed" };
            word.clone_into(strategy);
        }
    }
    all
}

fn mig_profile(device: &Gpu) -> Option<&str> {
    let part = device.mig.as_ref()?.fixed()?;
    Some(part.profile.as_str())
}

/// The profile in a label's key, which has no plus sign.
fn profile_name(profile: &str) -> String {
    let resource = resource(profile);
    resource.trim_start_matches(RESOURCES).to_owned()
}

/// `NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED`; the suffix only where time-slicing or MPS shares the
/// instance under the resource name that it has without sharing.
fn instance_product(device: &Gpu, profile: &str, default_resource: &str) -> String {
    let renamed = device.resource != default_resource && !device.resource.starts_with(RESOURCES);
    let shared = matches!(device.mode, Mode::Timeslice | Mode::Mps) && !renamed;
    let suffix = if shared { "-SHARED" } else { "" };
    let name = profile_name(profile);
    label_value(&format!("{}-MIG-{name}{suffix}", device.model))
}

/// The patch of the node's metadata that sets these labels and removes others that an earlier one
/// set; `None` if nothing needs to change.
pub fn patch(desired: &BTreeMap<String, String>, view: &NodeView) -> Option<Value> {
    let owned = view.annotation(OWNED).unwrap_or_default().split(',');
    let mut labels: Map<String, Value> = owned
        .filter(|key| key.starts_with(PREFIX) && view.labels.contains_key(*key))
        .filter(|key| !desired.contains_key(*key))
        .map(|key| (key.to_owned(), Value::Null))
        .collect();
    for (key, value) in desired {
        if view.labels.get(key) != Some(value) {
            labels.insert(key.clone(), json!(value));
        }
    }
    let keys: Vec<&str> = desired.keys().map(String::as_str).collect();
    let keys = (!keys.is_empty()).then(|| keys.join(","));
    if labels.is_empty() && keys.as_deref() == view.annotation(OWNED) {
        return None;
    }
    Some(json!({"metadata": {"labels": labels, "annotations": {OWNED: keys}}}))
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;

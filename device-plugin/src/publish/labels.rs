//! Node labels that describe the GPUs, for node selectors: NVIDIA's names, as the documentation of
//! gpu-feature-discovery lists them, and our own for what those cannot express.

mod nvidia;
pub mod ownership;

use std::collections::{BTreeMap, BTreeSet};

use aliquot_core::inventory::{Gpu, Inventory, Mode};
use aliquot_core::mig::{RESOURCES, resource};
use aliquot_core::{GpuUuid, Mib};
use aliquot_k8s::node::{MAX_LABEL_LENGTH, label_value};
use aliquot_nvml as nvml;

use crate::gpus::allocatable::parent_gpu;

/// What the driver reports of the physical GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The GPUs, by index.
    pub gpus: Vec<GpuFeatures>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFeatures {
    pub uuid: GpuUuid,
    /// NVML's product name.
    pub product: String,
    /// Its memory, with what the driver reserves.
    pub memory: Mib,
    pub mig_capable: bool,
}

impl Features {
    /// The features of these GPUs.
    pub fn of(facts: &nvml::DriverInventory) -> Self {
        let gpu = |gpu: &nvml::GpuFacts| GpuFeatures {
            uuid: gpu.uuid.as_str().into(),
            product: gpu.model.clone(),
            memory: gpu.memory,
            mig_capable: gpu.mig.capable,
        };
        Self {
            gpus: facts.gpus.iter().map(gpu).collect(),
        }
    }

    /// The physical GPU of a device.
    fn physical_gpu(&self, device: &Gpu) -> Option<&GpuFeatures> {
        let uuid = parent_gpu(device);
        self.gpus.iter().find(|gpu| gpu.uuid == *uuid)
    }
}

/// All labels of a node. `default_resource` is the resource name of whole GPUs.
pub fn node_labels(
    inventory: &Inventory,
    features: &Features,
    default_resource: &str,
) -> BTreeMap<String, String> {
    if features.gpus.is_empty() {
        return BTreeMap::new();
    }
    let mut all = nvidia::labels(inventory, features, default_resource);
    all.extend(own_labels(inventory, features));
    let fits = |(key, value): &(String, String)| {
        let name = key.split_once('/').map_or("", |(_, name)| name);
        name.len() <= MAX_LABEL_LENGTH && *value == label_value(value)
    };
    all.into_iter().filter(fits).collect()
}

/// Our own labels: GPUs by product and by mode, and what dynamic MIG can create. Each product and
/// mode has a label of its own, because a selector cannot match a list.
fn own_labels(inventory: &Inventory, features: &Features) -> BTreeMap<String, String> {
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    let mut memory: BTreeMap<String, u64> = BTreeMap::new();
    for gpu in &features.gpus {
        let product = label_value(&gpu.product);
        *numbers.entry(format!("product.{product}")).or_default() += 1;
        let least = memory.entry(format!("memory.{product}"));
        let least = least.or_insert(gpu.memory.0);
        *least = (*least).min(gpu.memory.0);
    }
    let mut seen = BTreeSet::new();
    for device in &inventory.gpus {
        let partitioned = mig_profile(device).is_some() || device.mode == Mode::Mig;
        let mode = match device.mode {
            _ if partitioned => Mode::Mig,
            Mode::Unknown => continue,
            mode => mode,
        };
        let gpu = features.physical_gpu(device).map(|gpu| &gpu.uuid);
        if seen.insert(gpu.unwrap_or(&device.uuid)) {
            *numbers.entry(format!("mode.{}", mode.name())).or_default() += 1;
        }
        let geometry = device.mig.as_ref().and_then(|mig| mig.dynamic());
        for kind in geometry
            .iter()
            .flat_map(|dynamic| dynamic.geometry.profiles())
        {
            let resource = resource(&kind.name);
            let name = resource.trim_start_matches(RESOURCES);
            let most = numbers.entry(format!("mig-{name}.most")).or_default();
            *most += u64::from(kind.most);
        }
    }
    numbers.extend(memory);
    let all = numbers.into_iter();
    all.map(|(name, number)| (format!("aliquot.dev/{name}"), number.to_string()))
        .collect()
}

/// The MIG profile of an instance.
fn mig_profile(device: &Gpu) -> Option<&str> {
    let part = device.mig.as_ref()?.fixed()?;
    Some(part.profile.as_str())
}

/// How a device is shared, in NVIDIA's words where there is one.
fn sharing_strategy(device: &Gpu) -> &'static str {
    match device.mode {
        Mode::Vgpu => "vgpu",
        Mode::Timeslice => "time-slicing",
        Mode::Mps => "mps",
        Mode::Exclusive | Mode::Mig | Mode::Unknown => "none",
    }
}

/// `NVIDIA-A100-SXM4-40GB-MIG-3g.20gb-SHARED`; the suffix only where time-slicing or MPS shares the
/// device under the resource name that it has without sharing.
fn product(device: &Gpu, default_resource: &str) -> String {
    let mut words = device.model.clone();
    if let Some(profile) = mig_profile(device) {
        words = format!("{words}-MIG-{}", profile.replace('+', "."));
    }
    let shared = matches!(device.mode, Mode::Timeslice | Mode::Mps);
    if shared && (device.resource == default_resource || device.resource.starts_with(RESOURCES)) {
        words.push_str("-SHARED");
    }
    label_value(&words)
}

/// The memory of one client; of a whole GPU with what the driver reserves, as NVIDIA's labels have it.
fn memory(device: &Gpu, features: &Features) -> Mib {
    match &device.even_share {
        Some(even) if device.mode == Mode::Mps => even.memory,
        _ if device.mig.is_some() => device.memory,
        _ => features
            .physical_gpu(device)
            .map_or(device.memory, |gpu| gpu.memory),
    }
}

#[cfg(test)]
#[path = "labels/tests.rs"]
mod tests;

//! NVIDIA's labels. One set of `nvidia.com/gpu.*` describes the whole node, so on a node with
//! several kinds of GPU it describes the most frequent one, the lowest index among equals.

use std::collections::BTreeMap;
use std::fmt::Display;

use aliquot_core::inventory::{Gpu, Inventory, Mode};
use aliquot_core::mig::RESOURCES;
use aliquot_k8s::node::label_value;

use super::{Features, memory, mig_profile, product, sharing_strategy};

/// Labels by key.
type Labels = BTreeMap<String, String>;

pub(super) fn labels(inventory: &Inventory, features: &Features, default_resource: &str) -> Labels {
    let mut all = Labels::new();
    let devices = &inventory.gpus;
    let is_of =
        |device: &&Gpu, name: &str| device.resource == name && mig_profile(device).is_some();
    let single: Vec<&Gpu> = devices
        .iter()
        .filter(|device| is_of(device, default_resource))
        .collect();
    let mixed: Vec<&Gpu> = devices
        .iter()
        .filter(|device| mig_profile(device).is_some() && device.resource.starts_with(RESOURCES))
        .collect();
    let whole: Vec<&Gpu> = devices
        .iter()
        .filter(|device| mig_profile(device).is_none() && device.replicas > 0)
        .collect();
    let dynamic = devices.iter().any(|device| device.mode == Mode::Mig);
    let strategy = match (single.is_empty(), mixed.is_empty() && !dynamic) {
        (false, true) => Some("single"),
        (_, false) => Some("mixed"),
        (true, true) => None,
    };
    if let Some(strategy) = strategy {
        put(&mut all, "mig.strategy", strategy);
    }
    let yes = |found: bool| if found { "true" } else { "false" };
    let cuttable = features.gpus.iter().any(|gpu| gpu.mig_capable);
    put(&mut all, "mig.capable", yes(cuttable));
    let mps = devices.iter().any(|device| device.mode == Mode::Mps);
    put(&mut all, "mps.capable", yes(mps));

    let default_named: Vec<&Gpu> = whole
        .iter()
        .copied()
        .filter(|device| device.resource == default_resource)
        .collect();
    if single.is_empty() {
        let advertised = if default_named.is_empty() {
            whole
        } else {
            default_named
        };
        whole_gpu_labels(&mut all, &advertised, features, default_resource);
    } else {
        let alike = default_named.is_empty()
            && single
                .iter()
                .all(|u| mig_profile(u) == mig_profile(single[0]));
        single_strategy_labels(&mut all, &single, alike, features, default_resource);
    }
    let mut profiles: BTreeMap<&str, Vec<&Gpu>> = BTreeMap::new();
    for device in mixed {
        profiles.entry(&device.resource).or_default().push(device);
    }
    for (resource, devices) in profiles {
        let name = resource.trim_start_matches("nvidia.com/");
        put(&mut all, &format!("{name}.count"), devices.len());
        describe(
            &mut all,
            name,
            most_common(&devices),
            features,
            default_resource,
        );
    }
    all
}

fn put(all: &mut Labels, name: &str, value: impl Display) {
    all.insert(format!("nvidia.com/{name}"), format!("{value}"));
}

/// Labels of the advertised whole GPUs, or of what the driver reports if there is none.
fn whole_gpu_labels(
    all: &mut Labels,
    advertised: &[&Gpu],
    features: &Features,
    default_resource: &str,
) {
    put(all, "gpu.count", features.gpus.len());
    if advertised.is_empty() {
        let Some(gpu) = features.gpus.first() else {
            return;
        };
        put(all, "gpu.product", label_value(&gpu.product));
        put(all, "gpu.memory", gpu.memory.0);
        put(all, "gpu.replicas", 1);
        put(all, "gpu.sharing-strategy", "none");
    } else {
        let device = most_common(advertised);
        describe(all, "gpu", device, features, default_resource);
    }
}

/// Strategy `single`: instances under the resource name of whole GPUs.
fn single_strategy_labels(
    all: &mut Labels,
    devices: &[&Gpu],
    alike: bool,
    features: &Features,
    default_resource: &str,
) {
    let device = most_common(devices);
    if alike {
        put(all, "gpu.count", devices.len());
        describe(all, "gpu", device, features, default_resource);
    } else {
        put(
            all,
            "gpu.product",
            label_value(&format!("{}-MIG-INVALID", device.model)),
        );
        for name in ["gpu.count", "gpu.replicas", "gpu.memory"] {
            put(all, name, 0);
        }
    }
}

/// A device of the most frequent kind, the first among equals.
fn most_common<'a>(devices: &[&'a Gpu]) -> &'a Gpu {
    let alike = |a: &Gpu, b: &Gpu| {
        let kind = |device: &Gpu| {
            (
                device.model.clone(),
                device.mode,
                device.replicas,
                device.memory,
            )
        };
        kind(a) == kind(b)
    };
    let count = |device: &Gpu| devices.iter().filter(|other| alike(device, other)).count();
    let mut best = devices[0];
    for device in devices {
        if count(device) > count(best) {
            best = device;
        }
    }
    best
}

fn describe(
    all: &mut Labels,
    name: &str,
    device: &Gpu,
    features: &Features,
    default_resource: &str,
) {
    put(
        all,
        &format!("{name}.product"),
        product(device, default_resource),
    );
    put(all, &format!("{name}.memory"), memory(device, features).0);
    put(all, &format!("{name}.replicas"), device.replicas);
    put(
        all,
        &format!("{name}.sharing-strategy"),
        sharing_strategy(device),
    );
    if let Some(slices) = mig_profile(device).and_then(compute_slices) {
        put(all, &format!("{name}.slices.gi"), slices);
        put(all, &format!("{name}.slices.ci"), slices);
    }
}

/// 3 of `3g.20gb`.
fn compute_slices(profile: &str) -> Option<u8> {
    profile.split_once('g')?.0.parse().ok()
}

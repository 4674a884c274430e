//! Step 4, besides the environment: other words of a pod that open GPUs past the books.
//!
//! Mounts below one folder name GPUs to NVIDIA's runtime. Annotations name CDI devices: NVIDIA's
//! NRI plugin reads them off the pod, and CRI-O copies a pod's annotations to its containers, where
//! NVIDIA's runtime reads them.
//! Fed by: volume mounts and annotations of new pods, mounts of new ephemeral containers.
//! Must not: judge devices of other vendors.

use aliquot_core::escape::path;
use aliquot_core::wishes::PIN;

use super::Refusal;
use super::edit::Editor;
use super::env::Found;
use super::gate::Gate;
use super::pod::{Container, items};
use crate::settings::VisibleDevices;

/// Where NVIDIA's runtime looks for GPUs that mounts name.
const FOLDER: &str = "/var/run/nvidia-container-devices";
/// Its last part, by which the API server knows whom to send.
pub const FOLDER_NAME: &str = "nvidia-container-devices";
/// How keys of annotations begin that name CDI devices.
pub const KEYS: [&str; 2] = ["cdi.k8s.io/", "nvidia.cdi.k8s.io"];
/// In the values, what may be a GPU: NVIDIA's devices and shares of ours.
pub const VENDORS: [&str; 2] = ["nvidia.com", "aliquot.dev"];

/// Takes such annotations off a new pod, and refuses such mounts.
pub(super) fn judge(
    editor: &mut Editor,
    containers: &[Container<'_>],
    gate: &Gate<'_>,
    found: &mut Found,
) {
    for container in containers {
        found.refusals.extend(mounts(container, gate));
    }
    let annotations = gate.pod["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let one = key.strip_prefix("nvidia.cdi.k8s.io/container.");
        let reached = containers.iter();
        let mut reached = reached.filter(|c| one.is_none_or(|one| c.name() == one));
        // Nobody to leave alone: an ephemeral container of that name may come later.
        let nobody = reached.clone().next().is_none();
        let left = gate.policy == VisibleDevices::Allow
            || (!nobody && reached.all(|container| gate.leaves(container)));
        if left || !opens(key, value) {
            continue;
        }
        let what = format!("CDI devices {value:?} would open GPUs past the books");
        if gate.policy == VisibleDevices::Deny {
            found.refusals.push(Refusal {
                field: format!("metadata.annotations[{key:?}]"),
                message: format!(
                    "{what}; accepted: none of {} (annotation {} chooses a GPU)",
                    VENDORS.join(", "),
                    PIN.ours
                ),
            });
        } else if editor.remove(&["metadata", "annotations", key]) {
            let warning = format!("annotation {key} removed: {what}; ask for a GPU in limits");
            found.warnings.push(warning);
        }
    }
}

/// Mounts by which this container names GPUs.
pub(super) fn mounts(container: &Container<'_>, gate: &Gate<'_>) -> Vec<Refusal> {
    if gate.leaves(container) {
        return Vec::new();
    }
    let mounts = items(&container.raw["volumeMounts"]).iter().enumerate();
    let named = mounts.filter_map(|(index, mount)| {
        let at = mount["mountPath"].as_str()?;
        path::is_within(at, FOLDER).then(|| Refusal {
            field: format!("{}.volumeMounts[{index}].mountPath", container.field()),
            message: format!(
                "{at:?} names GPUs past the books to NVIDIA's runtime; accepted: a path outside {FOLDER}"
            ),
        })
    });
    named.collect()
}

/// The annotation names a device that may be a GPU.
fn opens(key: &str, value: &str) -> bool {
    let mut vendors = value.split(',').filter_map(|device| {
        let (vendor, _) = device.trim().split_once('/')?;
        Some(vendor)
    });
    KEYS.iter().any(|prefix| key.starts_with(prefix))
        && vendors.any(|vendor| {
            let mut ours = VENDORS.iter();
            ours.any(|one| vendor == *one || vendor.ends_with(&format!(".{one}")))
        })
}

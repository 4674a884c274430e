//! GPUs that a pod injects by mounts or annotations instead of requesting them.
//!
//! Mounts below one folder name GPUs to NVIDIA's runtime. Annotations name CDI devices: NVIDIA's
//! NRI plugin reads them off the pod, and CRI-O copies a pod's annotations to its containers, where
//! NVIDIA's runtime reads them. Devices of other vendors are left alone.

use aliquot_core::escape;
use aliquot_core::preferences::PIN;

use super::environment::PodContext;
use super::patch::PodEditor;
use super::pod::{Container, items};
use super::{Findings, Refusal};
use crate::settings::VisibleDevices;

/// Where NVIDIA's runtime looks for GPUs that mounts name.
const MOUNT_FOLDER: &str = "/var/run/nvidia-container-devices";
/// Its last part, by which the match conditions recognize such a mount.
pub const MOUNT_FOLDER_NAME: &str = "nvidia-container-devices";
/// Prefixes of the keys of annotations that name CDI devices.
pub const CDI_KEYS: [&str; 2] = ["cdi.k8s.io/", "nvidia.cdi.k8s.io"];
/// Vendors in the values whose devices may be GPUs: NVIDIA, and our own shares.
pub const CDI_VENDORS: [&str; 2] = ["nvidia.com", "aliquot.dev"];

/// Removes such annotations from a new pod, and refuses such mounts.
pub(super) fn check(
    editor: &mut PodEditor,
    containers: &[Container<'_>],
    context: &PodContext<'_>,
    findings: &mut Findings,
) {
    for container in containers {
        findings.refusals.extend(mounts(container, context));
    }
    let annotations = context.pod["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !names_gpu(key, value) || is_exempt(key, containers, context) {
            continue;
        }
        let what = format!("CDI devices {value:?} would bypass the scheduler");
        if context.policy == VisibleDevices::Deny {
            findings.refusals.push(Refusal {
                field: format!("metadata.annotations[{key:?}]"),
                message: format!(
                    "{what}; expected: no device of {} (use annotation {} to choose a GPU)",
                    CDI_VENDORS.join(" or "),
                    PIN.aliquot
                ),
            });
        } else if editor.remove(&["metadata", "annotations", key]) {
            findings.warnings.push(format!(
                "annotation {key} removed: {what}; request a GPU in resources.limits instead"
            ));
        }
    }
}

/// All containers that this annotation reaches are exempt. A name that no container has reaches
/// nobody yet, but an ephemeral container of that name may come later.
fn is_exempt(key: &str, containers: &[Container<'_>], context: &PodContext<'_>) -> bool {
    let name = key.strip_prefix("nvidia.cdi.k8s.io/container.");
    let mut reached = containers
        .iter()
        .filter(|c| name.is_none_or(|name| c.name() == name))
        .peekable();
    context.policy == VisibleDevices::Allow
        || (reached.peek().is_some() && reached.all(|container| context.is_exempt(container)))
}

/// Mounts by which this container names GPUs.
pub(super) fn mounts(container: &Container<'_>, context: &PodContext<'_>) -> Vec<Refusal> {
    if context.is_exempt(container) {
        return Vec::new();
    }
    let mounts = items(&container.raw["volumeMounts"]).iter().enumerate();
    let refused = mounts.filter_map(|(index, mount)| {
        let mount_path = mount["mountPath"].as_str()?;
        escape::is_within(mount_path, MOUNT_FOLDER).then(|| Refusal {
            field: format!("{}.volumeMounts[{index}].mountPath", container.field()),
            message: format!(
                "{mount_path:?} would inject GPUs and bypass the scheduler; expected: a path \
                 outside {MOUNT_FOLDER}"
            ),
        })
    });
    refused.collect()
}

/// The annotation names a device that may be a GPU.
fn names_gpu(key: &str, value: &str) -> bool {
    let mut vendors = value.split(',').filter_map(|device| {
        let (vendor, _) = device.trim().split_once('/')?;
        Some(vendor)
    });
    CDI_KEYS.iter().any(|prefix| key.starts_with(prefix))
        && vendors.any(|vendor| {
            let mut known = CDI_VENDORS.iter();
            known.any(|one| vendor == *one || vendor.ends_with(&format!(".{one}")))
        })
}

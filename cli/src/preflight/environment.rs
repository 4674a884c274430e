//! Workloads that get GPUs from NVIDIA's runtime without requesting one.

use aliquot_core::escape::{self, AGENT_PATHS, ROOT_CAPABILITIES};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::systems::NVIDIA_CLASSES;
use crate::doctor::finding::{Checked, warning};

/// The variable by which NVIDIA's runtime gives a container GPUs.
pub(super) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// A pod that gets GPUs by its environment, or may get them by its image's.
pub(super) fn gpus_by_environment(object: &Pod) -> Option<Checked> {
    let todo = "request nvidia.com/gpu instead; for NVIDIA's own components or an exporter, label the namespace aliquot.dev/webhook: ignore, or add it to webhook.escapeAllowNamespaces";
    let containers = || pod::containers(object).map(|(container, _)| container);
    let open = || containers().filter(|container| !reaches_every_gpu(object, container));
    let value = open().find_map(|container| {
        let all = container.env.as_deref().unwrap_or_default().iter();
        all.filter(|one| one.name == VISIBLE)
            .find_map(|one| one.value.clone())
    });
    if let Some(value) = value {
        if ["", "none", "void"].contains(&value.as_str()) {
            return None;
        }
        let what = format!(
            "{VISIBLE}={value} gives the container GPUs today; with Aliquot, a UUID is treated like the annotation aliquot.dev/use-gpu, and all is removed"
        );
        return Some(warning(what, todo));
    }
    let class = object.spec.as_ref()?.runtime_class_name.as_deref()?;
    let is_theirs = NVIDIA_CLASSES.contains(&class);
    if !is_theirs || containers().any(asks) || open().next().is_none() {
        return None;
    }
    let what = format!(
        "requests no GPU, but the runtime class {class} gives all GPUs to an image that sets {VISIBLE}; with Aliquot it gives none"
    );
    Some(warning(what, todo))
}

/// Whether the container reaches every GPU anyway.
fn reaches_every_gpu(object: &Pod, container: &Container) -> bool {
    let context = container.security_context.as_ref();
    let added = context.and_then(|context| context.capabilities.as_ref()?.add.as_deref());
    let mut added = added.unwrap_or_default().iter();
    let volumes = object
        .spec
        .as_ref()
        .and_then(|spec| spec.volumes.as_deref());
    let mut volumes = volumes.unwrap_or_default().iter();
    context.is_some_and(|context| context.privileged == Some(true))
        || added.any(|name| escape::is_one_of(&ROOT_CAPABILITIES, name))
        || volumes.any(|volume| {
            let source = volume.host_path.as_ref();
            let agent = AGENT_PATHS.into_iter();
            writes(container, volume)
                && source.is_some_and(|source| escape::grants_root(&source.path, agent))
        })
}

/// Whether the container mounts the volume writable.
fn writes(container: &Container, volume: &Volume) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.name == volume.name && mount.read_only != Some(true))
}

/// Whether it requests a GPU of any vendor.
fn asks(container: &Container) -> bool {
    let limits = container.resources.as_ref();
    let mut limits = limits
        .and_then(|all| all.limits.as_ref())
        .into_iter()
        .flatten();
    limits.any(|(name, _)| {
        name.contains('/') && name.contains("gpu") || name.starts_with("nvidia.com/")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "tests read better with values"
    )]
    fn check(spec: Value, container: Value, named: bool) {
        let mut pod = json!({"spec": spec});
        pod["spec"]["containers"] = json!([container]);
        let object: Pod = serde_json::from_value(pod).unwrap();
        let found = gpus_by_environment(&object);
        assert_eq!(found.is_some(), named, "{found:?}");
    }

    #[test]
    fn classes_are_those_of_the_chart() {
        let values = include_str!("../../../charts/aliquot/values.yaml");
        let classes = NVIDIA_CLASSES.join(", ");
        assert!(values.contains(&format!("nvidiaRuntimeClasses: [{classes}]\n")));
    }

    #[test]
    fn ignores_pods_that_reach_every_gpu_anyway() {
        let all = json!([{"name": VISIBLE, "value": "all"}]);
        let with = |security: Value| json!({"name": "m", "env": all, "securityContext": security});
        check(json!({}), with(json!({})), true);
        check(json!({}), with(json!({"privileged": true})), false);
        let adds = json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}});
        check(json!({}), with(adds), false);
        // The device plugin of NVIDIA's chart, without MIG.
        let at = |path: &str| json!({"volumes": [{"name": "p", "hostPath": {"path": path}}]});
        let mounts = |only_reads: bool| {
            let mount = json!({"name": "p", "mountPath": "/p", "readOnly": only_reads});
            json!({"name": "m", "env": all, "volumeMounts": [mount]})
        };
        let plugins = "/var/lib/kubelet/device-plugins";
        check(at(plugins), mounts(false), false);
        check(at(plugins), mounts(true), true);
        check(at("/data"), mounts(false), true);
    }

    #[test]
    fn warns_of_image_environment_in_nvidia_runtime_class() {
        let class = |name: &str| json!({"runtimeClassName": name});
        check(class("nvidia"), json!({"name": "m"}), true);
        check(class("kata"), json!({"name": "m"}), false);
        // By the list of webhook.nvidiaRuntimeClasses, not by a prefix.
        check(class("nvidia-cdi"), json!({"name": "m"}), true);
        check(class("nvidia-like"), json!({"name": "m"}), false);
        let gpu = json!({"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        check(class("nvidia"), gpu, false);
        let void = json!({"name": "m", "env": [{"name": VISIBLE, "value": "void"}]});
        check(class("nvidia"), void, false);
        let above = json!({"name": "m", "securityContext": {"privileged": true}});
        check(class("nvidia"), above, false);
    }
}

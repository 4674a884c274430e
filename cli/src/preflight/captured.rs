//! What the webhook would review: new pods that mention a GPU, by the condition of
//! charts/aliquot/files/mentions-gpu.cel.

use std::collections::BTreeMap;

use aliquot_core::request::{Resource, ResourceNames};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::environment::VISIBLE;
use super::{NVIDIA_CLASSES, PreFacts};
use crate::doctor::finding::{About, Finding};
use crate::table::{counted, some};

/// Annotations that only Aliquot or HAMi write, and that of requests.
const ANNOTATIONS: [&str; 11] = [
    "aliquot.dev/allocation",
    "aliquot.dev/preemption",
    "aliquot.dev/resize-status",
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-node",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-mig-allocations",
    "hami.io/vgpu-time",
    "hami.io/bind-phase",
    "hami.io/bind-time",
    "aliquot.dev/request",
];
const MIG: &str = "nvidia.com/mig-";
/// A part of the path of a mount by which NVIDIA's runtime also chooses GPUs.
const MOUNT: &str = "nvidia-container-devices";
/// Annotations by which a runtime injects devices, and the vendors that count.
const CDI: [&str; 2] = ["cdi.k8s.io/", "nvidia.cdi.k8s.io"];
const VENDORS: [&str; 2] = ["nvidia.com", "aliquot.dev"];
/// Parts of the names of images of NVIDIA's own parts.
const PARTS: [&str; 7] = [
    "nvidia/cloud-native/",
    "nvidia/k8s/",
    "container-toolkit",
    "dcgm-exporter",
    "gpu-feature-discovery",
    "gpu-operator",
    "k8s-device-plugin",
];

/// A finding for each namespace with workloads that would be reviewed.
pub(super) fn checks(facts: &PreFacts, about: &About) -> Vec<Finding> {
    let check = "captured";
    let unlisted = facts.unlisted.iter();
    let unlisted = unlisted.map(|(what, why)| About((*what).to_owned()).unknown(check, why));
    let mut found: Vec<Finding> = unlisted.collect();
    let (workloads, exempt) = match (&facts.workloads, &facts.exempt) {
        (Ok(workloads), Ok(exempt)) => (workloads, exempt),
        (Err(why), _) | (_, Err(why)) => {
            found.push(about.unknown(check, why));
            return found;
        }
    };
    let mut namespaces: BTreeMap<&str, (Vec<String>, bool)> = BTreeMap::new();
    let names = ResourceNames::default();
    let resources: Vec<&str> = Resource::ALL.iter().map(|one| names.of(*one)).collect();
    for one in workloads.iter().filter(|one| one.template && facts.judges(one)) {
        let namespace = one.namespace.as_str();
        let left = namespace == facts.namespace || exempt.iter().any(|name| name == namespace);
        if left || !mentions_gpu(&one.pod, &resources) {
            continue;
        }
        let (found, has_parts) = namespaces.entry(namespace).or_default();
        found.push(format!("{} {}", one.kind, one.name));
        *has_parts |= is_nvidia_part(&one.pod);
    }
    let none = namespaces.is_empty();
    found.extend(namespaces.into_iter().map(|(namespace, (named, has_parts))| {
        let about = About(format!("namespace {namespace}"));
        let count = counted(named.len(), "workload", "workloads");
        let text = format!(
            "the webhook would review new pods of {count}: {}",
            some(named.iter().map(String::as_str))
        );
        if has_parts {
            return about.warning(
                check,
                format!("{text}; among them are parts of NVIDIA's, which would see no GPU after they are created again"),
                &format!("kubectl label namespace {namespace} aliquot.dev/webhook=ignore"),
            );
        }
        about.note(
            check,
            text,
            &format!("kubectl aliquot preflight --from nvidia -n {namespace} shows what would change; kubectl label namespace {namespace} aliquot.dev/webhook=ignore leaves them alone"),
        )
    }));
    if none {
        found.push(about.ok(check, "the webhook would review no workload of today"));
    }
    if !exempt.is_empty() {
        let names = some(exempt.iter().map(String::as_str));
        found.push(about.ok(check, format!("exempt by their label: {names}")));
    }
    found
}

/// The condition under which the API server calls the webhook.
fn mentions_gpu(object: &Pod, resources: &[&str]) -> bool {
    let annotations = object.metadata.annotations.iter().flatten();
    let spec = object.spec.as_ref();
    let class = spec.and_then(|spec| spec.runtime_class_name.as_deref());
    let mut containers = pod::containers(object).map(|(container, _)| container);
    let injects = annotations.clone().any(|(key, value)| {
        CDI.iter().any(|start| key.starts_with(start))
            && VENDORS.iter().any(|vendor| value.contains(vendor))
    });
    let by_runtime = injects || class.is_some_and(|own| NVIDIA_CLASSES.contains(&own));
    annotations
        .clone()
        .any(|(key, _)| ANNOTATIONS.contains(&key.as_str()))
        || containers.any(|container| {
            requests(container, resources)
                || !is_privileged(container) && (by_runtime || by_environment(container))
        })
}

fn is_privileged(container: &Container) -> bool {
    let context = container.security_context.as_ref();
    context.is_some_and(|context| context.privileged == Some(true))
}

fn requests(container: &Container, resources: &[&str]) -> bool {
    let all = container.resources.iter();
    let all = all.flat_map(|all| [&all.limits, &all.requests]).flatten();
    let mut names = all.flat_map(BTreeMap::keys);
    names.any(|name| resources.contains(&name.as_str()) || name.starts_with(MIG))
}

fn by_environment(container: &Container) -> bool {
    let mut env = container.env.iter().flatten();
    let mut mounts = container.volume_mounts.iter().flatten();
    env.any(|one| one.name == VISIBLE) || mounts.any(|mount| mount.mount_path.contains(MOUNT))
}

fn is_nvidia_part(object: &Pod) -> bool {
    let mut images = pod::containers(object).filter_map(|(one, _)| one.image.as_deref());
    images.any(|image| PARTS.iter().any(|part| image.contains(part)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn names_of_the_condition_are_those_of_the_chart() {
        let condition = include_str!("../../../charts/aliquot/files/mentions-gpu.cel");
        let texts: BTreeSet<&str> = condition.split('"').skip(1).step_by(2).collect();
        let ours = ANNOTATIONS.into_iter().chain(CDI).chain(VENDORS);
        let ours: BTreeSet<&str> = ours.chain([MIG, VISIBLE, MOUNT]).collect();
        assert_eq!(ours, texts);
    }

    #[test]
    fn classes_are_those_of_the_chart() {
        let values = include_str!("../../../charts/aliquot/values.yaml");
        let classes = NVIDIA_CLASSES.join(", ");
        assert!(values.contains(&format!("nvidiaRuntimeClasses: [{classes}]\n")));
    }

    #[test]
    fn pod_mentions_gpu_as_the_chart_defines_it() {
        let in_container = |key: &str, value: Value| {
            let mut container = json!({"name": "c"});
            container[key] = value;
            json!({"spec": {"containers": [container]}})
        };
        let limits = |name: &str| in_container("resources", json!({"limits": {name: "1"}}));
        let env = json!([{"name": VISIBLE, "value": "void"}]);
        let mount = json!([{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]);
        let idle = json!([{"name": "c"}]);
        let class = |name: &str| json!({"spec": {"runtimeClassName": name, "containers": idle}});
        let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}, "spec": {"containers": idle}});
        // What is privileged reaches every GPU anyway.
        let mut privileged = in_container("env", env.clone());
        privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        privileged["spec"]["runtimeClassName"] = json!("nvidia");
        privileged["metadata"] = json!({"annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=0"}});
        for (pod, expected) in [
            (in_container("image", json!("i")), false),
            (limits("nvidia.com/gpu"), true),
            (limits("nvidia.com/mig-1g.5gb"), true),
            (limits("amd.com/gpu"), false),
            (
                in_container("resources", json!({"requests": {"nvidia.com/gpu": "1"}})),
                true,
            ),
            (in_container("env", env), true),
            (in_container("volumeMounts", mount), true),
            (class("nvidia"), true),
            (class("kata"), false),
            (annotated("aliquot.dev/request", ""), true),
            (annotated("cdi.k8s.io/a", "nvidia.com/gpu=0"), true),
            (annotated("cdi.k8s.io/a", "vendor.com/nic=0"), false),
            (privileged, false),
        ] {
            let object: Pod = serde_json::from_value(pod.clone()).unwrap();
            let found = mentions_gpu(&object, &["nvidia.com/gpu"]);
            assert_eq!(found, expected, "{pod}");
        }
    }
}

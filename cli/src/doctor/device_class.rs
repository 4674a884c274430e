//! The `DeviceClasses` of dynamic resource allocation (DRA) that stand for an extended resource.

use std::collections::BTreeMap;

use aliquot_core::request::{Resource, is_other};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;

use super::facts::Fact;
use super::finding::{Checked, ok, problem};
use crate::snapshot;

/// No class stands for a resource of Aliquot: where kube-scheduler allocates it by DRA, the kubelet
/// allocates no device id, and still asks the device plugin to prepare the container.
pub(crate) fn check(classes: &Fact<BTreeMap<String, String>>, pods: &[Pod]) -> Checked {
    let pod::Settings { names, extra, .. } = snapshot::settings(pods);
    let is_ours = |resource: &str| {
        Resource::ALL.iter().any(|one| names.of(*one) == resource) || is_other(resource, &extra)
    };
    let taken: Vec<String> = classes
        .as_ref()?
        .iter()
        .filter(|(_, resource)| is_ours(resource))
        .map(|(class, resource)| format!("DeviceClass {class} has extendedResourceName {resource}"))
        .collect();
    if taken.is_empty() {
        return ok("no DeviceClass stands for a resource of Aliquot");
    }
    problem(
        format!(
            "{}, which Aliquot's device plugin serves: kube-scheduler finds no node for pods with a share (\"cannot fit resource\"), and containers for which it chooses the class do not start (\"no devices found allocated\")",
            taken.join(", ")
        ),
        "remove spec.extendedResourceName from the class, or delete the class; pods can still use DRA by resource claims",
    )
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use serde_json::json;

    use super::super::cluster_tests::{healthy, part};
    use super::super::finding::Grade;
    use super::super::gather::extended_resources;
    use super::*;
    use crate::components::is_ours;

    #[test]
    fn reports_device_class_for_resource_of_aliquot() {
        let checks = |resource: Option<&str>, grade: Grade| {
            let mut spec = json!({"selectors": []});
            if let Some(resource) = resource {
                spec["extendedResourceName"] = json!(resource);
            }
            let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
                "metadata": {"name": "gpus"}, "spec": spec});
            let class: DynamicObject = serde_json::from_value(class).unwrap();
            let mut known = healthy();
            let pods = known.pods.as_mut().unwrap();
            pods.retain(|pod| !is_ours(pod, "scheduler"));
            let flags = ["--resource-name=a/gpu", "--extra-resources=a/one,a/two"];
            pods.push(part("s-0", "scheduler", &flags));
            known.device_classes = Ok(extended_resources(vec![class]));
            let pods = known.pods.as_deref().unwrap();
            let found = check(&known.device_classes, pods).unwrap();
            assert_eq!(found.grade, grade, "{found:?}");
            if let Some(resource) = resource.filter(|_| grade == Grade::Problem) {
                let named = format!("DeviceClass gpus has extendedResourceName {resource}");
                assert!(found.found.contains(&named), "{found:?}");
            }
        };
        checks(None, Grade::Ok);
        checks(Some("nvidia.com/gpu"), Grade::Ok);
        checks(Some("a/gpu"), Grade::Problem);
        checks(Some("nvidia.com/gpumem"), Grade::Problem);
        checks(Some("a/two"), Grade::Problem);
        checks(Some("nvidia.com/mig-1g.5gb"), Grade::Problem);
    }
}

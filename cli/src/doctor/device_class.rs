//! The `DeviceClasses` of dynamic resource allocation (DRA) that stand for an extended resource.

use std::collections::BTreeMap;

use aliquot_core::request::{Resource, is_other};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;

use super::facts::Fact;
use super::finding::{About, Finding};
use crate::snapshot;

/// No class stands for a resource of Aliquot: where kube-scheduler allocates it by DRA, the kubelet
/// allocates no device id, and still asks the device plugin to prepare the container.
pub(crate) fn checks(
    classes: &Fact<BTreeMap<String, String>>,
    pods: &[Pod],
    about: &About,
) -> Vec<Finding> {
    let check = "device-classes";
    let classes = match classes {
        Err(why) => return vec![about.unknown(check, why)],
        Ok(classes) => classes,
    };
    let pod::Settings { names, extra, .. } = snapshot::settings(pods);
    let is_ours = |resource: &str| {
        Resource::ALL.iter().any(|one| names.of(*one) == resource) || is_other(resource, &extra)
    };
    let ours = classes.iter().filter(|(_, resource)| is_ours(resource));
    let taken = ours.map(|(class, resource)| {
        about.problem(
            check,
            format!("DeviceClass {class} has extendedResourceName {resource}, which Aliquot's device plugin serves: kube-scheduler finds no node for pods with a share (\"cannot fit resource\"), and containers for which it chooses the class do not start (\"no devices found allocated\")"),
            "remove spec.extendedResourceName from the class, or delete the class; pods can still use DRA by resource claims",
        )
    });
    let mut found: Vec<Finding> = taken.collect();
    if found.is_empty() {
        found.push(about.ok(check, "no DeviceClass stands for a resource of Aliquot"));
    }
    found
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
        let check = |resource: Option<&str>, grade: Grade| {
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
            let found = checks(&known.device_classes, pods, &About::cluster());
            let [found] = found.as_slice() else {
                panic!("{resource:?}: {found:?}");
            };
            assert_eq!(found.grade, grade, "{found:?}");
            if let Some(resource) = resource.filter(|_| grade == Grade::Problem) {
                let named = format!("DeviceClass gpus has extendedResourceName {resource}");
                assert!(found.found.contains(&named), "{found:?}");
            }
        };
        check(None, Grade::Ok);
        check(Some("nvidia.com/gpu"), Grade::Ok);
        check(Some("a/gpu"), Grade::Problem);
        check(Some("nvidia.com/gpumem"), Grade::Problem);
        check(Some("a/two"), Grade::Problem);
        check(Some("nvidia.com/mig-1g.5gb"), Grade::Problem);
    }
}

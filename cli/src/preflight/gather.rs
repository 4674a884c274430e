//! The workloads of a cluster: controllers with their pod templates, and pods without one. A workload
//! is listed once, not once for each of its pods.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobCondition};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;

use crate::access::{AccessError, all, all_pods};
use crate::output::with_causes;

#[derive(Clone, Debug)]
pub struct Workload {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    /// Whether it has a pod template, or is a pod without one.
    pub template: bool,
    /// Whether it is a pod.
    pub runs: bool,
    /// The pod template, or the pod.
    pub pod: Pod,
}

/// Kinds whose pods are covered by their templates, with their groups: Volcano has Jobs of its own.
const OWNERS: [(&str, &str); 5] = [
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("apps", "DaemonSet"),
    ("batch", "Job"),
    ("batch", "CronJob"),
];
/// The label of a Deployment's pods. Other `ReplicaSets`, such as those of Argo Rollouts, have templates that are not
/// listed.
const OF_DEPLOYMENT: &str = "pod-template-hash";

/// What could not be listed, and why.
pub(super) type Missing = Vec<(&'static str, String)>;

/// All workloads, and what could not be listed. An error where pods cannot be listed.
pub(super) async fn workloads(client: &Client) -> Result<(Vec<Workload>, Missing), AccessError> {
    let mut found = Vec::new();
    let mut missing = Missing::new();
    macro_rules! templates {
        ($kind:ty, $name:literal, $what:literal, |$spec:ident| $template:expr) => {
            match all::<$kind>(client, $what).await {
                Ok(list) => found.extend(list.into_iter().filter_map(|object| {
                    if is_made_by_another(&object.metadata) {
                        return None;
                    }
                    let $spec = object.spec?;
                    Some(workload($name, &object.metadata, $template))
                })),
                Err(error) => missing.push(($what, with_causes(&error))),
            }
        };
    }
    templates!(Deployment, "Deployment", "deployments", |spec| spec
        .template);
    templates!(StatefulSet, "StatefulSet", "statefulsets", |spec| spec
        .template);
    templates!(DaemonSet, "DaemonSet", "daemonsets", |spec| spec.template);
    match all::<Job>(client, "jobs").await {
        Ok(jobs) => found.extend(jobs.into_iter().filter_map(job)),
        Err(error) => missing.push(("jobs", with_causes(&error))),
    }
    templates!(CronJob, "CronJob", "cronjobs", |spec| spec
        .job_template
        .spec?
        .template);
    for pod in all_pods(client).await? {
        if aliquot_k8s::pod::is_finished(&pod) {
            continue;
        }
        let alone = !is_made_by_another(&pod.metadata);
        found.push(Workload {
            kind: if alone { "Pod" } else { "Pod of a template" },
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            template: alone,
            runs: true,
            pod,
        });
    }
    Ok((found, missing))
}

/// Whether a controller of [`OWNERS`] made the object.
fn is_made_by_another(meta: &ObjectMeta) -> bool {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let Some(by) = owners.iter().find(|owner| owner.controller == Some(true)) else {
        return false;
    };
    let (group, kind) = (by.api_version.split('/').next(), by.kind.as_str());
    let labels = meta.labels.as_ref();
    let is_of_deployment = || labels.is_some_and(|labels| labels.contains_key(OF_DEPLOYMENT));
    OWNERS.contains(&(group.unwrap_or_default(), kind))
        && (kind != "ReplicaSet" || is_of_deployment())
}

/// A Job that has not finished; a finished one makes no more pods.
fn job(job: Job) -> Option<Workload> {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let over = |one: &JobCondition| {
        ["Complete", "Failed"].contains(&one.type_.as_str()) && one.status == "True"
    };
    if is_made_by_another(&job.metadata) || conditions.into_iter().flatten().any(over) {
        return None;
    }
    Some(workload("Job", &job.metadata, job.spec?.template))
}

fn workload(kind: &'static str, meta: &ObjectMeta, template: PodTemplateSpec) -> Workload {
    Workload {
        kind,
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        template: true,
        runs: false,
        pod: Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ignores_finished_jobs() {
        let check = |conditions: &[(&str, &str)], expected: bool| {
            let conditions = conditions.iter();
            let conditions: Vec<_> = conditions
                .map(|(kind, status)| json!({"type": kind, "status": status}))
                .collect();
            let object = json!({"metadata": {"name": "j"}, "status": {"conditions": conditions},
                "spec": {"template": {"spec": {"containers": []}}}});
            let found = job(serde_json::from_value(object).unwrap());
            assert_eq!(found.is_some(), expected, "{conditions:?}");
        };
        check(&[], true);
        check(&[("Suspended", "True"), ("Failed", "False")], true);
        check(&[("Complete", "True")], false);
        check(&[("Failed", "True")], false);
    }

    #[test]
    fn pods_without_a_listed_template_are_judged_themselves() {
        let check = |version: &str, kind: &str, label: &str, expected: bool| {
            let owner = json!({"apiVersion": version, "kind": kind, "name": "o", "uid": "u",
                "controller": true});
            let object = json!({"labels": {label: "5d8f"}, "ownerReferences": [owner]});
            let meta = serde_json::from_value(object).unwrap();
            assert_eq!(is_made_by_another(&meta), expected, "{version} {kind}");
        };
        check("batch/v1", "Job", "a", true);
        check("batch.volcano.sh/v1alpha1", "Job", "a", false);
        check("apps/v1", "StatefulSet", "a", true);
        check("apps.kruise.io/v1beta1", "StatefulSet", "a", false);
        check("apps/v1", "ReplicaSet", "pod-template-hash", true);
        check("apps/v1", "ReplicaSet", "rollouts-pod-template-hash", false);
    }
}

//! The workloads of a cluster: templates of controllers, and pods that none of these made.
//!
//! Fed by: the API server. Must not: name a workload once for each of its pods.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;

use super::rules::Workload;
use crate::live::{LiveError, all};

/// Kinds whose pods are known by their templates.
const OWNERS: [&str; 5] = ["ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"];

/// What could not be listed, and why.
type Missing = Vec<(&'static str, String)>;

/// All workloads, and what could not be listed. An error where not even pods can be.
pub(super) async fn workloads(
    client: &Client,
    namespace: Option<&str>,
) -> Result<(Vec<Workload>, Missing), LiveError> {
    let mut found = Vec::new();
    let mut missing = Missing::new();
    macro_rules! templates {
        ($kind:ty, $name:literal, $what:literal, $template:expr) => {
            match all::<$kind>(client, $what).await {
                Ok(list) => found.extend(list.into_iter().filter_map(|object| {
                    // What another of these made is known by that.
                    if owner(&object.metadata).is_some_and(|by| OWNERS.contains(&by.kind.as_str()))
                    {
                        return None;
                    }
                    let template: Option<PodTemplateSpec> = $template(object.spec);
                    Some(workload($name, &object.metadata, template?))
                })),
                Err(error) => missing.push(($what, error.to_string())),
            }
        };
    }
    templates!(Deployment, "Deployment", "deployments", |spec: Option<
        k8s_openapi::api::apps::v1::DeploymentSpec,
    >| spec
        .map(|spec| spec.template));
    templates!(
        StatefulSet,
        "StatefulSet",
        "statefulsets",
        |spec: Option<k8s_openapi::api::apps::v1::StatefulSetSpec>| spec.map(|spec| spec.template)
    );
    templates!(DaemonSet, "DaemonSet", "daemonsets", |spec: Option<
        k8s_openapi::api::apps::v1::DaemonSetSpec,
    >| spec
        .map(|spec| spec.template));
    templates!(Job, "Job", "jobs", |spec: Option<
        k8s_openapi::api::batch::v1::JobSpec,
    >| spec.map(|spec| spec.template));
    templates!(CronJob, "CronJob", "cronjobs", |spec: Option<
        k8s_openapi::api::batch::v1::CronJobSpec,
    >| spec
        .and_then(|spec| spec.job_template.spec)
        .map(|spec| spec.template));
    for pod in all::<Pod>(client, "pods").await? {
        if aliquot_k8s::pod::ended(&pod) {
            continue;
        }
        let known = owner(&pod.metadata).is_some_and(|by| OWNERS.contains(&by.kind.as_str()));
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        found.push(Workload {
            kind: if known { "Pod of a template" } else { "Pod" },
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
            template: !known,
            runs: true,
            pod,
        });
    }
    found.retain(|one| namespace.is_none_or(|wanted| one.namespace == wanted));
    Ok((found, missing))
}

fn owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

fn workload(kind: &'static str, meta: &ObjectMeta, template: PodTemplateSpec) -> Workload {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Workload {
        kind,
        namespace: text(&meta.namespace),
        name: text(&meta.name),
        template: true,
        runs: false,
        pod: Pod {
            metadata: template.metadata.unwrap_or_default(),
            spec: template.spec,
            status: None,
        },
    }
}

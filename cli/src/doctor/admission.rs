//! Checks of admission: what happens to a pod when it is created.

use std::collections::BTreeMap;

use aliquot_core::request::{DEFAULTED, Resource};
use aliquot_core::request_annotation::REQUEST;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt as _;

use super::facts::{ClusterFacts, DryRun};
use super::finding::{About, Checked, Finding, ok, problem, warning};
use super::refused_writes;
use super::scheduler::replicas;
use crate::components::{containers, running_pods};
use crate::metrics::{self, Sample};

/// The container of the dry-run pod.
pub(super) const TRIAL: &str = "trial";
/// How the names of Aliquot's webhooks end.
const OURS: &str = "pods.aliquot.dev";
/// The metric of the chart's policies and bindings, by object.
const POLICY_CHANGED: &str = "aliquot_scheduler_admission_policy_changed";

pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Vec<Finding> {
    let mut found = if facts.pods.as_deref().is_ok_and(is_off) {
        about.each([("webhook", off(facts))])
    } else {
        let none = "no GPU pod can be created until one is ready: read their logs";
        let single =
            "set webhook.replicas=2: with one replica, GPU pods are rejected while it restarts";
        let replicas = replicas(facts, "webhook", none, Some(single));
        about.each([
            ("webhook", webhook(facts)),
            ("webhook-pods", replicas),
            ("webhook-answers", dry_run(facts)),
        ])
    };
    found.push(about.finding("admission-policies", policies(facts)));
    let refused = refused_writes::checks(facts).into_iter();
    found.extend(refused.map(|checked| about.finding("refused-writes", checked)));
    found.push(about.finding("quotas", quotas(facts)));
    found
}

/// The annotation that the chart gives the scheduler pods when its values disable the webhook.
const OFF: (&str, &str) = ("aliquot.dev/admission-webhook", "off");

/// Whether the chart's values disable the webhook.
pub(super) fn is_off(pods: &[Pod]) -> bool {
    running_pods(pods, "scheduler").any(|pod| {
        let all = pod.metadata.annotations.as_ref();
        all.and_then(|all| all.get(OFF.0))
            .is_some_and(|value| value == OFF.1)
    })
}

/// The webhook is disabled: what is then not done.
pub(super) fn off(facts: &ClusterFacts) -> Checked {
    if matches!(facts.webhook, Ok(Some(_))) {
        return problem(
            "the chart's values disable the webhook, but MutatingWebhookConfiguration aliquot-webhook still exists: the API server calls the webhook for each GPU pod and rejects the pod",
            "kubectl delete mutatingwebhookconfiguration aliquot-webhook",
        );
    }
    let name = facts.settings().scheduler_name;
    warning(
        format!(
            "the chart's values disable the webhook: GPU pods do not get schedulerName {name} and default requests, invalid requests and ways around a share (privileged containers, host paths, spec.nodeName) are not rejected, and NVIDIA_VISIBLE_DEVICES is not removed from pods without a share"
        ),
        format!(
            "set scheduler.admissionWebhook.enabled=true; without the webhook, trust everyone who may create pods, and have them write schedulerName: {name} and all resources themselves"
        ),
    )
}

/// The webhook's configuration is as the chart wrote it.
fn webhook(facts: &ClusterFacts) -> Checked {
    let Some(hook) = facts.webhook.as_ref()? else {
        // The scheduler's pods say whether the chart's values disable it.
        facts.pods.as_ref()?;
        return problem(
            "there is no MutatingWebhookConfiguration aliquot-webhook: GPU pods go to the default scheduler unchanged",
            "the chart creates it: run helm upgrade",
        );
    };
    let is_open = |one: &MutatingWebhook| {
        one.failure_policy.as_deref() == Some("Ignore") && one.name.ends_with(OURS)
    };
    if hook.webhooks.iter().flatten().any(is_open) {
        return warning(
            "failurePolicy of pods.aliquot.dev is Ignore, expected Fail: GPU pods are admitted unchanged while the webhook is down",
            "someone changed it: run helm upgrade",
        );
    }
    ok("MutatingWebhookConfiguration aliquot-webhook exists")
}

fn named(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.scheduler_name.as_deref());
    name.unwrap_or_default()
}

/// A pod that requests a GPU is changed by the webhook, and by nobody after it.
fn dry_run(facts: &ClusterFacts) -> Checked {
    let expected = facts.settings().scheduler_name;
    let pod = match facts.dry_run.as_ref()? {
        DryRun::Admitted(pod) => pod,
        DryRun::NoAnswer(message) => {
            let todo = if message.contains(OURS) {
                "make the Service aliquot-webhook reachable for the API server: check its endpoints, network policies, and port 8443 from the control plane"
            } else {
                "the named webhook is not Aliquot's: make it answer, or remove its configuration"
            };
            let what = format!("the API server rejects a GPU pod: {message}");
            return problem(what, todo);
        }
    };
    facts.pods.as_ref()?;
    let scheduler = named(pod);
    let reviewed = [REQUEST, DEFAULTED].map(|key| pod.annotations().contains_key(key));
    if scheduler == expected || reviewed.contains(&true) {
        return changes(pod, &expected, facts);
    }
    match unreviewed(facts) {
        Some(why) => Err(why),
        None => problem(
            format!(
                "a GPU pod in namespace {} keeps schedulerName {scheduler}, expected {expected}: it never gets a share",
                facts.trial_namespace
            ),
            "remove the label aliquot.dev/webhook: ignore or hami.io/webhook: ignore from the namespace, or add the scheduler to webhook.replaceSchedulers",
        ),
    }
}

/// How a pod that the webhook has reviewed differs from what the webhook left.
fn changes(pod: &Pod, expected: &str, facts: &ClusterFacts) -> Checked {
    let scheduler = named(pod);
    let mut changes = Vec::new();
    if scheduler != expected {
        changes.push(format!("schedulerName is {scheduler}, expected {expected}"));
    }
    let before = containers(pod).take_while(|container| container.name != TRIAL);
    let inserted = before.map(|one| format!("container {} stands before its own", one.name));
    changes.extend(inserted);
    let resources = containers(pod).filter_map(|container| container.resources.as_ref());
    let lists = resources.flat_map(|all| [&all.limits, &all.requests]);
    let keys: Vec<&str> = lists
        .flatten()
        .flat_map(BTreeMap::keys)
        .map(String::as_str)
        .collect();
    let known = facts.settings().names;
    for resource in [
        Resource::Memory,
        Resource::MemoryPercentage,
        Resource::Cores,
    ] {
        let key = known.of(resource);
        if pod.annotations().contains_key(REQUEST) && keys.contains(&key) {
            changes.push(format!("resources have {key} beside annotation {REQUEST}"));
        }
    }
    if changes.is_empty() {
        return ok(format!("a GPU pod gets schedulerName {scheduler}"));
    }
    let changes = changes.join("; ");
    let what = format!("something changes a GPU pod after the webhook: {changes}");
    let todo = format!(
        "exempt pods whose schedulerName is {expected} (by a matchCondition, an exclude or a precondition) from {}",
        refused_writes::listed(&facts.mutators)
    );
    if scheduler == expected {
        warning(what, todo)
    } else {
        problem(what, todo)
    }
}

/// Why the webhook does not review the pods that the doctor creates, where the chart excludes their namespace.
pub(super) fn unreviewed(facts: &ClusterFacts) -> Option<String> {
    let own = &facts.namespace;
    (facts.trial_namespace == *own).then(|| {
        format!("the webhook reviews no pod of Aliquot's own namespace {own}; --namespace chooses another one")
    })
}

/// Only Aliquot can write allocations and inventories, its accounts nothing else, and no pod bypasses
/// the webhook: the scheduler compares the policies with those that the chart wrote.
pub(super) fn policies(facts: &ClusterFacts) -> Checked {
    let all: Vec<Sample<'_>> = metrics::samples(facts.metrics.as_ref()?)
        .filter(|one| one.name == POLICY_CHANGED)
        .collect();
    if all.is_empty() {
        return warning(
            "the scheduler knows no ValidatingAdmissionPolicies of the chart: whoever may write pods or nodes may write allocations or inventories, or bypass the webhook, and a stolen token of Aliquot's may write more than its part does",
            "set admissionPolicies.enabled=true; if it is, the scheduler's log says why it cannot compare them",
        );
    }
    let changed: Vec<String> = all
        .iter()
        .filter(|one| one.value != "0")
        .filter_map(|one| one.label("object"))
        .collect();
    if changed.is_empty() {
        return ok(
            "the policies are as the chart wrote them: only Aliquot can write allocations and inventories, its accounts nothing else, and no pod bypasses the webhook",
        );
    }
    problem(
        format!(
            "missing, not as the chart wrote it, or not comparable for five minutes: {}: what it would refuse may be accepted",
            changed.join(", ")
        ),
        "someone deleted or changed it: run helm upgrade; if it is there, the scheduler's log says why it cannot be compared",
    )
}

/// No quota limits the count of GPUs under `limits.`, where nobody counts it.
fn quotas(facts: &ClusterFacts) -> Checked {
    facts.pods.as_ref()?;
    let names = facts.settings().names;
    let gpu = names.of(Resource::Gpu);
    let key = format!("limits.{gpu}");
    let limits = |quota: &&ResourceQuota| {
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        hard.is_some_and(|hard| hard.contains_key(&key))
    };
    let full_name = |quota: &ResourceQuota| {
        let namespace = quota.namespace().unwrap_or_default();
        format!("{namespace}/{}", quota.name_any())
    };
    let quotas = facts.quotas.as_ref()?.iter();
    let names: Vec<String> = quotas.filter(limits).map(full_name).collect();
    if names.is_empty() {
        return ok(format!("no ResourceQuota has {key}"));
    }
    let found = names.join(", ");
    warning(
        format!("ResourceQuota {found} has {key}, which nobody counts"),
        format!("write requests.{gpu} (docs/guides/quotas.md)"),
    )
}

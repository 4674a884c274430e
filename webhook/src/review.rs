//! The decision about one review: refuse with every error found, or patch and warn.
//!
//! A review is a pure function of the raw JSON that the API server sent. The patch names only the
//! fields that the webhook owns, so fields of later Kubernetes releases survive. A pod passes the
//! steps `request`, `environment`, `isolation` and `defaults` in this order, each once.

mod defaults;
mod environment;
mod isolation;
mod request;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use kube::core::admission::Operation;
use serde_json::Value;

use crate::pod::{self, Container, Kind};
use crate::settings::Settings;
use crate::verdict::{Findings, Verdict};
use environment::PodContext;

/// The part of an admission request that a review reads.
#[derive(Clone, Copy, Debug)]
pub struct PodReview<'a> {
    pub operation: &'a Operation,
    /// Empty, `ephemeralcontainers` or `resize`.
    pub sub_resource: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    pub pod: &'a Value,
    /// The pod before an update; null at creation.
    pub old_pod: &'a Value,
}

/// Decides about one pod. Pure and idempotent: the patched pod gets no further patch.
pub fn review(review: &PodReview<'_>, settings: &Settings) -> Verdict {
    let mut findings = Findings::new(review.pod);
    match (review.operation, review.sub_resource) {
        (Operation::Create, "") => new_pod(review, settings, &mut findings),
        (Operation::Update, "ephemeralcontainers") => {
            new_ephemeral_containers(review, settings, &mut findings);
        }
        (Operation::Update, "resize") => {
            let resized = request::resized(review, settings);
            findings.refusals.extend(resized);
        }
        _ => {}
    }
    findings.verdict(review.pod)
}

fn new_pod(review: &PodReview<'_>, settings: &Settings, findings: &mut Findings) {
    let PodReview { namespace, pod, .. } = *review;
    request::remove_reserved(findings);
    if pod::is_mirror(pod) {
        return;
    }
    let containers = pod::containers(pod);
    if !request::is_ours(pod, settings) {
        new_pod_of_other_scheduler(review, &containers, settings, findings);
        return;
    }
    let request = request::read(pod, &containers, settings, findings);
    let context = PodContext::new(pod, namespace, settings, !request.devices.is_empty());
    environment::check(&containers, &request, &context, findings);
    if request.is_empty() {
        return;
    }
    let invalid = request::invalid_preferences(findings.editor.pod(), &request, settings);
    findings.refusals.extend(invalid);
    isolation::check(pod, namespace, &containers, &request, settings, findings);
    defaults::fill(&request, settings, findings);
    request::warn_of_ended_share(&containers, &request, findings);
}

/// A pod whose `schedulerName` the settings do not name: another scheduler places it and another
/// plugin may give it GPUs, so nothing is filled in or pinned. Anybody can write such a name, and
/// with `nodeName` beside it no scheduler sees the pod: neither its environment nor its node may
/// bypass the scheduler.
fn new_pod_of_other_scheduler(
    review: &PodReview<'_>,
    containers: &[Container<'_>],
    settings: &Settings,
    findings: &mut Findings,
) {
    let asks = request::any_asks(review.pod, containers, settings);
    let context = PodContext::new(review.pod, review.namespace, settings, false);
    environment::check_of_other_scheduler(containers, &context, findings);
    if asks {
        isolation::check_of_other_scheduler(review.pod, settings, findings);
    }
}

/// Ephemeral containers that this update adds to a running pod: no resources of ours, no GPUs by
/// way of the environment, no escape. Those that were there before are not reviewed again.
fn new_ephemeral_containers(review: &PodReview<'_>, settings: &Settings, findings: &mut Findings) {
    let ours = request::is_ours(review.pod, settings);
    let all = pod::containers(review.pod);
    let requests_share = ours && request::any_asks(review.pod, &all, settings);
    let context = PodContext::new(review.pod, review.namespace, settings, requests_share);
    let old = pod::items(&review.old_pod["spec"][Kind::Ephemeral.list()]).iter();
    let before: BTreeSet<&str> = old.filter_map(|one| one["name"].as_str()).collect();
    let is_new = |container: &Container<'_>| {
        container.kind == Kind::Ephemeral && !before.contains(container.name())
    };
    let added: Vec<Container<'_>> = all.into_iter().filter(is_new).collect();
    let is_limited = requests_share && !settings.escape_allowed.contains(review.namespace);
    for container in &added {
        if ours {
            findings
                .refusals
                .extend(request::in_ephemeral(container, settings));
        }
        environment::check_ephemeral(container, &context, findings);
        if is_limited {
            findings
                .refusals
                .extend(isolation::security_context(container));
        }
    }
    if is_limited {
        let written = isolation::written_host_paths(review.pod, &added, settings);
        findings.refusals.extend(written);
    }
}

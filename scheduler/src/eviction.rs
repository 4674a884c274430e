//! One call of the Eviction API, and what its answer means.
//!
//! Fed by: [`crate::evict`] and [`crate::preempt`]. The body is written here:
//! kube's own sends the uid precondition under a name that no API server reads.
//! Must not: try twice; who calls knows whether it still should.

use std::time::Duration;

use aliquot_k8s::event::PodRef;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::timeout;

/// Longest wait for one answer.
const DEADLINE: Duration = Duration::from_secs(3);

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// It ends (or would, if it was only tried).
    Ends,
    /// There is no such pod of this uid.
    Gone,
    /// A disruption budget does not allow it now.
    Protected(String),
    /// Refused, or not known to have been done.
    Failed(String),
}

/// Asks that the pod ends; with `dry_run`, whether it would be allowed.
pub async fn evict(client: &Client, pod: &PodRef, dry_run: bool) -> Evicted {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let mut options = json!({"preconditions": {"uid": pod.uid}});
    if dry_run {
        options["dryRun"] = json!(["All"]);
    }
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    });
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    let call = api.create_subresource::<_, IgnoredAny>("eviction", &pod.name, &params, &eviction);
    match timeout(DEADLINE, call).await {
        Ok(Ok(_)) => Evicted::Ends,
        Ok(Err(kube::Error::Api(status))) => match status.code {
            404 | 409 => Evicted::Gone,
            429 => Evicted::Protected(status.message),
            _ => Evicted::Failed(status.message),
        },
        Ok(Err(error)) => Evicted::Failed(error.to_string()),
        Err(elapsed) => Evicted::Failed(elapsed.to_string()),
    }
}

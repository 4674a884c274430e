//! Evicts pods that their node refused to start, because they bypassed the scheduler or a late
//! Binding of an old leader overcommitted the device, and pods on unhealthy GPUs, where the node's
//! owner wants that. The nodes' inventories list both.
//!
//! Never evicts a mirror pod (the kubelet owns it), a pod of another uid, or a pod that is not on
//! the node whose agent lists it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aliquot_core::inventory::RefusedPod;
use aliquot_core::{NodeName, PodUid};
use aliquot_k8s::disruption::MIRROR;
use aliquot_k8s::event::{EventNote, EventSender, PodRef};
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::bind::Binder;
use crate::fail_point::{self, Point};
use crate::leader::Leader;
use crate::ledger_cache::LedgerCache;

/// Interval of checking the lists.
const INTERVAL: Duration = Duration::from_secs(2);

/// Why a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Refused,
    UnhealthyGpu,
}

impl Cause {
    /// Reason and beginning of the text of the event.
    fn event(self) -> (&'static str, &'static str) {
        match self {
            Self::Refused => (
                "EvictedRefused",
                "Evicted because its node refused to start it",
            ),
            Self::UnhealthyGpu => (
                "EvictedFromGpu",
                "Evicted because its GPU is out of service or changes its sharing mode",
            ),
        }
    }
}

/// Runs until `stop`. A pod is evicted after it was refused for `after`, and at once if it must
/// leave an unhealthy GPU.
pub async fn run(
    cache: Arc<LedgerCache>,
    binder: Arc<Binder>,
    client: Client,
    events: EventSender,
    leader: Leader,
    after: Duration,
    stop: CancellationToken,
) {
    let mut since = HashMap::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        if leader.not_leading_reason().is_some() {
            continue;
        }
        let refused = due(&mut since, cache.refused_by_nodes(), Instant::now(), after);
        let unhealthy = cache.evicted_by_nodes().into_iter();
        let unhealthy = unhealthy.map(|(node, pod)| (Cause::UnhealthyGpu, node, pod));
        let all = refused
            .into_iter()
            .map(|(node, pod)| (Cause::Refused, node, pod));
        for (cause, node, listed) in all.chain(unhealthy) {
            if let Err(error) = evict(&client, &binder, &events, cause, &node, &listed).await {
                tracing::warn!(pod = listed.name, ?cause, error, "cannot evict pod");
            }
        }
    }
}

/// The refused pods that are due; removes those that are no longer refused from `since`.
fn due(
    since: &mut HashMap<PodUid, Instant>,
    refused: Vec<(NodeName, RefusedPod)>,
    now: Instant,
    after: Duration,
) -> Vec<(NodeName, RefusedPod)> {
    since.retain(|uid, _| refused.iter().any(|(_, r)| r.pod == *uid));
    let mut due = refused;
    due.retain(|(_, r)| now - *since.entry(r.pod.clone()).or_insert(now) >= after);
    due
}

async fn evict(
    client: &Client,
    binder: &Binder,
    events: &EventSender,
    cause: Cause,
    node: &NodeName,
    listed: &RefusedPod,
) -> Result<(), String> {
    let pod = PodRef {
        namespace: listed.namespace.clone(),
        name: listed.name.clone(),
        uid: listed.pod.to_string(),
    };
    let Some(found) = binder.get(&pod).await? else {
        return Ok(());
    };
    if pod::annotation(&found, MIRROR).is_some() || found.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    if pod::node(&found).as_ref() != Some(node) {
        return Err(format!(
            "node {node} lists the pod for eviction, but the pod is not on that node"
        ));
    }
    fail_point::at(Point::EvictBefore);
    match request_eviction(client, &pod, false).await {
        EvictionOutcome::Accepted => {}
        EvictionOutcome::Gone => return Ok(()),
        EvictionOutcome::Protected(why) | EvictionOutcome::Failed(why) => return Err(why),
    }
    fail_point::at(Point::EvictAfter);
    tracing::info!(
        pod = pod.name,
        namespace = pod.namespace,
        ?cause,
        "pod evicted"
    );
    let (reason, text) = cause.event();
    events.send(EventNote {
        pod,
        warning: true,
        reason,
        action: "Evicting",
        text: format!("{text}: {}", listed.reason),
    });
    Ok(())
}

/// Deadline of one call.
const DEADLINE: Duration = Duration::from_secs(3);

/// The outcome of an eviction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionOutcome {
    /// The pod is being terminated (or would be, in a dry run).
    Accepted,
    /// There is no such pod of this uid.
    Gone,
    /// A disruption budget forbids it now.
    Protected(String),
    /// Refused, or the outcome is unknown.
    Failed(String),
}

/// Calls the Eviction API once; with `dry_run`, asks whether the eviction would be allowed. The
/// body is our own: kube's sends the uid precondition under a name that no API server reads.
pub async fn request_eviction(client: &Client, pod: &PodRef, dry_run: bool) -> EvictionOutcome {
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
        Ok(Ok(_)) => EvictionOutcome::Accepted,
        Ok(Err(kube::Error::Api(status))) => match status.code {
            404 | 409 => EvictionOutcome::Gone,
            429 => EvictionOutcome::Protected(status.message),
            _ => EvictionOutcome::Failed(status.message),
        },
        Ok(Err(error)) => EvictionOutcome::Failed(error.to_string()),
        Err(elapsed) => EvictionOutcome::Failed(elapsed.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_pods_refused_without_interruption() {
        let refused = |uid: &str| {
            let refused = RefusedPod {
                pod: uid.into(),
                namespace: "d".to_owned(),
                name: uid.to_owned(),
                reason: "r".to_owned(),
            };
            (NodeName::from("n"), refused)
        };
        let mut since = HashMap::new();
        let start = Instant::now();
        let mut check = |second: u64, refused: &[(NodeName, RefusedPod)], expected: usize| {
            let now = start + Duration::from_secs(second);
            let after = Duration::from_secs(30);
            assert_eq!(
                due(&mut since, refused.to_vec(), now, after).len(),
                expected
            );
        };
        check(0, &[refused("a")], 0);
        check(29, &[refused("a"), refused("b")], 0);
        check(30, &[refused("a"), refused("b")], 1);
        check(40, &[refused("b")], 0);
        check(60, &[refused("a"), refused("b")], 1);
    }
}

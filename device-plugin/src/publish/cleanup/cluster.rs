//! `aliquot-device-plugin cleanup`: asks the agents of all nodes to clean up, and waits until they
//! have. The chart runs it before it is removed. It writes only the request, and withdraws it where
//! no agent answered.

use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::inventory::INVENTORY;
use clap::Parser;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::{CLEANUP_UNTIL, is_requested};

/// For each request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Between two lists of the nodes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Requests at the same time: a cluster has thousands of nodes.
const AT_ONCE: usize = 32;

/// Asks the agents of all nodes to remove Aliquot's files and annotations; run it before the chart
/// is removed
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-device-plugin cleanup", version, about)]
pub struct Settings {
    /// Kubeconfig of the API server; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Seconds to wait for all nodes
    #[arg(long, env = "ALIQUOT_CLEANUP_WITHIN", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub within: u32,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_device_plugin=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

#[derive(Debug, Error)]
pub enum CleanupError {
    #[error("cannot {verb} nodes: {source}")]
    Call {
        verb: &'static str,
        source: kube::Error,
    },
    #[error("cannot {0} nodes: no answer within {DEADLINE:?}")]
    Timeout(&'static str),
}

/// How far a node is that its agent has not cleaned up.
#[derive(Debug, PartialEq, Eq)]
enum NodeState {
    /// Its agent was not asked yet.
    NotRequested,
    /// Its agent was asked.
    Requested,
    /// An earlier run asked it, and ended before it could withdraw that; the agent ignores it now.
    Expired,
}

/// `None`: the agent has cleaned up, or never ran there.
fn node_state(node: &PartialObjectMeta<Node>, now: Timestamp) -> Option<NodeState> {
    let annotations = node.annotations();
    match annotations.get(CLEANUP_UNTIL) {
        Some(until) if is_requested(Some(until), now) => Some(NodeState::Requested),
        Some(_) => Some(NodeState::Expired),
        None => annotations
            .contains_key(INVENTORY)
            .then_some(NodeState::NotRequested),
    }
}

/// Asks all agents. Returns the names of the nodes that were not cleaned up in time.
pub async fn run(client: Client, within: Duration) -> Result<Vec<String>, CleanupError> {
    let nodes: Api<Node> = Api::all(client);
    let end = Instant::now() + within;
    let until = Timestamp::now() + SignedDuration::try_from(within).unwrap_or(SignedDuration::MAX);
    let (request, none) = (json!(until.to_string()), Value::Null);
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        polls.tick().await;
        // No more than names and annotations: a cluster has thousands of nodes.
        let listed = call("list", nodes.list_metadata(&ListParams::default())).await?;
        let (states, now) = (listed.items.iter(), Timestamp::now());
        let states: Vec<(String, NodeState)> = states
            .filter_map(|node| Some((node.name_any(), node_state(node, now)?)))
            .collect();
        let timed_out = Instant::now() >= end;
        let due = states.iter().filter_map(|(name, state)| match state {
            NodeState::Requested | NodeState::Expired if timed_out => Some((name, &none)),
            NodeState::NotRequested | NodeState::Expired if !timed_out => Some((name, &request)),
            NodeState::Requested | NodeState::NotRequested | NodeState::Expired => None,
        });
        let annotated = stream::iter(due)
            .for_each_concurrent(AT_ONCE, |(name, request)| annotate(&nodes, name, request));
        annotated.await;
        if timed_out || states.is_empty() {
            return Ok(states.into_iter().map(|(name, _)| name).collect());
        }
    }
}

/// A node for which that fails is found again by the next list.
async fn annotate(nodes: &Api<Node>, name: &str, request: &Value) {
    let patch = json!({"metadata": {"annotations": {CLEANUP_UNTIL: request}}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match call("patch", nodes.patch_metadata(name, &params, &patch)).await {
        Ok(_) if request.is_null() => {}
        Ok(_) => tracing::info!(node = name, "asked the agent to clean up the node"),
        // A node that is gone needs no more.
        Err(CleanupError::Call {
            source: kube::Error::Api(status),
            ..
        }) if status.code == 404 => {}
        Err(error) => tracing::warn!(node = name, %error, "cannot ask the agent"),
    }
}

async fn call<T>(
    verb: &'static str,
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<T, CleanupError> {
    let answer = timeout(DEADLINE, answer).await;
    let answer = answer.map_err(|_| CleanupError::Timeout(verb))?;
    answer.map_err(|source| CleanupError::Call { verb, source })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use tokio::sync::Barrier;

    use super::*;

    /// The first of four requests fails.
    #[tokio::test(start_paused = true)]
    async fn asks_nodes_at_the_same_time_and_again_after_a_failure() {
        let both = Arc::new(Barrier::new(2));
        let (lists, writes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&writes);
        let service = tower::service_fn(move |request: ::http::Request<Body>| {
            let (both, lists) = (Arc::clone(&both), Arc::clone(&lists));
            let counted = Arc::clone(&counted);
            async move {
                let (code, answer): (u16, Value) = if request.method() == ::http::Method::GET {
                    let first = lists.fetch_add(1, Ordering::Relaxed) < 2;
                    let names: &[&str] = if first { &["a", "b"] } else { &[] };
                    let node = |name: &&str| json!({"metadata": {"name": name, "annotations": {INVENTORY: "{}"}}});
                    let items: Vec<Value> = names.iter().map(node).collect();
                    let kind = "PartialObjectMetadataList";
                    let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": {}, "items": items});
                    (200, list)
                } else {
                    both.wait().await;
                    match counted.fetch_add(1, Ordering::Relaxed) {
                        0 => (500, json!({"code": 500, "message": "busy"})),
                        _ => (200, json!({"metadata": {"name": "n"}})),
                    }
                };
                let body = Body::from(answer.to_string().into_bytes());
                let answer = ::http::Response::builder().status(code).body(body)?;
                Ok::<_, tower::BoxError>(answer)
            }
        });
        let client = Client::new(service, "default");
        let left = run(client, Duration::from_mins(1)).await;
        assert!(left.as_ref().is_ok_and(Vec::is_empty), "{left:?}");
        assert_eq!(writes.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn asks_nodes_with_inventory_once() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().expect("a time");
        let (later, earlier) = ("2026-11-22T10:00:30Z", "2026-11-22T09:59:59Z");
        let check = |annotations: Value, expected: Option<NodeState>| {
            let node = json!({"metadata": {"name": "n", "annotations": annotations}});
            let node: PartialObjectMeta<Node> = serde_json::from_value(node).expect("a node");
            assert_eq!(node_state(&node, now), expected, "{annotations}");
        };
        check(json!({}), None);
        check(json!({"others": "x"}), None);
        check(json!({INVENTORY: "{}"}), Some(NodeState::NotRequested));
        check(
            json!({INVENTORY: "{}", CLEANUP_UNTIL: later}),
            Some(NodeState::Requested),
        );
        check(json!({CLEANUP_UNTIL: later}), Some(NodeState::Requested));
        // Left by a run that was ended.
        check(
            json!({INVENTORY: "{}", CLEANUP_UNTIL: earlier}),
            Some(NodeState::Expired),
        );
    }
}

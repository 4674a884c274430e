//! `aliquot-device-plugin cleanup`: asks the agents of all nodes to clean up, and waits until they
//! have. The chart runs it before it is removed. It writes only the request, and withdraws it where
//! no agent answered.

use std::path::PathBuf;
use std::time::Duration;

use aliquot_core::inventory::INVENTORY;
use clap::Parser;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{ListParams, PartialObjectMeta, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, timeout};

use super::{CLEANUP_UNTIL, is_requested};

/// For each request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Between two lists of the nodes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

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
    let request = json!(until.to_string());
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    loop {
        polls.tick().await;
        // No more than names and annotations: a cluster has thousands of nodes.
        let listed = call("list", nodes.list_metadata(&ListParams::default())).await?;
        let (states, now) = (listed.items.iter(), Timestamp::now());
        let states: Vec<(String, NodeState)> = states
            .filter_map(|node| Some((node.name_any(), node_state(node, now)?)))
            .collect();
        let timed_out = Instant::now() >= end;
        for (name, state) in &states {
            match state {
                NodeState::Requested | NodeState::Expired if timed_out => {
                    annotate(&nodes, name, &Value::Null).await?;
                }
                NodeState::NotRequested | NodeState::Expired if !timed_out => {
                    annotate(&nodes, name, &request).await?;
                    tracing::info!(node = name, "asked the agent to clean up the node");
                }
                NodeState::Requested | NodeState::NotRequested | NodeState::Expired => {}
            }
        }
        if timed_out || states.is_empty() {
            return Ok(states.into_iter().map(|(name, _)| name).collect());
        }
    }
}

async fn annotate(nodes: &Api<Node>, name: &str, request: &Value) -> Result<(), CleanupError> {
    let patch = json!({"metadata": {"annotations": {CLEANUP_UNTIL: request}}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match call("patch", nodes.patch_metadata(name, &params, &patch)).await {
        // A node that is gone needs no more.
        Err(CleanupError::Call {
            source: kube::Error::Api(status),
            ..
        }) if status.code == 404 => Ok(()),
        answer => answer.map(drop),
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
    use super::*;

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

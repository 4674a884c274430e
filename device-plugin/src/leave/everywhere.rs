//! `aliquot-device-plugin leave`: asks the agents of all nodes to leave, and waits until they have.
//! The chart runs it before it is removed.
//!
//! Fed by: the nodes of the cluster. Must not: write anything on a node but the wish, which it
//! takes back where nobody heard it.

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

use super::ASKED;

/// For each request.
const DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks at the nodes.
const LOOK: Duration = Duration::from_secs(1);

/// Takes Aliquot off all nodes; run it before the agents are removed.
#[derive(Clone, Debug, Parser)]
#[command(name = "aliquot-device-plugin leave", version, about)]
pub struct Settings {
    /// Kubeconfig of the API server; without it the pod's service account is used
    #[arg(long, env = "ALIQUOT_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Seconds to wait for all nodes
    #[arg(long, env = "ALIQUOT_LEAVE_WITHIN", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub within: u32,
    /// Log format: text or json
    #[arg(long, env = "ALIQUOT_LOG_FORMAT", default_value = "text")]
    pub log_format: aliquot_serve::telemetry::LogFormat,
    /// Log filter, such as `info,aliquot_device_plugin=debug`
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    pub log: String,
}

/// Why the nodes were not asked.
#[derive(Debug, Error)]
pub enum LeaveError {
    /// The API server refused or could not be reached.
    #[error("cannot {verb} nodes: {source}")]
    Call {
        /// What was tried.
        verb: &'static str,
        /// Its answer.
        source: kube::Error,
    },
    /// It took too long.
    #[error("cannot {0} nodes: no answer within {DEADLINE:?}")]
    Silence(&'static str),
}

/// What a node that Aliquot has not left shows.
#[derive(Debug, PartialEq, Eq)]
enum Trace {
    /// Its agent was not asked yet.
    Unasked,
    /// Its agent was asked.
    Asked,
}

/// `None`: it was left, or was never ours.
fn trace(node: &PartialObjectMeta<Node>) -> Option<Trace> {
    let annotations = node.annotations();
    if annotations.contains_key(ASKED) {
        return Some(Trace::Asked);
    }
    annotations
        .contains_key(INVENTORY)
        .then_some(Trace::Unasked)
}

/// Asks all agents; the names of the nodes that were not left in time.
pub async fn run(client: Client, within: Duration) -> Result<Vec<String>, LeaveError> {
    let nodes: Api<Node> = Api::all(client);
    let end = Instant::now() + within;
    let until = Timestamp::now() + SignedDuration::try_from(within).unwrap_or(SignedDuration::MAX);
    let wish = json!(until.to_string());
    let mut looks = tokio::time::interval(LOOK);
    loop {
        looks.tick().await;
        // No more than names and annotations: a cluster has thousands of nodes.
        let listed = call("list", nodes.list_metadata(&ListParams::default())).await?;
        let traces = listed.items.iter();
        let traces: Vec<(String, Trace)> = traces
            .filter_map(|node| Some((node.name_any(), trace(node)?)))
            .collect();
        let over = Instant::now() >= end;
        for (name, trace) in &traces {
            match trace {
                Trace::Asked if over => say(&nodes, name, &Value::Null).await?,
                Trace::Unasked if !over => {
                    say(&nodes, name, &wish).await?;
                    tracing::info!(node = name, "asked to be left");
                }
                Trace::Asked | Trace::Unasked => {}
            }
        }
        if over || traces.is_empty() {
            return Ok(traces.into_iter().map(|(name, _)| name).collect());
        }
    }
}

async fn say(nodes: &Api<Node>, name: &str, wish: &Value) -> Result<(), LeaveError> {
    let patch = json!({"metadata": {"annotations": {ASKED: wish}}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match call("patch", nodes.patch_metadata(name, &params, &patch)).await {
        // A node that is gone is left.
        Err(LeaveError::Call {
            source: kube::Error::Api(status),
            ..
        }) if status.code == 404 => Ok(()),
        answer => answer.map(drop),
    }
}

async fn call<T>(
    verb: &'static str,
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<T, LeaveError> {
    let answer = timeout(DEADLINE, answer).await;
    let answer = answer.map_err(|_| LeaveError::Silence(verb))?;
    answer.map_err(|source| LeaveError::Call { verb, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_once_and_one_without_an_inventory_never() {
        let check = |annotations: Value, expected: Option<Trace>| {
            let node = json!({"metadata": {"name": "n", "annotations": annotations}});
            let node: PartialObjectMeta<Node> = serde_json::from_value(node).expect("a node");
            assert_eq!(trace(&node), expected, "{annotations}");
        };
        check(json!({}), None);
        check(json!({"others": "x"}), None);
        check(json!({INVENTORY: "{}"}), Some(Trace::Unasked));
        check(json!({INVENTORY: "{}", ASKED: "t"}), Some(Trace::Asked));
        check(json!({ASKED: "t"}), Some(Trace::Asked));
    }
}

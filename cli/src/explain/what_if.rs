//! `explain -f`: whether a pod would fit a cluster as it is now, and where. Affinity to pods, topology spread, volumes
//! and quota are not checked.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use aliquot_core::decide::{self, Memo, NodeQuery};
use aliquot_core::explain::{NodeAnswer, NodeTotals, PodAnswer, PodHeader, container_requests};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::score::Policies;
use aliquot_core::{Census, Cluster, Demand, Ledger, Typical};
use aliquot_k8s::disruption::Labels;
use aliquot_k8s::pod::{self, DemandError, Settings};
use aliquot_k8s::selection::{self, NodeSelection};
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use thiserror::Error;

use super::{asks, nodes_table};
use crate::components::node_name;
use crate::snapshot;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// Each node, as in `explain`; offered are those that the pod selects, whose taints it tolerates, and that have
    /// enough CPU and memory for it.
    #[serde(flatten)]
    pub answer: PodAnswer,
    /// The nodes that fit, best first, with the rank that prioritize gives.
    pub ranks: Vec<(String, i64)>,
}

#[derive(Debug, Error)]
pub enum WhatIfError {
    /// Not YAML or JSON, or not the shape of a pod.
    #[error("the manifest cannot be parsed as a Pod: {0}")]
    Manifest(#[from] serde_saphyr::Error),
    #[error("kind is {kind:?}; expected: Pod (for a Deployment, its spec.template with kind: Pod)")]
    Kind { kind: String },
    #[error("the pod's GPU request cannot be read: {0}")]
    Demand(#[from] DemandError),
    /// It requests nothing of Aliquot's.
    #[error("the pod requests no GPU; kube-scheduler places it by CPU and memory")]
    AsksForNone,
}

/// Reads a manifest, YAML or JSON.
pub fn manifest(text: &str) -> Result<Pod, WhatIfError> {
    let value: serde_json::Value = serde_saphyr::from_str(text)?;
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind != "Pod" {
        return Err(WhatIfError::Kind {
            kind: kind.to_owned(),
        });
    }
    Ok(serde_saphyr::from_str(text)?)
}

/// Tries `pod` on these nodes with these pods on them.
pub fn what_if(
    nodes: &[Node],
    pods: &[Pod],
    pod: &Pod,
    settings: &Settings,
    mut policies: Policies,
) -> Result<WhatIf, WhatIfError> {
    let view = PodView::from(pod);
    let demand = pod::demand(&view, settings)?;
    if !demand.requests_gpu() {
        return Err(WhatIfError::AsksForNone);
    }
    let ledger = snapshot::ledger(nodes, pods, settings);
    policies.typical = Arc::new(typical(&ledger));
    let cluster = ledger.cluster();
    let offered = offered(cluster, nodes, &NodeSelection::read(&view), &demand);
    let (mut answers, mut tail) = (Vec::new(), NodeTotals::default());
    for (_, name, node) in cluster.iter() {
        let is_offered = offered.contains(&name.as_str());
        let (answer, refusal) =
            NodeAnswer::evaluate(name, node, &demand, &policies, is_offered, None);
        tail.add(&answer, refusal.as_ref());
        answers.push(answer);
    }
    answers.sort_by(|a, b| a.node.cmp(&b.node));
    let head = PodHeader {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod::uid(pod),
        leads: false,
        requests: container_requests(&demand),
        annotated: pod::annotation(pod, REQUEST).is_some(),
        burst: demand.rules.burst,
        refused: None,
        condition: None,
        placement: None,
    };
    Ok(WhatIf {
        ranks: ranks(cluster, &demand, &policies, &offered),
        answer: PodAnswer {
            head,
            nodes: answers,
            tail,
        },
    })
}

/// What the pods of the cluster request, for which the scheduler leaves room.
fn typical(ledger: &Ledger) -> Typical {
    let mut census = Census::default();
    for (_, name, node) in ledger.cluster().iter() {
        if node.inventory.is_some() {
            ledger.count_pods(name, &mut census);
        }
    }
    census.typical()
}

/// The nodes that kube-scheduler would offer, by cordon, labels, taints, CPU and memory. A node that is gone has a
/// taint.
fn offered<'a>(
    cluster: &'a Cluster,
    nodes: &[Node],
    wanted: &NodeSelection,
    demand: &Demand,
) -> Vec<&'a str> {
    let none = Labels::new();
    let is_open = |node: &&Node| {
        let labels = node.metadata.labels.as_ref().unwrap_or(&none);
        let spec = node.spec.as_ref();
        spec.and_then(|spec| spec.unschedulable) != Some(true)
            && wanted.selects(node_name(node), labels)
            && wanted.tolerates(&selection::taints(node))
    };
    let open: BTreeSet<&str> = nodes.iter().filter(is_open).map(node_name).collect();
    let mut offered: Vec<&str> = cluster
        .iter()
        .filter(|(.., node)| node.host.free().covers(demand.host))
        .map(|(_, name, _)| name.as_str())
        .filter(|name| open.contains(name))
        .collect();
    offered.sort_unstable();
    offered
}

/// Those of these nodes that fit, best first.
fn ranks(
    cluster: &Cluster,
    demand: &Demand,
    policies: &Policies,
    names: &[&str],
) -> Vec<(String, i64)> {
    let query = NodeQuery {
        cluster,
        demand,
        policies,
        without_own: None,
        headroom: None,
    };
    let mut memo = Memo::default();
    let Ok(best) = decide::best(&query, &mut memo, names, names.len()) else {
        return Vec::new();
    };
    let ranks = decide::ranks(&query, &mut memo, &best).into_iter();
    ranks.map(|(name, rank)| (name.to_owned(), rank)).collect()
}

/// Whether the pod would fit, and where.
pub fn table(answer: &WhatIf, most: usize) -> String {
    let mut text = asks(&answer.answer.head);
    let _ = match answer.ranks.first() {
        Some((best, _)) => writeln!(text, "The pod would be placed on node {best}.\n"),
        None => writeln!(text, "The pod would stay pending.\n"),
    };
    text + &nodes_table(&answer.answer, most)
}

#[cfg(test)]
#[path = "what_if_tests.rs"]
mod tests;

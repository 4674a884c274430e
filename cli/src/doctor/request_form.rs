//! Whether the amounts of requests would better stand in the annotation of pods, and whether an
//! autoscaler is told of the GPUs that are missing.

use k8s_openapi::api::core::v1::{Node, Pod};

use super::admission::is_off;
use super::facts::{ClusterFacts, minor};
use super::finding::{Checked, ok, warning};
use crate::components::{containers, flag, running_pods};

/// With more nodes, three more resource names cost kube-scheduler much of its throughput.
const MOST_NODES: usize = 1_000;
/// The first minor version of Kubernetes whose kubelet starts init containers that name resources
/// which no node has.
const FIRST_WITH_INIT_CONTAINERS: u32 = 31;
/// The names of autoscalers, as in their images.
const AUTOSCALERS: [&str; 2] = ["cluster-autoscaler", "karpenter"];
/// The flag of the scheduler by which it asks an autoscaler for whole GPUs.
const NODE_TYPES: &str = "--node-types";
/// The label of nodes that Karpenter made, also where it runs outside the cluster.
const KARPENTER: &str = "karpenter.sh/nodepool";

const STATE_GPUS: &str = "if it adds GPU nodes, set scheduler.autoscaler.nodeTypes (docs/guides/autoscalers.md): with the annotation alone it takes each share for a whole GPU";
const MOVE_AMOUNTS: &str = "set webhook.requestAs=annotation, or label the namespaces of GPU pods aliquot.dev/request-as: annotation (docs/guides/request-as-annotation.md)";

/// Recommends the annotation or the autoscaler's node types for what it finds; nothing where the
/// webhook is disabled.
pub(super) fn check(facts: &ClusterFacts) -> Option<Checked> {
    let is_off = facts.pods.as_deref().is_ok_and(is_off);
    (!is_off).then(|| form(facts))
}

fn form(facts: &ClusterFacts) -> Checked {
    let (pods, nodes) = (facts.pods.as_deref()?, facts.nodes.as_deref()?);
    let mut webhooks = running_pods(pods, "webhook");
    if webhooks.any(|pod| flag(pod, "--request-as") == Some("annotation")) {
        return ok("requests stand in annotations of pods");
    }
    let by_autoscaler = autoscaler(facts, pods, nodes);
    let by_names: Vec<String> = [old(nodes), many(nodes)].into_iter().flatten().collect();
    let hints = [
        by_autoscaler.is_some().then_some(STATE_GPUS),
        (!by_names.is_empty()).then_some(MOVE_AMOUNTS),
    ];
    let reasons: Vec<String> = by_autoscaler.into_iter().chain(by_names).collect();
    if reasons.is_empty() {
        facts.autoscaler_status.as_ref()?;
        return ok("requests stand in the resources of containers");
    }
    let hints: Vec<&str> = hints.into_iter().flatten().collect();
    warning(
        format!(
            "requests stand in the resources of containers, but {}",
            reasons.join(", and ")
        ),
        hints.join("; "),
    )
}

fn autoscaler(facts: &ClusterFacts, pods: &[Pod], nodes: &[Node]) -> Option<String> {
    // Placeholders ask it for the GPUs that pods with shares miss, in either form.
    if running_pods(pods, "scheduler").any(|pod| flag(pod, NODE_TYPES).is_some()) {
        return None;
    }
    let images = pods
        .iter()
        .flat_map(containers)
        .filter_map(|c| c.image.as_deref());
    let mut running = images.flat_map(|image| {
        let known = AUTOSCALERS.into_iter();
        known.filter(move |name| image.contains(name))
    });
    let labelled = |node: &Node| {
        let labels = node.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.contains_key(KARPENTER))
    };
    let by_status = (facts.autoscaler_status == Ok(true)).then_some(AUTOSCALERS[0]);
    let by_node = nodes.iter().any(labelled).then_some(AUTOSCALERS[1]);
    let found = running.next().or(by_status).or(by_node)?;
    Some(format!(
        "{found} adds no node for resources that no node publishes"
    ))
}

fn old(nodes: &[Node]) -> Option<String> {
    let version = |node: &Node| {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        let minor = minor(&info.kubelet_version)?;
        (minor < FIRST_WITH_INIT_CONTAINERS).then(|| info.kubelet_version.clone())
    };
    let found = nodes.iter().find_map(version)?;
    Some(format!(
        "kubelets of version {found} refuse init containers with them"
    ))
}

fn many(nodes: &[Node]) -> Option<String> {
    let count = nodes.len();
    (count > MOST_NODES).then(|| format!("with {count} nodes they slow kube-scheduler down"))
}

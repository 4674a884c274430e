//! What the nodes and pods of a cluster say without its scheduler.

use std::collections::BTreeSet;

use aliquot_core::usage::AllocatedUse;
use aliquot_core::{Ledger, NodeName};
use aliquot_k8s::view::PodView;
use aliquot_k8s::{node, pod, replicas};
use k8s_openapi::api::core::v1::{Container, Node, Pod};

use crate::components::{flag, is_ours, name, names};

/// The ledger from nodes and pods; pods that are being bound are missing.
pub fn ledger(nodes: &[Node], pods: &[Pod], settings: &pod::Settings) -> Ledger {
    let mut ledger = Ledger::default();
    for object in nodes {
        let name = object.metadata.name.as_deref().unwrap_or_default().into();
        ledger.publish(&name, Some(node::published(object)));
    }
    for object in pods.iter().filter(|pod| !pod::is_finished(pod)) {
        // Pods without a share count, too: they use CPU and memory.
        let view = PodView::from(object);
        if let Some(node) = view.node() {
            let allocated = pod::allocated(&view, settings);
            let allocated = allocated.map_or_else(AllocatedUse::nothing, |(_, used)| used);
            let requests = replicas::requests(&view, settings);
            ledger.confirm(&view.uid(), &view.namespace(), &node, allocated, requests);
        }
    }
    ledger
}

/// How the scheduler among these pods reads pods: the resources' names and its own name. Its defaults
/// are not known here; the flags' defaults are used.
pub(crate) fn settings(pods: &[Pod]) -> pod::Settings {
    let scheduler = pods.iter().find(|pod| is_ours(pod, "scheduler"));
    let own_name = scheduler.and_then(|pod| flag(pod, "--scheduler-name"));
    pod::Settings {
        scheduler_name: own_name.unwrap_or(pod::SCHEDULER_NAME).to_owned(),
        names: scheduler.map(names).unwrap_or_default(),
        ..pod::Settings::default()
    }
}

/// The pods whose unreadable allocation makes this node full, as `namespace/name`.
pub(crate) fn unreadable(ledger: &Ledger, node: &NodeName, pods: &[Pod]) -> Vec<String> {
    let here = ledger.unreadable().filter(|(_, entry)| entry.node == *node);
    let uids: BTreeSet<_> = here.map(|(uid, _)| uid).collect();
    let named = pods.iter().filter(|one| uids.contains(&pod::uid(one)));
    named
        .map(|one| format!("{}/{}", pod::namespace(one), name(one)))
        .collect()
}

/// The variable by which a container asks for no limits.
const DISABLE_CONTROL: &str = "CUDA_DISABLE_CONTROL";

/// The running containers with a share and without limits, as `namespace/pod container`: they ask for
/// it by a variable, and the flag of the agents among `parts` allows it in their namespace.
pub(crate) fn without_control(pods: &[Pod], parts: &[Pod]) -> Vec<String> {
    let agent = parts.iter().find(|pod| is_ours(pod, "device-plugin"));
    let named = agent.and_then(|agent| flag(agent, "--may-disable-control"));
    let named: Vec<&str> = named.unwrap_or_default().split(',').collect();
    let settings = settings(parts);
    let asks = |container: &Container| {
        let mut env = container.env.iter().flatten().rev();
        let value = env.find(|one| one.name == DISABLE_CONTROL);
        let value = value.and_then(|one| one.value.as_deref());
        matches!(value, Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
    };
    let mut found = Vec::new();
    for object in pods.iter().filter(|pod| !pod::is_finished(pod)) {
        let namespace = pod::namespace(object);
        let may = named
            .iter()
            .any(|one| *one == "*" || *one == namespace.as_str());
        if !may || pod::allocated(&PodView::from(object), &settings).is_none() {
            continue;
        }
        let containers = pod::containers(object).filter(|(container, _)| asks(container));
        found.extend(
            containers
                .map(|(container, _)| format!("{namespace}/{} {}", name(object), container.name)),
        );
    }
    found
}

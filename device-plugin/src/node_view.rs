//! Our Node object as the API server has it. Each part of the agent reads its own keys of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as api;

/// The parts of our Node object that the agent reads.
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    pub annotations: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<api::Taint>,
    /// Status ("True", "False") and message of each condition.
    pub conditions: BTreeMap<String, (String, String)>,
    /// Capacity and allocatable of each extended resource.
    pub resources: BTreeMap<String, (String, String)>,
    /// Its container runtime, such as `containerd://2.4.2`.
    pub runtime: Option<String>,
    /// The version on which a write of a whole list, such as the taints, must be based.
    pub resource_version: Option<String>,
}

/// A condition that our Node object should have, without its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

impl NodeCondition {
    pub fn new(holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            holds,
            reason,
            message: message.into(),
        }
    }

    pub fn status(&self) -> &'static str {
        if self.holds { "True" } else { "False" }
    }
}

/// Ignores the resource version, which changes with every update of the node.
impl PartialEq for NodeView {
    fn eq(&self, other: &Self) -> bool {
        self.annotations == other.annotations
            && self.labels == other.labels
            && self.taints == other.taints
            && self.conditions == other.conditions
            && self.resources == other.resources
            && self.runtime == other.runtime
    }
}

impl NodeView {
    pub fn read(node: &api::Node) -> Self {
        let metadata = &node.metadata;
        let status = node.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let conditions = conditions.into_iter().flatten().map(|condition| {
            let message = condition.message.clone().unwrap_or_default();
            (condition.type_.clone(), (condition.status.clone(), message))
        });
        let info = status.and_then(|status| status.node_info.as_ref());
        Self {
            annotations: metadata.annotations.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            taints: (node.spec.as_ref())
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default(),
            conditions: conditions.collect(),
            resources: resources(node),
            runtime: info.map(|info| info.container_runtime_version.clone()),
            resource_version: metadata.resource_version.clone(),
        }
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// Whether the kubelet counts none of this resource any more.
    pub fn counts_none_of(&self, resource: &str) -> bool {
        let shown = self.resources.get(resource);
        shown.is_none_or(|(capacity, allocatable)| capacity == "0" && allocatable == "0")
    }
}

fn resources(node: &api::Node) -> BTreeMap<String, (String, String)> {
    let status = node.status.as_ref();
    let capacity = status.and_then(|status| status.capacity.as_ref());
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let extended = capacity
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.contains('/'));
    let both = extended.map(|(key, capacity)| {
        let allocatable = allocatable.and_then(|all| all.get(key));
        let allocatable = allocatable.map_or_else(|| "0".to_owned(), |quantity| quantity.0.clone());
        (key.clone(), (capacity.0.clone(), allocatable))
    });
    both.collect()
}

//! What the checks work on: facts about a cluster, each with its value or the reason why it could
//! not be read.

use std::collections::BTreeMap;
use std::error::Error;

use aliquot_core::NodeName;
use aliquot_k8s::pod;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};

use crate::output::with_causes;
use crate::snapshot;

/// A fact, or why it could not be read.
pub type Fact<T> = Result<T, String>;

/// The minor number in a version of Kubernetes: 33 in `v1.33.4+k3s1`.
pub(crate) fn minor(version: &str) -> Option<u32> {
    let mut numbers = version.trim_start_matches('v').split('.');
    (numbers.next() == Some("1")).then_some(())?;
    numbers.next()?.parse().ok()
}

pub fn fact<T, E: Error + 'static>(result: Result<T, E>) -> Fact<T> {
    result.map_err(|error| with_causes(&error))
}

/// The result of creating a pod that requests a GPU with `dryRun`.
#[derive(Clone, Debug, PartialEq)]
pub enum DryRun {
    /// It would have been created, like this.
    Admitted(Box<Pod>),
    /// The webhook did not answer: the API server's message.
    NoAnswer(String),
}

#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Namespace of Aliquot's components.
    pub namespace: String,
    /// Namespace of the dry-run pod and of the probe pods.
    pub trial_namespace: String,
    pub version: Fact<String>,
    /// All nodes, or the one that is checked.
    pub nodes: Fact<Vec<Node>>,
    pub pods: Fact<Vec<Pod>>,
    /// The webhook's configuration, if there is one.
    pub webhook: Fact<Option<MutatingWebhookConfiguration>>,
    pub dry_run: Fact<DryRun>,
    /// What else changes pods or nodes as they are written, by kind and name.
    pub mutators: Fact<Vec<String>>,
    /// The `ResourceQuotas` of all namespaces.
    pub quotas: Fact<Vec<ResourceQuota>>,
    /// The extended resources of `DeviceClasses`, by the classes' names.
    pub device_classes: Fact<BTreeMap<String, String>>,
    /// The namespaces with a label that exempts their pods from admission.
    pub exempt: Fact<Vec<String>>,
    /// The names of the `NetworkPolicies` in the components' namespace.
    pub network_policies: Fact<Vec<String>>,
    /// Whether cluster-autoscaler has written its status.
    pub autoscaler_status: Fact<bool>,
    /// The metrics of the scheduler that leads, or of another one.
    pub metrics: Fact<String>,
    /// What the agents whose pods are not ready say about it, by node.
    pub unready_agents: BTreeMap<NodeName, String>,
}

impl ClusterFacts {
    /// How the scheduler reads pods, by the flags of its own; the flags' defaults where pods cannot be read.
    pub fn settings(&self) -> pod::Settings {
        snapshot::settings(self.pods.as_deref().unwrap_or_default())
    }
}

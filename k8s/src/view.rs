//! A pod read from the API server with only the fields that the scheduler needs.
//!
//! A list of 100,000 pods is mostly managed fields, volumes, environment and container statuses;
//! skipping them costs a fraction of decoding them. A view has no other fields, and cannot be written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use aliquot_core::{Namespace, NodeName, PodUid, Stage};
use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::{
    Affinity, Container, Pod, PodCondition, ResourceRequirements, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::event::PodRef;

/// The kubelet's mark on the mirror pod of a static pod. On other pods any user may write it where
/// no policy prevents that.
const MIRROR: &str = "kubernetes.io/config.mirror";

type Texts = BTreeMap<String, String>;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodView {
    #[serde(deserialize_with = "metadata")]
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: SpecView,
    pub(crate) status: StatusView,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SpecView {
    pub(crate) node_name: Option<String>,
    pub(crate) node_selector: Option<Texts>,
    pub(crate) tolerations: Option<Vec<Toleration>>,
    pub(crate) scheduler_name: Option<String>,
    pub(crate) priority: Option<i32>,
    pub(crate) preemption_policy: Option<String>,
    pub(crate) termination_grace_period_seconds: Option<i64>,
    pub(crate) overhead: Option<BTreeMap<String, Quantity>>,
    pub(crate) resources: Option<ResourceRequirements>,
    pub(crate) affinity: Option<Affinity>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    // The Kubernetes version of our whole types lacks it.
    scheduling_group: Option<SchedulingGroup>,
    init_containers: Option<Vec<ContainerView>>,
    containers: Vec<ContainerView>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SchedulingGroup {
    pod_group_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerView {
    pub(crate) name: String,
    restart_policy: Option<String>,
    pub(crate) resources: Option<ResourceRequirements>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct StatusView {
    pub(crate) phase: Option<String>,
    #[serde(deserialize_with = "time")]
    pub(crate) start_time: Option<Time>,
    pub(crate) nominated_node_name: Option<String>,
    pub(crate) conditions: Option<Vec<ConditionView>>,
}

/// A condition without times, whose decoding costs as much as the rest of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ConditionView {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// A time that others than Kubernetes itself write; `None` where it cannot be read.
pub(crate) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()).map(Time))
}

/// Skips managed fields.
pub(crate) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Wire {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<Texts>,
        annotations: Option<Texts>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let wire = Wire::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: wire.name,
        namespace: wire.namespace,
        uid: wire.uid,
        resource_version: wire.resource_version,
        generation: wire.generation,
        creation_timestamp: wire.creation_timestamp,
        deletion_timestamp: wire.deletion_timestamp,
        labels: wire.labels,
        annotations: wire.annotations,
        owner_references: wire.owner_references,
        ..ObjectMeta::default()
    })
}

impl PodView {
    /// `metadata.name`.
    pub fn name(&self) -> Option<&str> {
        self.metadata.name.as_deref()
    }

    /// `metadata.uid`, empty for an object that was never stored.
    pub fn uid(&self) -> PodUid {
        self.metadata.uid.as_deref().unwrap_or_default().into()
    }

    /// `metadata.namespace`, empty for an object that was never stored.
    pub fn namespace(&self) -> Namespace {
        let namespace = self.metadata.namespace.as_deref();
        namespace.unwrap_or_default().into()
    }

    /// The pod as events refer to it.
    pub fn reference(&self) -> PodRef {
        PodRef {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// `metadata.creationTimestamp`.
    pub fn created(&self) -> Option<&Time> {
        self.metadata.creation_timestamp.as_ref()
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    pub fn labels(&self) -> Option<&Texts> {
        self.metadata.labels.as_ref()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    pub fn annotations(&self) -> impl Iterator<Item = (&String, &String)> {
        self.metadata.annotations.iter().flatten()
    }

    pub fn node(&self) -> Option<NodeName> {
        let name = self.spec.node_name.as_deref()?;
        (!name.is_empty()).then(|| name.into())
    }

    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it is a mirror pod, the kubelet's copy of a static pod: its node owns it.
    pub fn is_mirror(&self) -> bool {
        is_mirror(&self.metadata, self.spec.node_name.as_ref())
    }

    /// Whether it has finished (Succeeded, Failed).
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The name of the `PodGroup` that it belongs to (`spec.schedulingGroup`).
    pub fn scheduling_group(&self) -> Option<&str> {
        let group = self.spec.scheduling_group.as_ref()?;
        group.pod_group_name.as_deref()
    }

    /// Whether kube-scheduler scores nodes for it by preferred affinity or by spread constraints.
    pub fn prefers_nodes(&self) -> bool {
        let affinity = self.spec.affinity.as_ref();
        let preferred = affinity.is_some_and(|affinity| {
            let node = affinity.node_affinity.as_ref();
            let near = affinity.pod_affinity.as_ref();
            let far = affinity.pod_anti_affinity.as_ref();
            node.is_some_and(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .is_some()
            }) || near.is_some_and(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .is_some()
            }) || far.is_some_and(|a| {
                a.preferred_during_scheduling_ignored_during_execution
                    .is_some()
            })
        });
        let constraints = self.spec.topology_spread_constraints.as_ref();
        preferred || constraints.is_some_and(|all| !all.is_empty())
    }

    /// Each container and when it runs: init containers in order, then app containers.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (&ContainerView, Stage)> {
        let init = self.spec.init_containers.iter().flatten();
        let init = init.map(|one| (one, stage(one.restart_policy.as_deref())));
        init.chain(self.spec.containers.iter().map(|one| (one, Stage::App)))
    }

    /// The name of each container, and when it runs.
    pub fn stages(&self) -> impl Iterator<Item = (&str, Stage)> {
        self.containers().map(|(one, stage)| (&*one.name, stage))
    }
}

/// Whether a pod on this node is the kubelet's copy of a static pod.
pub(crate) fn is_mirror(metadata: &ObjectMeta, node: Option<&String>) -> bool {
    let annotations = metadata.annotations.as_ref();
    let mut owners = metadata.owner_references.iter().flatten();
    annotations.is_some_and(|all| all.contains_key(MIRROR))
        && owners.any(|owner| owner.kind == "Node" && Some(&owner.name) == node)
}

/// When an init container of this restart policy runs.
pub(crate) fn stage(restart_policy: Option<&str>) -> Stage {
    match restart_policy {
        Some("Always") => Stage::Sidecar,
        _ => Stage::Init,
    }
}

impl Resource for PodView {
    type DynamicType = ();
    type Scope = <Pod as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        <Pod as Resource>::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<&Pod> for PodView {
    fn from(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let status = pod.status.clone().unwrap_or_default();
        let containers = |all: Vec<Container>| all.into_iter().map(Into::into).collect();
        let conditions = |all: Vec<PodCondition>| all.into_iter().map(Into::into).collect();
        Self {
            metadata: pod.metadata.clone(),
            spec: SpecView {
                node_name: spec.node_name,
                node_selector: spec.node_selector,
                tolerations: spec.tolerations,
                scheduler_name: spec.scheduler_name,
                priority: spec.priority,
                preemption_policy: spec.preemption_policy,
                termination_grace_period_seconds: spec.termination_grace_period_seconds,
                overhead: spec.overhead,
                resources: spec.resources,
                affinity: spec.affinity,
                topology_spread_constraints: spec.topology_spread_constraints,
                scheduling_group: None,
                init_containers: spec.init_containers.map(containers),
                containers: containers(spec.containers),
            },
            status: StatusView {
                phase: status.phase,
                start_time: status.start_time,
                nominated_node_name: status.nominated_node_name,
                conditions: status.conditions.map(conditions),
            },
        }
    }
}

impl From<Container> for ContainerView {
    fn from(whole: Container) -> Self {
        Self {
            name: whole.name,
            restart_policy: whole.restart_policy,
            resources: whole.resources,
        }
    }
}

impl From<PodCondition> for ConditionView {
    fn from(whole: PodCondition) -> Self {
        Self {
            kind: whole.type_,
            status: whole.status,
            reason: whole.reason,
            message: whole.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_of_the_wire_what_a_whole_pod_has() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:09Z",
                "labels": {"a": "b"}, "annotations": {"kubernetes.io/config.mirror": "d"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "o"}],
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"nodeName": "n", "schedulerName": "s", "priority": 7, "preemptionPolicy": "Never",
                "nodeSelector": {"pool": "a"}, "affinity": {"nodeAffinity": {}},
                "tolerations": [{"key": "team", "operator": "Exists"}],
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
                "terminationGracePeriodSeconds": 3, "overhead": {"cpu": "1"},
                "resources": {"requests": {"memory": "3Gi"}},
                "volumes": [{"name": "v", "emptyDir": {}}],
                "initContainers": [{"name": "i", "restartPolicy": "Always",
                    "resources": {"requests": {"cpu": "2"}}}],
                "containers": [{"name": "main", "image": "x", "env": [{"name": "A", "value": "b"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "nominatedNodeName": "x", "containerStatuses": [],
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "why"}]},
        });
        let view: PodView = serde_json::from_value(object.clone()).unwrap();
        let mut whole: Pod = serde_json::from_value(object).unwrap();
        whole.metadata.managed_fields = None;
        assert_eq!(view, PodView::from(&whole));
        assert!(view.is_mirror());
        let stages: Vec<_> = view.stages().collect();
        assert_eq!(stages, [("i", Stage::Sidecar), ("main", Stage::App)]);
    }

    #[test]
    fn scheduling_group_is_that_of_the_spec_alone() {
        for (spec, expected) in [
            (json!({"schedulingGroup": {"podGroupName": "g"}}), Some("g")),
            (json!({"schedulingGroup": {}}), None),
            (json!({}), None),
        ] {
            let view: PodView = serde_json::from_value(json!({ "spec": spec })).unwrap();
            assert_eq!(view.scheduling_group(), expected, "{spec}");
        }
    }
}

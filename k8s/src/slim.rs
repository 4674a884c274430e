//! A pod read from the API server with only the fields that we need.
//!
//! A list of 100,000 pods is mostly managed fields, volumes, environment and container
//! statuses; skipping them costs a fraction of decoding them. Never write a slim pod back:
//! the skipped fields are missing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::Resource as _;
use k8s_openapi::api::core::v1::{
    Affinity, Container, Pod, PodCondition, PodSpec, PodStatus, ResourceRequirements, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

/// Where a slim pod has its `spec.schedulingGroup`, which the Kubernetes version of our types lacks.
/// Only in memory: what a user writes there is removed.
const SCHEDULING_GROUP: &str = "aliquot.dev/scheduling-group";

/// A [`Pod`] with the fields that the scheduler reads; the others are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlimPod(pub Pod);

impl From<SlimPod> for Pod {
    fn from(slim: SlimPod) -> Self {
        slim.0
    }
}

impl Resource for SlimPod {
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
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

/// The name of the `PodGroup` that a slim pod belongs to (`spec.schedulingGroup`).
pub fn scheduling_group(slim: &Pod) -> Option<&str> {
    let annotations = slim.metadata.annotations.as_ref()?;
    annotations.get(SCHEDULING_GROUP).map(String::as_str)
}

/// Sets what [`scheduling_group`] returns.
pub fn set_scheduling_group(slim: &mut Pod, group: Option<String>) {
    let annotations = &mut slim.metadata.annotations;
    match (group, annotations) {
        (Some(group), annotations) => {
            let annotations = annotations.get_or_insert_default();
            annotations.insert(SCHEDULING_GROUP.to_owned(), group);
        }
        (None, Some(annotations)) => drop(annotations.remove(SCHEDULING_GROUP)),
        (None, None) => {}
    }
}

#[derive(Deserialize)]
struct WirePod {
    #[serde(default)]
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    node_name: Option<String>,
    node_selector: Option<BTreeMap<String, String>>,
    tolerations: Option<Vec<Toleration>>,
    scheduler_name: Option<String>,
    priority: Option<i32>,
    preemption_policy: Option<String>,
    termination_grace_period_seconds: Option<i64>,
    overhead: Option<BTreeMap<String, Quantity>>,
    resources: Option<ResourceRequirements>,
    affinity: Option<Affinity>,
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    scheduling_group: Option<WireGroup>,
    init_containers: Option<Vec<WireContainer>>,
    containers: Vec<WireContainer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireGroup {
    pod_group_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    name: String,
    restart_policy: Option<String>,
    resources: Option<ResourceRequirements>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireStatus {
    phase: Option<String>,
    start_time: Option<Time>,
    nominated_node_name: Option<String>,
    conditions: Option<Vec<WireCondition>>,
}

/// Without times, whose decoding costs as much as the rest of a condition.
#[derive(Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
}

impl From<WireCondition> for PodCondition {
    fn from(wire: WireCondition) -> Self {
        Self {
            type_: wire.kind,
            status: wire.status,
            reason: wire.reason,
            ..Self::default()
        }
    }
}

impl From<WireContainer> for Container {
    fn from(wire: WireContainer) -> Self {
        Self {
            name: wire.name,
            restart_policy: wire.restart_policy,
            resources: wire.resources,
            ..Self::default()
        }
    }
}

impl From<WireMeta> for ObjectMeta {
    fn from(wire: WireMeta) -> Self {
        Self {
            name: wire.name,
            namespace: wire.namespace,
            uid: wire.uid,
            resource_version: wire.resource_version,
            creation_timestamp: wire.creation_timestamp,
            deletion_timestamp: wire.deletion_timestamp,
            deletion_grace_period_seconds: wire.deletion_grace_period_seconds,
            labels: wire.labels,
            annotations: wire.annotations,
            ..Self::default()
        }
    }
}

impl From<WireSpec> for PodSpec {
    fn from(wire: WireSpec) -> Self {
        let containers = |all: Vec<WireContainer>| all.into_iter().map(Into::into).collect();
        Self {
            node_name: wire.node_name,
            node_selector: wire.node_selector,
            tolerations: wire.tolerations,
            scheduler_name: wire.scheduler_name,
            priority: wire.priority,
            preemption_policy: wire.preemption_policy,
            termination_grace_period_seconds: wire.termination_grace_period_seconds,
            overhead: wire.overhead,
            resources: wire.resources,
            affinity: wire.affinity,
            topology_spread_constraints: wire.topology_spread_constraints,
            init_containers: wire.init_containers.map(containers),
            containers: containers(wire.containers),
            ..Self::default()
        }
    }
}

impl<'de> Deserialize<'de> for SlimPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut wire = WirePod::deserialize(deserializer)?;
        let group = wire.spec.scheduling_group.take();
        let group = group.and_then(|group| group.pod_group_name);
        let conditions = |all: Vec<WireCondition>| all.into_iter().map(Into::into).collect();
        let status = PodStatus {
            phase: wire.status.phase,
            start_time: wire.status.start_time,
            nominated_node_name: wire.status.nominated_node_name,
            conditions: wire.status.conditions.map(conditions),
            ..PodStatus::default()
        };
        let mut pod = Pod {
            metadata: wire.metadata.into(),
            spec: Some(wire.spec.into()),
            status: Some(status),
        };
        set_scheduling_group(&mut pod, group);
        Ok(Self(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod;
    use aliquot_core::allocation::ALLOCATION;
    use serde_json::json;

    #[test]
    fn scheduling_group_is_that_of_the_spec_alone() {
        let group = |pod: serde_json::Value| {
            let slim: SlimPod = serde_json::from_value(pod).unwrap();
            scheduling_group(&slim.0).map(str::to_owned)
        };
        let grouped = json!({"spec": {"schedulingGroup": {"podGroupName": "g"}, "containers": []}});
        assert_eq!(group(grouped).as_deref(), Some("g"));
        let forged = json!({"metadata": {"annotations": {SCHEDULING_GROUP: "g"}},
            "spec": {"containers": []}});
        assert_eq!(group(forged), None);
        let nameless = json!({"spec": {"schedulingGroup": {}, "containers": []}});
        assert_eq!(group(nameless), None);
    }

    #[test]
    fn slim_pod_gives_the_same_ledger_entry() {
        let allocation = json!({"v": 1, "node": "n", "priority": 1, "containers": {"main": [
            {"resource": "nvidia.com/gpu", "gpu": "GPU-0", "memory": 7, "cores": 5}]}});
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:09Z",
                "labels": {"a": "b"}, "annotations": {ALLOCATION: allocation.to_string()},
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"nodeName": "n", "schedulerName": "s", "priority": 7, "preemptionPolicy": "Never",
                "terminationGracePeriodSeconds": 3, "overhead": {"cpu": "1"},
                "tolerations": [{"key": "team", "operator": "Exists"}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "initContainers": [{"name": "i", "restartPolicy": "Always",
                    "resources": {"requests": {"cpu": "2"}}}],
                "containers": [{"name": "main", "image": "x", "env": [{"name": "A", "value": "b"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "7"},
                        "requests": {"memory": "1Gi"}}}]},
            "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "nominatedNodeName": "x", "containerStatuses": [],
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        });
        let slim: SlimPod = serde_json::from_value(object.clone()).unwrap();
        let whole: Pod = serde_json::from_value(object).unwrap();
        let Pod { spec, status, .. } = &slim.0;
        let settings = pod::Settings::default();
        assert_eq!(
            pod::allocated(&slim.0, &settings),
            pod::allocated(&whole, &settings)
        );
        assert_eq!(
            pod::requested_host_resources(&slim.0),
            pod::requested_host_resources(&whole)
        );
        let demand = |pod| pod::demand(pod, &settings).unwrap();
        assert_eq!(demand(&slim.0), demand(&whole));
        let mut metadata = whole.metadata.clone();
        metadata.managed_fields = None;
        assert_eq!(slim.0.metadata, metadata);
        let (spec, status) = (spec.as_ref().unwrap(), status.as_ref().unwrap());
        let (whole_spec, whole_status) = (whole.spec.unwrap(), whole.status.unwrap());
        assert_eq!(spec.node_name, whole_spec.node_name);
        assert_eq!(spec.scheduler_name, whole_spec.scheduler_name);
        assert_eq!(spec.priority, whole_spec.priority);
        assert_eq!(spec.preemption_policy, whole_spec.preemption_policy);
        assert_eq!(spec.tolerations, whole_spec.tolerations);
        assert_eq!(spec.volumes, None);
        assert_eq!(status.phase, whole_status.phase);
        assert_eq!(status.start_time, whole_status.start_time);
        assert_eq!(status.nominated_node_name, whole_status.nominated_node_name);
        assert_eq!(status.conditions, whole_status.conditions);
    }
}

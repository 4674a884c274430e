//! Objects without their managed fields, and nodes without most times.
//!
//! Whoever may patch an object may write a time there that only Kubernetes reads, such as the last day of
//! the year 9999. One such object would end every list and watch of its kind.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Pod, PodSpec, PodStatus,
    ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, Taint,
};
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::view::{self, ConditionView};

/// An object as lists and watches read it.
#[derive(Clone, Debug)]
pub struct Bare<K>(pub K);

#[derive(Deserialize)]
struct Wire<S, T> {
    #[serde(default, deserialize_with = "view::metadata")]
    metadata: ObjectMeta,
    spec: Option<S>,
    status: Option<T>,
}

macro_rules! bare {
    ($($kind:ident, $spec:ident, $status:ident;)*) => {$(
        impl<'de> Deserialize<'de> for Bare<$kind> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let Wire { metadata, spec, status } =
                    Wire::<$spec, $status>::deserialize(deserializer)?;
                Ok(Self($kind { metadata, spec, status }))
            }
        }

        impl From<Bare<$kind>> for $kind {
            fn from(Bare(object): Bare<$kind>) -> Self {
                object
            }
        }
    )*};
}

bare! {
    Pod, PodSpec, PodStatus;
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus;
    ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus;
}

/// What is read of a node's spec: its taints.
#[derive(Deserialize)]
struct NodeSpecWire {
    taints: Option<Vec<TaintWire>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaintWire {
    key: String,
    value: Option<String>,
    effect: String,
    #[serde(default, deserialize_with = "view::time")]
    time_added: Option<Time>,
}

/// What is read of a node's status: any node may write its own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatusWire {
    capacity: Option<BTreeMap<String, Quantity>>,
    allocatable: Option<BTreeMap<String, Quantity>>,
    conditions: Option<Vec<ConditionView>>,
    node_info: Option<NodeSystemInfo>,
}

impl<'de> Deserialize<'de> for Bare<Node> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::<NodeSpecWire, NodeStatusWire>::deserialize(deserializer)?;
        let taint = |taint: TaintWire| Taint {
            key: taint.key,
            value: taint.value,
            effect: taint.effect,
            time_added: taint.time_added,
        };
        let condition = |condition: ConditionView| NodeCondition {
            type_: condition.kind,
            status: condition.status,
            reason: condition.reason,
            message: condition.message,
            ..NodeCondition::default()
        };
        let spec = wire.spec.map(|spec| NodeSpec {
            taints: spec.taints.map(|all| all.into_iter().map(taint).collect()),
            ..NodeSpec::default()
        });
        let status = wire.status.map(|status| NodeStatus {
            capacity: status.capacity,
            allocatable: status.allocatable,
            conditions: status
                .conditions
                .map(|all| all.into_iter().map(condition).collect()),
            node_info: status.node_info,
            ..NodeStatus::default()
        });
        Ok(Self(Node {
            metadata: wire.metadata,
            spec,
            status,
        }))
    }
}

impl From<Bare<Node>> for Node {
    fn from(Bare(node): Bare<Node>) -> Self {
        node
    }
}

impl<K: Resource> Resource for Bare<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    /// The object is read whole, whatever its managed fields say.
    fn check<K: DeserializeOwned + PartialEq + Debug>(spec: &Value, status: &Value)
    where
        Bare<K>: DeserializeOwned,
    {
        let metadata = json!({"name": "o", "namespace": "d", "uid": "u", "resourceVersion": "7",
            "generation": 3, "labels": {"a": "b"}, "annotations": {"c": "d"}});
        let mut object = json!({"metadata": metadata, "spec": spec, "status": status});
        let whole: K = serde_json::from_value(object.clone()).unwrap();
        object["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Update",
            "apiVersion": "v1", "fieldsType": "FieldsV1", "time": "9999-12-31T23:59:59Z"}]);
        assert!(serde_json::from_value::<K>(object.clone()).is_err());
        let Bare(read) = serde_json::from_value::<Bare<K>>(object).unwrap();
        assert_eq!(read, whole);
    }

    #[test]
    fn no_time_in_managed_fields_keeps_an_object_from_being_read() {
        let taints = json!({"taints": [
            {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]});
        let status = json!({"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}]});
        check::<Node>(&taints, &status);
        let containers = json!({"containers": [{"name": "main", "image": "x"}]});
        check::<Pod>(&containers, &json!({"phase": "Running"}));
        let allowed = json!({"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1, "observedGeneration": 3});
        check::<PodDisruptionBudget>(&json!({"minAvailable": 1}), &allowed);
        check::<ResourceQuota>(&json!({"hard": {"pods": "1"}}), &json!({}));
    }

    /// A stolen token of one agent can write both.
    #[test]
    fn no_time_of_a_taint_or_condition_keeps_a_node_from_being_read() {
        let odd = "9999-12-31T23:59:59Z";
        let node = json!({
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": odd}]},
            "status": {"conditions": [{"type": "AliquotProfile", "status": "True",
                "lastHeartbeatTime": odd, "lastTransitionTime": odd}]},
        });
        let Bare(read) = serde_json::from_value::<Bare<Node>>(node).unwrap();
        let taints = read.spec.unwrap().taints.unwrap();
        assert_eq!(
            (taints[0].key.as_str(), &taints[0].time_added),
            ("k", &None)
        );
        let conditions = read.status.unwrap().conditions.unwrap();
        assert_eq!(conditions[0].type_, "AliquotProfile");
    }
}

//! Whole objects without their managed fields.
//!
//! Whoever may patch an object may write a time there that only Kubernetes reads, such as the last day of
//! the year 9999. One such object would end every list and watch of its kind.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{
    Node, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus, ResourceQuota, ResourceQuotaSpec,
    ResourceQuotaStatus,
};
use k8s_openapi::api::policy::v1::{
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer};

use crate::view;

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
    Node, NodeSpec, NodeStatus;
    Pod, PodSpec, PodStatus;
    PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus;
    ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus;
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
        check::<Node>(&json!({"unschedulable": true}), &json!({}));
        let containers = json!({"containers": [{"name": "main", "image": "x"}]});
        check::<Pod>(&containers, &json!({"phase": "Running"}));
        let allowed = json!({"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1,
            "expectedPods": 1, "observedGeneration": 3});
        check::<PodDisruptionBudget>(&json!({"minAvailable": 1}), &allowed);
        check::<ResourceQuota>(&json!({"hard": {"pods": "1"}}), &json!({}));
    }
}

//! A `ResourceQuota` as the ledger sees it: its limits on GPU memory and compute.
//!
//! Of an extended resource, Kubernetes counts the hard key `requests.` alone, and not what a pod
//! asks for in its annotation. We count both keys, `limits.` and `requests.`, alike. Scopes are
//! ignored: for these keys a quota applies to every pod of its namespace.

use aliquot_core::quantity;
use aliquot_core::quota::{Limit, LimitValue, LimitedResource, Quota};
use aliquot_core::request::{Resource, ResourceNames};
use k8s_openapi::api::core::v1::ResourceQuota;

/// The quota's limits on GPU resources, by the cluster's names of the resources.
pub fn quota(object: &ResourceQuota, names: &ResourceNames) -> Quota {
    let hard = object.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    let kinds = [
        (LimitedResource::Memory, Resource::Memory),
        (LimitedResource::Cores, Resource::Cores),
    ];
    let prefixes = ["limits", "requests"].into_iter();
    let keys = prefixes.flat_map(|prefix| kinds.map(|(on, resource)| (on, prefix, resource)));
    let limits = keys.filter_map(|(on, prefix, resource)| {
        let key = format!("{prefix}.{}", names.of(resource));
        let text = &hard?.get(&key)?.0;
        let most = match quantity::whole(text) {
            Ok(most) => LimitValue::Number(most),
            Err(_) => LimitValue::Unreadable(text.as_str().into()),
        };
        let counted = counted(object, &key);
        let key = key.into();
        Some(Limit {
            on,
            key,
            most,
            counted,
        })
    });
    Quota {
        name: object.metadata.name.as_deref().unwrap_or_default().into(),
        limits: limits.collect(),
    }
}

/// What Kubernetes counts under a key, as `kubectl describe quota` shows it: 0 where it counts nothing.
fn counted(object: &ResourceQuota, key: &str) -> Option<u64> {
    let status = object.status.as_ref()?;
    status.hard.as_ref()?.get(key)?;
    match status.used.as_ref().and_then(|used| used.get(key)) {
        Some(used) => quantity::whole(&used.0).ok(),
        None => Some(0),
    }
}

/// Whether the quota is meant for only some of the namespace's pods.
pub fn scoped(object: &ResourceQuota) -> bool {
    object.spec.as_ref().is_some_and(|spec| {
        let scopes = spec.scopes.as_ref();
        scopes.is_some_and(|scopes| !scopes.is_empty()) || spec.scope_selector.is_some()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: &Value, expected: &[(LimitedResource, &str, LimitValue)]) {
        let object = json!({"metadata": {"name": "q"}, "spec": spec});
        let object = serde_json::from_value(object).unwrap();
        let names = ResourceNames::with([(Resource::Cores, "example.com/cores".to_owned())]);
        let limit = |(on, key, most): &(LimitedResource, &str, LimitValue)| {
            let (on, key, most) = (*on, (*key).into(), most.clone());
            Limit {
                on,
                key,
                most,
                counted: None,
            }
        };
        let expected = Quota {
            name: "q".into(),
            limits: expected.iter().map(limit).collect(),
        };
        assert_eq!(quota(&object, &names), expected, "{spec}");
    }

    #[test]
    fn reads_whole_number_limits_under_configured_names() {
        use LimitedResource::{Cores, Memory};
        let (memory, cores) = ("limits.nvidia.com/gpumem", "limits.example.com/cores");
        check(
            &json!({"hard": {memory: "10k", cores: "0", "limits.cpu": "4"}}),
            &[
                (Memory, memory, LimitValue::Number(10_000)),
                (Cores, cores, LimitValue::Number(0)),
            ],
        );
        check(
            &json!({"hard": {memory: "16Gi", cores: "-5"}}),
            &[
                (Memory, memory, LimitValue::Unreadable("16Gi".into())),
                (Cores, cores, LimitValue::Unreadable("-5".into())),
            ],
        );
        check(
            &json!({"hard": {"limits.nvidia.com/gpucores": "1", "requests.nvidia.com/gpu": "1"}}),
            &[],
        );
        check(&json!({}), &[]);
    }

    #[test]
    fn reads_requests_keys_beside_limits_keys() {
        use LimitedResource::{Cores, Memory};
        let (limits, requests) = ("limits.nvidia.com/gpumem", "requests.nvidia.com/gpumem");
        let cores = "requests.example.com/cores";
        check(
            &json!({"hard": {limits: "10k", requests: "9k", cores: "50"}}),
            &[
                (Memory, limits, LimitValue::Number(10_000)),
                (Memory, requests, LimitValue::Number(9_000)),
                (Cores, cores, LimitValue::Number(50)),
            ],
        );
    }

    #[test]
    fn recognizes_quota_with_scopes() {
        for (spec, expected) in [
            (json!({}), false),
            (json!({"scopes": []}), false),
            (json!({"scopes": ["NotBestEffort"]}), true),
            (json!({"scopeSelector": {"matchExpressions": []}}), true),
        ] {
            let object = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(scoped(&object), expected, "{spec}");
        }
    }
}

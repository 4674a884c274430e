//! Whether several `ResourceQuotas` of a namespace limit the same under `limits.`, where Kubernetes
//! counts nothing.

use std::collections::BTreeMap;

use aliquot_core::request::ResourceNames;
use aliquot_k8s::quota::quota;
use k8s_openapi::api::core::v1::ResourceQuota;

use super::facts::ClusterFacts;
use super::finding::{About, Finding};
use crate::components::{names, running_pods};

/// Each key has one quota in each namespace.
pub(super) fn checks(facts: &ClusterFacts, about: &About) -> Finding {
    let check = "quotas";
    let quotas = match &facts.quotas {
        Err(why) => return about.unknown(check, why),
        Ok(quotas) => quotas,
    };
    let pods = facts.pods.as_deref().unwrap_or_default();
    let scheduler = running_pods(pods, "scheduler").next();
    let found = repeated(quotas, &scheduler.map(names).unwrap_or_default());
    if found.is_empty() {
        return about.ok(
            check,
            "no key under limits. is in several ResourceQuotas of a namespace",
        );
    }
    about.note(
        check,
        found.join("; "),
        "every one of them applies to every pod, and kubectl describe quota shows 0 used under limits.: keep one, or write requests. (docs/guides/quotas.md)",
    )
}

/// The keys under `limits.` that several quotas of a namespace have, each with the quotas and what they
/// allow.
fn repeated(quotas: &[ResourceQuota], names: &ResourceNames) -> Vec<String> {
    let mut by_key: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    for object in quotas {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let quota = quota(object, names);
        for limit in quota.limits {
            if limit.key.starts_with("limits.") {
                let key = (namespace, limit.key.to_string());
                let text = format!("{} ({})", quota.name, limit.most.allowed());
                by_key.entry(key).or_default().push(text);
            }
        }
    }
    let several = by_key.iter().filter(|(_, quotas)| quotas.len() > 1);
    let texts = several.map(|((namespace, key), quotas)| {
        let quotas = quotas.join(", ");
        format!("namespace {namespace}: ResourceQuotas {quotas} have {key}")
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_quotas_that_limit_the_same() {
        let quota = |namespace: &str, name: &str, key: &str, most: u32| -> ResourceQuota {
            let object = json!({
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"hard": {key: most.to_string()}},
            });
            serde_json::from_value(object).unwrap()
        };
        let memory = "limits.nvidia.com/gpumem";
        let names = ResourceNames::default();
        let mut quotas = vec![
            quota("team", "a", memory, 10_000),
            quota("other", "a", memory, 10_000),
            quota("team", "b", "requests.nvidia.com/gpumem", 10_000),
            quota("team", "c", "limits.cpu", 1),
        ];
        assert!(repeated(&quotas, &names).is_empty());
        quotas.push(quota("team", "d", memory, 8000));
        let expected =
            "namespace team: ResourceQuotas a (10000), d (8000) have limits.nvidia.com/gpumem";
        assert_eq!(repeated(&quotas, &names), [expected]);
    }
}

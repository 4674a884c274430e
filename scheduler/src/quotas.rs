//! Writes what the watch of quotas shows into the ledger. A quota is removed only by its deletion
//! or by a list without it.

use std::collections::BTreeMap;

use aliquot_core::Namespace;
use aliquot_core::quota::{LimitValue, Quota};
use aliquot_k8s::quota;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::ResourceQuota;

use crate::capacity_events::CapacityEvent;
use crate::ledger_cache::LedgerCache;

impl LedgerCache {
    /// The quota's namespace and its limits on our resources; logs what is wrong with it.
    fn read_quota(&self, object: &ResourceQuota) -> (Namespace, Quota) {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let quota = quota::quota(object, &self.settings().names);
        for limit in &quota.limits {
            let (name, key) = (&quota.name, &limit.key);
            if let LimitValue::Unreadable(value) = &limit.most {
                tracing::error!(namespace, quota = %name, %key, %value,
                    "invalid limit in ResourceQuota, nothing of the resource is allocated; expected: a whole number, without Ki, Mi or Gi");
            }
            if quota::scoped(object) {
                tracing::warn!(namespace, quota = %name, %key,
                    "scopes of ResourceQuota are not supported, its limit applies to every pod of the namespace");
            }
        }
        (namespace.into(), quota)
    }

    fn quota_changed(&self, namespace: Namespace, changed: bool) {
        if changed {
            self.add_capacity_event(CapacityEvent::Namespace(namespace));
        }
    }
}

impl Index<ResourceQuota> for LedgerCache {
    type Entry = (Namespace, Quota);

    fn entry(&self, object: ResourceQuota) -> Self::Entry {
        self.read_quota(&object)
    }

    fn apply(&self, object: ResourceQuota) {
        let (namespace, quota) = self.read_quota(&object);
        let name = quota.name.clone();
        let mut ledger = self.ledger.write();
        let changed = ledger.set_quota(&namespace, &name, Some(quota));
        drop(ledger);
        self.quota_changed(namespace, changed);
    }

    fn delete(&self, object: ResourceQuota) {
        let (namespace, quota) = self.read_quota(&object);
        let mut ledger = self.ledger.write();
        let changed = ledger.set_quota(&namespace, &quota.name, None);
        drop(ledger);
        self.quota_changed(namespace, changed);
    }

    fn replace(&self, quotas: Vec<(Namespace, Quota)>) {
        let mut all: BTreeMap<Namespace, Vec<Quota>> = BTreeMap::new();
        for (namespace, quota) in quotas {
            all.entry(namespace).or_default().push(quota);
        }
        let changed = self.ledger.write().set_quotas(all);
        for namespace in changed {
            self.quota_changed(namespace, true);
        }
    }
}

#[cfg(test)]
#[path = "quotas_tests.rs"]
mod tests;

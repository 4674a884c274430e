//! The watch of quotas, written into the books.
//!
//! Fed by: `aliquot_k8s::watch`.
//! Must not: forget a quota on anything but its deletion or a list without it.

use std::collections::BTreeMap;

use aliquot_core::Namespace;
use aliquot_core::quota::{Most, Quota};
use aliquot_k8s::quota;
use aliquot_k8s::watch::Index;
use k8s_openapi::api::core::v1::ResourceQuota;

use crate::books::Books;
use crate::grown::Where;

impl Books {
    /// The quota's namespace and what of it is ours; says aloud what is wrong with it.
    fn read_quota(&self, object: &ResourceQuota) -> (Namespace, Quota) {
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let quota = quota::quota(object, &self.settings().names);
        for limit in &quota.limits {
            let (name, key) = (&quota.name, &limit.key);
            if let Most::Unreadable(value) = &limit.most {
                tracing::error!(namespace, quota = %name, %key, %value,
                    "limit cannot be read, so nothing of it is given; accepted: a whole number, without Ki, Mi or Gi");
            }
            if quota::scoped(object) {
                tracing::warn!(namespace, quota = %name, %key,
                    "the quota's scopes are not read: this limit holds for every pod of the namespace");
            }
        }
        (namespace.into(), quota)
    }

    fn changed(&self, namespace: Namespace, changed: bool) {
        if changed {
            self.grow(Where::Namespace(namespace));
        }
    }
}

impl Index<ResourceQuota> for Books {
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
        self.changed(namespace, changed);
    }

    fn delete(&self, object: ResourceQuota) {
        let (namespace, quota) = self.read_quota(&object);
        let mut ledger = self.ledger.write();
        let changed = ledger.set_quota(&namespace, &quota.name, None);
        drop(ledger);
        self.changed(namespace, changed);
    }

    fn replace(&self, quotas: Vec<(Namespace, Quota)>) {
        let mut all: BTreeMap<Namespace, Vec<Quota>> = BTreeMap::new();
        for (namespace, quota) in quotas {
            all.entry(namespace).or_default().push(quota);
        }
        let changed = self.ledger.write().set_quotas(all);
        for namespace in changed {
            self.changed(namespace, true);
        }
    }
}

#[cfg(test)]
#[path = "quotas_tests.rs"]
mod tests;

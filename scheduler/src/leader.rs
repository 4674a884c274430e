//! Leadership of this replica: kube-scheduler's Lease and our own lists together.
//!
//! Fed by: a watch of the Lease, and what the pod watch says of its lists.
//! Must not: decide; [`Leadership`] does.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_k8s::leader::Leadership;
use aliquot_k8s::watch::{self, Freshness};
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::watcher;
use kube::{Api, Client};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::fail_point::{self, Point};

/// How often it is looked whether a new term needs a new list.
const EVERY: Duration = Duration::from_millis(100);

/// A Lease's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    namespace: String,
    name: String,
}

/// A text that names no Lease.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} names no lease; accepted: namespace/name")]
pub struct NotALease {
    value: String,
}

impl FromStr for LeaseName {
    type Err = NotALease;

    fn from_str(text: &str) -> Result<Self, NotALease> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(NotALease {
                value: text.to_owned(),
            }),
        }
    }
}

/// Whether this replica may write. Clones share one state.
#[derive(Clone, Debug)]
pub struct Leader {
    leadership: Arc<Leadership>,
    pods: Freshness,
}

impl Leader {
    /// Leads as `leadership` says. `pods` is the watch that the books rest on.
    pub fn new(leadership: Leadership, pods: Freshness) -> Self {
        Self {
            leadership: Arc::new(leadership),
            pods,
        }
    }

    /// The only replica: always leads.
    pub fn always() -> Self {
        Self::new(Leadership::always(), Freshness::default())
    }

    /// Why this replica may not write now, if it may not.
    pub fn fault(&self) -> Option<String> {
        self.leadership.fault(SystemTime::now(), self.pods.listed())
    }

    /// Watches the Lease until `stop`.
    pub async fn follow(self, client: Client, lease: LeaseName, stop: CancellationToken) {
        let leases: Api<Lease> = Api::namespaced(client, &lease.namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", lease.name));
        watch::drive(leases, config, self.leadership, Freshness::default(), stop).await;
    }

    /// Has the pods listed anew when a term has begun and an old leader's last
    /// request can no longer come; until `stop`.
    pub async fn list_for_each_term(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let Some(from) = self.leadership.list_from() else {
                continue;
            };
            let late = self.pods.listed().is_some_and(|listed| listed < from);
            if late && SystemTime::now() >= from {
                fail_point::at(Point::TermBeforeList);
                self.pods.relist(from);
                fail_point::at(Point::TermAfterList);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_named_by_namespace_and_name() {
        assert!(
            "aliquot-system/aliquot-scheduler"
                .parse::<LeaseName>()
                .is_ok()
        );
        for text in ["", "name", "/name", "namespace/"] {
            assert!(text.parse::<LeaseName>().is_err(), "{text:?}");
        }
    }
}

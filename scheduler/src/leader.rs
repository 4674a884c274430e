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
#[cfg(test)]
use k8s_openapi::api::coordination::v1::LeaseSpec;
#[cfg(test)]
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::runtime::watcher;
use kube::{Api, Client};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::fail_point::{self, Point};

/// How often it is looked whether a new term needs a new list, or has it.
const EVERY: Duration = Duration::from_millis(100);
/// Longest wait for a new term's list: an old leader's last request (3 s) and the
/// list itself. Well under kube-scheduler's `httpTimeout`.
const SETTLED: Duration = Duration::from_secs(8);

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

    /// Returns when this replica may write.
    pub async fn leads(&self) {
        self.until(|leader| leader.fault().is_none()).await;
    }

    /// Returns when this replica no longer waits for its new term's list, or at
    /// the latest when that takes much longer than it should.
    pub async fn settled(&self) {
        let settled = self.until(|leader| {
            let listed = leader.pods.listed();
            !leader.leadership.settles(SystemTime::now(), listed)
        });
        // Overdue: let the caller hear why.
        let _overdue = tokio::time::timeout(SETTLED, settled).await;
    }

    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        let mut ticks = tokio::time::interval(EVERY);
        while !reached(self) {
            ticks.tick().await;
        }
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
impl Leader {
    /// A replica `pod-a` whose lists are late enough for any term.
    pub(crate) fn replica() -> Self {
        let far = SystemTime::now() + Duration::from_hours(1);
        let leadership = Leadership::of("pod-a".to_owned(), Duration::ZERO);
        Self::new(leadership, Freshness::complete(far))
    }

    /// Shows it a lease that `holder` has just taken.
    pub(crate) fn held_by(&self, holder: &str) {
        let now = SystemTime::now().try_into().ok().map(MicroTime);
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            acquire_time: now.clone(),
            renew_time: now,
            ..LeaseSpec::default()
        };
        let lease = Lease {
            spec: Some(spec),
            ..Lease::default()
        };
        watch::Index::apply(&*self.leadership, lease);
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

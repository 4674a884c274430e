//! Leadership of this replica: kube-scheduler's Lease together with the age of our own lists. The
//! rules are [`Leadership`]'s.

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

/// Interval of checking whether a new term needs a new list, or has it.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for a new term's list: an old leader's last request (3 s) and the
/// list itself. Well under kube-scheduler's `httpTimeout`.
const SETTLED: Duration = Duration::from_secs(8);

/// A Lease's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    namespace: String,
    name: String,
}

/// An invalid name of a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{value:?} is not the name of a Lease; expected: namespace/name")]
pub struct InvalidLeaseName {
    value: String,
}

impl FromStr for LeaseName {
    type Err = InvalidLeaseName;

    fn from_str(text: &str) -> Result<Self, InvalidLeaseName> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(InvalidLeaseName {
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
    /// Leads as `leadership` says. `pods` is the watch that feeds the ledger.
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
    pub fn not_leading_reason(&self) -> Option<String> {
        self.leadership.error(SystemTime::now(), self.pods.listed())
    }

    /// Returns when this replica may write.
    pub async fn leads(&self) {
        self.until(|leader| leader.not_leading_reason().is_none())
            .await;
    }

    /// Returns when this replica no longer waits for its new term's list, or at
    /// the latest when that takes much longer than it should.
    pub async fn settled(&self) {
        let settled = self.until(|leader| {
            let listed = leader.pods.listed();
            !leader.leadership.settles(SystemTime::now(), listed)
        });
        // Overdue: the caller then gets the reason.
        let _overdue = tokio::time::timeout(SETTLED, settled).await;
    }

    async fn until(&self, reached: impl Fn(&Self) -> bool) {
        let mut ticks = tokio::time::interval(INTERVAL);
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

    /// Requests a new list of pods when a term has begun and an old leader's last request can no
    /// longer arrive; until `stop`.
    pub async fn list_for_each_term(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
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

    /// Shows it a Lease that `holder` has just acquired.
    pub(crate) fn set_holder(&self, holder: &str) {
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
    fn parses_lease_as_namespace_and_name() {
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

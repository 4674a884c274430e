//! Which scheduler replica may bind.
//!
//!
//! Each replica is one pod with kube-scheduler beside the extender, and only the
//! kube-scheduler that holds its Lease sends pods. The extender reads that same Lease: it
//! binds while the holder is the kube-scheduler of its own pod and has renewed within two
//! thirds of the Lease's duration. Both read the clock of one machine. The extender never
//! takes or renews the Lease itself.

use std::time::{Duration, SystemTime};

use k8s_openapi::api::coordination::v1::Lease;
use parking_lot::RwLock;

use crate::watch::Index;

/// Kubernetes' default for a Lease without a duration, in seconds.
const DURATION: i32 = 15;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    holder: String,
    acquired: SystemTime,
    renewed: SystemTime,
    /// How long after a renewal its holder may write. Nobody else takes the Lease before
    /// its whole duration; the last third is for a process that is delayed between checking
    /// and writing. It is kube-scheduler's own proportion (`renewDeadline` 10 s of 15 s).
    deadline: Duration,
}

/// The Lease as last observed.
#[derive(Debug)]
pub struct Leadership {
    /// The identity of this pod's kube-scheduler up to its `_`; `None` for a single
    /// replica.
    me: Option<String>,
    /// How long a Binding of an old leader may still be under way.
    settling: Duration,
    term: RwLock<Option<Term>>,
}

impl Leadership {
    /// For a single replica. What a killed predecessor may still have under way is left to
    /// the node's own check (ARCHITECTURE.md, Failure).
    pub fn always() -> Self {
        Self {
            me: None,
            settling: Duration::ZERO,
            term: RwLock::default(),
        }
    }

    /// Leads while the holder is `me`, or `me` with kube-scheduler's `_<uuid>`. `settling`
    /// is the longest that an old leader's last request can take.
    pub fn of(me: String, settling: Duration) -> Self {
        Self {
            me: Some(me),
            settling,
            ..Self::always()
        }
    }

    /// Why this replica may not write now; `None` if it may. `listed` is when the list of
    /// pods that the ledger is based on was begun.
    pub fn error(&self, now: SystemTime, listed: Option<SystemTime>) -> Option<String> {
        let new = || "the lease is new: listing what the old leader may have bound".to_owned();
        let lease_error = self.lease_error(now);
        lease_error.or_else(|| self.awaits_list(listed).then(new))
    }

    /// Whether only a recent enough list is missing.
    pub fn settles(&self, now: SystemTime, listed: Option<SystemTime>) -> bool {
        self.lease_error(now).is_none() && self.awaits_list(listed)
    }

    fn awaits_list(&self, listed: Option<SystemTime>) -> bool {
        let from = self.list_from();
        self.me.is_some() && from.is_some_and(|from| listed.is_none_or(|listed| listed < from))
    }

    /// Why this pod's kube-scheduler does not hold the lease, if it does not.
    fn lease_error(&self, now: SystemTime) -> Option<String> {
        let me = self.me.as_ref()?;
        let term = self.term.read();
        let Some(term) = &*term else {
            return Some("no kube-scheduler holds the lease".to_owned());
        };
        let rest = term.holder.strip_prefix(me.as_str());
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_')) {
            return Some(format!("{} holds the lease, this is {me}", term.holder));
        }
        if now >= term.renewed + term.deadline {
            return Some("the lease was not renewed within its deadline".to_owned());
        }
        None
    }

    /// When a list must have begun to be recent enough for the present term.
    pub fn list_from(&self) -> Option<SystemTime> {
        let acquired = self.term.read().as_ref()?.acquired;
        Some(acquired + self.settling)
    }
}

fn term(lease: Lease) -> Option<Term> {
    let spec = lease.spec?;
    let duration = spec.lease_duration_seconds.unwrap_or(DURATION);
    Some(Term {
        deadline: Duration::from_secs(u64::try_from(duration).ok()?) * 2 / 3,
        holder: spec.holder_identity.filter(|holder| !holder.is_empty())?,
        acquired: spec.acquire_time?.0.into(),
        renewed: spec.renew_time?.0.into(),
    })
}

impl Index<Lease> for Leadership {
    type Entry = Lease;

    fn entry(&self, lease: Lease) -> Lease {
        lease
    }

    fn apply(&self, lease: Lease) {
        *self.term.write() = term(lease);
    }

    fn delete(&self, _: Lease) {
        *self.term.write() = None;
    }

    fn replace(&self, leases: Vec<Lease>) {
        *self.term.write() = leases.into_iter().next().and_then(term);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: u64) -> SystemTime {
        // 2026-11-21T00:00:00Z
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_219_200 + second)
    }

    /// The lease of `holder`, acquired at second 0 and renewed at second 20.
    fn check(holder: &str, now: u64, listed: Option<u64>, expected: Option<&str>) {
        for seconds in [json!(15), json!(null)] {
            check_lasting(&seconds, holder, now, listed, expected);
        }
    }

    fn check_lasting(
        seconds: &serde_json::Value,
        holder: &str,
        now: u64,
        listed: Option<u64>,
        expected: Option<&str>,
    ) {
        let leadership = Leadership::of("pod-a".to_owned(), Duration::from_secs(3));
        leadership.apply(
            serde_json::from_value(json!({"spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": seconds,
                "acquireTime": "2026-11-21T00:00:00.000000Z",
                "renewTime": "2026-11-21T00:00:20.000000Z",
            }}))
            .unwrap(),
        );
        let listed = listed.map(at);
        let error = leadership.error(at(now), listed);
        assert_eq!(error.as_deref(), expected, "{holder} {now} {listed:?}");
        let settles = error.is_some_and(|error| error.starts_with("the lease is new"));
        assert_eq!(
            leadership.settles(at(now), listed),
            settles,
            "{holder} {now}"
        );
    }

    #[test]
    fn binds_only_while_its_kube_scheduler_renews_the_lease() {
        let late = Some("the lease was not renewed within its deadline");
        let new = Some("the lease is new: listing what the old leader may have bound");
        check("pod-a_1234", 21, Some(3), None);
        check("pod-a", 29, Some(3), None);
        check("pod-a_1234", 30, Some(3), late);
        check("pod-a_1234", 21, Some(2), new);
        check("pod-a_1234", 21, None, new);
        check(
            "pod-ab_1234",
            21,
            Some(9),
            Some("pod-ab_1234 holds the lease, this is pod-a"),
        );
        check("", 21, Some(9), Some("no kube-scheduler holds the lease"));
    }

    #[test]
    fn binds_for_two_thirds_of_the_lease_duration() {
        let late = Some("the lease was not renewed within its deadline");
        check_lasting(&json!(6), "pod-a_1", 23, Some(3), None);
        check_lasting(&json!(6), "pod-a_1", 24, Some(3), late);
        check_lasting(&json!(60), "pod-a_1", 59, Some(3), None);
        let none = Some("no kube-scheduler holds the lease");
        check_lasting(&json!(-1), "pod-a_1", 20, Some(3), none);
    }

    #[test]
    fn single_replica_always_leads() {
        assert_eq!(Leadership::always().error(at(0), None), None);
    }
}

//! Leadership of this replica: which scheduler replica may bind, and from when.
//!
//! Each replica is one pod with kube-scheduler beside the extender, and only the kube-scheduler
//! that holds its Lease sends pods. The extender reads that same Lease: it binds while the holder
//! is the kube-scheduler of its own pod and has renewed within two thirds of the Lease's duration,
//! and once its own list of pods is recent enough. Both read the clock of one machine. The extender
//! never takes or renews the Lease itself.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aliquot_k8s::watch::{self, Freshness, Index};
use aliquot_serve::fail_point;
use k8s_openapi::api::coordination::v1::Lease;
#[cfg(test)]
use k8s_openapi::api::coordination::v1::LeaseSpec;
#[cfg(test)]
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::{Api, Client};
use parking_lot::RwLock;
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ticks::Ticks;

/// Kubernetes' default for a Lease without a duration, in seconds.
const DURATION: i32 = 15;

/// Interval of checking whether a new term needs a new list, or has it.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for a new term's list: an old leader's last request (3 s) and the
/// list itself. Well under kube-scheduler's `httpTimeout`.
const SETTLED: Duration = Duration::from_secs(8);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    namespace: String,
    name: String,
}

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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    holder: String,
    acquired: SystemTime,
    renewed: SystemTime,
    /// When it began, by a clock that is never set.
    begun: Instant,
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
    /// For a single replica. The node's own check catches what a killed predecessor may still have
    /// under way (ARCHITECTURE.md, Failure).
    pub fn always() -> Self {
        Self {
            me: None,
            settling: Duration::ZERO,
            term: RwLock::default(),
        }
    }

    /// Leads while the holder is `me`, or `me` with kube-scheduler's `_<uuid>`. `settling`
    /// is the longest that an old leader's last request can take.
    pub fn new(me: String, settling: Duration) -> Self {
        Self {
            me: Some(me),
            settling,
            ..Self::always()
        }
    }

    /// Why this replica may not write now; `None` if it may. `listed` is when the list of
    /// pods that the ledger is based on was begun.
    pub fn error(&self, now: SystemTime, listed: Option<Instant>) -> Option<String> {
        let new = || "the lease is new: listing what the old leader may have bound".to_owned();
        let lease_error = self.lease_error(now);
        lease_error.or_else(|| self.awaits_list(listed).then(new))
    }

    /// Whether only a recent enough list is missing.
    pub fn settles(&self, now: SystemTime, listed: Option<Instant>) -> bool {
        self.lease_error(now).is_none() && self.awaits_list(listed)
    }

    fn awaits_list(&self, listed: Option<Instant>) -> bool {
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

    /// The earliest time at which a list may have begun to be recent enough for the present term.
    pub fn list_from(&self) -> Option<Instant> {
        let begun = self.term.read().as_ref()?.begun;
        Some(begun + self.settling)
    }

    fn observe(&self, lease: Option<Lease>) {
        let mut known = self.term.write();
        let shown = lease.and_then(|lease| term(lease, known.as_ref()));
        *known = shown;
    }
}

/// The term that the lease shows; `last` is what it showed before.
fn term(lease: Lease, last: Option<&Term>) -> Option<Term> {
    let spec = lease.spec?;
    let duration = spec.lease_duration_seconds.unwrap_or(DURATION);
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty())?;
    let acquired: SystemTime = spec.acquire_time?.0.into();
    let same = last.filter(|last| last.holder == holder && last.acquired == acquired);
    Some(Term {
        deadline: Duration::from_secs(u64::try_from(duration).ok()?) * 2 / 3,
        renewed: spec.renew_time?.0.into(),
        begun: same.map_or_else(|| begun(acquired), |last| last.begun),
        holder,
        acquired,
    })
}

/// When a term began that is seen for the first time. Where that is still to come, the clock was ahead
/// and has been set back: it began just now.
fn begun(acquired: SystemTime) -> Instant {
    let now = Instant::now();
    let age = acquired.elapsed().unwrap_or_default();
    now.checked_sub(age).unwrap_or(now)
}

impl Index<Lease> for Leadership {
    type Entry = Lease;

    fn entry(&self, lease: Lease) -> Lease {
        lease
    }

    fn apply(&self, lease: Lease) {
        self.observe(Some(lease));
    }

    fn delete(&self, _: Lease) {
        self.observe(None);
    }

    fn replace(&self, leases: Vec<Lease>) {
        self.observe(leases.into_iter().next());
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
    pub fn new(leadership: impl Into<Arc<Leadership>>, pods: Freshness) -> Self {
        Self {
            leadership: leadership.into(),
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

    /// Whether this replica may write now.
    pub fn leads(&self) -> bool {
        self.not_leading_reason().is_none()
    }

    /// Waits for the next tick at which this replica may write; `false` at the end.
    pub async fn next_tick(&self, ticks: &mut Ticks) -> bool {
        while ticks.next().await {
            if self.leads() {
                return true;
            }
        }
        false
    }

    /// Returns when this replica may write.
    pub async fn until_leading(&self) {
        self.until(Self::leads).await;
    }

    /// Returns when this replica no longer waits for its new term's list, or when that takes much
    /// longer than it should.
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

    pub async fn follow(self, client: Client, lease: LeaseName, stop: CancellationToken) {
        let leases: Api<Lease> = Api::namespaced(client, &lease.namespace);
        let name = Some(format!("metadata.name={}", lease.name));
        watch::drive::<Lease, Lease>(leases, name, self.leadership, Freshness::default(), stop)
            .await;
    }

    /// Requests a new list of pods when a term has begun and an old leader's last request can no
    /// longer arrive; until `stop`.
    pub async fn list_for_each_term(self, stop: CancellationToken) {
        let mut ticks = Ticks::every(INTERVAL, &stop);
        while ticks.next().await {
            let Some(from) = self.leadership.list_from() else {
                continue;
            };
            let late = self.pods.listed().is_some_and(|listed| listed < from);
            if late && Instant::now() >= from {
                fail_point::at("TermBeforeList");
                self.pods.relist(from);
                fail_point::at("TermAfterList");
            }
        }
    }
}

#[cfg(test)]
impl Leader {
    /// A replica `pod-a` whose lists are late enough for any term.
    pub(crate) fn replica() -> Self {
        let far = Instant::now() + Duration::from_hours(1);
        let leadership = Leadership::new("pod-a".to_owned(), Duration::ZERO);
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
        Index::apply(&*self.leadership, lease);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    const SETTLING: Duration = Duration::from_secs(3);

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
        let leadership = Leadership::new("pod-a".to_owned(), SETTLING);
        leadership.apply(
            serde_json::from_value(json!({"spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": seconds,
                "acquireTime": "2026-11-21T00:00:00.000000Z",
                "renewTime": "2026-11-21T00:00:20.000000Z",
            }}))
            .unwrap(),
        );
        let begun = leadership.list_from().map(|from| from - SETTLING);
        let listed = begun.zip(listed);
        let listed = listed.map(|(begun, second)| begun + Duration::from_secs(second));
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

    /// A machine that boots may have its clock ahead, and set it back while its kube-scheduler leads.
    #[test]
    fn clock_that_is_set_back_delays_no_leader() {
        let leadership = Leadership::new("pod-a".to_owned(), SETTLING);
        let now = SystemTime::now();
        let time = |time: SystemTime| time.try_into().ok().map(MicroTime);
        let lease = || Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some("pod-a_1".to_owned()),
                acquire_time: time(now + Duration::from_hours(2)),
                renew_time: time(now),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let seen = Instant::now();
        leadership.apply(lease());
        assert!(leadership.error(now, Some(seen)).is_some(), "too early");
        let settled = Instant::now() + SETTLING;
        assert_eq!(leadership.error(now, Some(settled)), None);
        let from = leadership.list_from();
        leadership.apply(lease());
        assert_eq!(leadership.list_from(), from, "the same term");
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
}

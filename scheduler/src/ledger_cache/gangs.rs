//! The gangs of kube-scheduler's own gang scheduling, and what is reserved for them.
//!
//! kube-scheduler calls filter for every member of a gang before it binds any, and reports neither
//! that a gang failed nor how many members it needs. So filter reserves each member's share until
//! its Binding, and what is reserved for a gang is given back whole, after a time without calls. A
//! member is bound only with its reservation: a gang that was given back is not bound at all. A gang
//! whose Bindings were interrupted has members that are bound, and its others come first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aliquot_core::ledger::{Purpose, Reservation};
use aliquot_core::{Demand, Namespace, NodeName, PodUid, Refusal};
use aliquot_k8s::{pod, slim};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::LedgerCache;
use crate::ticks::Ticks;

/// From a gang's last filter call to its first Binding, at most: kube-scheduler binds a gang right
/// after its last member's filter call.
const UNTIL_BINDING: Duration = Duration::from_secs(5);
/// The same where filter refused a member: it is likely that the gang failed.
const UNTIL_BINDING_AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// From one Binding of a gang to its next: kube-scheduler repeats a failed one within ten seconds.
const BETWEEN_BINDINGS: Duration = Duration::from_secs(30);
/// How long after a member's deletion kube-scheduler may call filter for it.
const AFTER_DELETION: Duration = Duration::from_mins(1);
/// Interval of checking which reservations have expired.
const INTERVAL: Duration = Duration::from_millis(100);

/// A gang: namespace and name of its `PodGroup`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GangName {
    /// The namespace.
    pub namespace: Namespace,
    /// The name.
    pub name: String,
}

impl GangName {
    /// The gang of a slim pod.
    pub fn of(slim: &Pod) -> Option<Self> {
        let name = slim::scheduling_group(slim)?;
        Some(Self {
            namespace: pod::namespace(slim),
            name: name.to_owned(),
        })
    }
}

#[derive(Debug)]
struct Gang {
    /// Members with a reservation that may be bound.
    reserved: HashSet<PodUid>,
    /// Members that the last filter call for them refused.
    refused: HashSet<PodUid>,
    /// Members that the watch shows bound.
    bound: HashSet<PodUid>,
    filtered: Instant,
    /// When the last Binding was requested.
    binding: Option<Instant>,
}

impl Gang {
    fn new(now: Instant) -> Self {
        Self {
            reserved: HashSet::new(),
            refused: HashSet::new(),
            bound: HashSet::new(),
            filtered: now,
            binding: None,
        }
    }

    /// When what is reserved for it expires.
    fn until(&self) -> Instant {
        let after_filter = if self.refused.is_empty() {
            UNTIL_BINDING
        } else {
            UNTIL_BINDING_AFTER_REFUSAL
        };
        let until = self.filtered + after_filter;
        let binding = self.binding.map(|last| last + BETWEEN_BINDINGS);
        binding.map_or(until, |binding| until.max(binding))
    }
}

/// The gangs with a member that is bound, or has a reservation.
#[derive(Debug, Default)]
pub(crate) struct Gangs {
    all: Mutex<HashMap<GangName, Gang>>,
    /// Members that were deleted a short time ago: kube-scheduler may still call filter for them.
    deleted: Mutex<HashMap<PodUid, Instant>>,
    /// A list was read since [`LedgerCache::reserve_for_unfinished_gangs`].
    listed: AtomicBool,
}

impl Gangs {
    /// `change` may use the ledger, not the pending pods: whoever has their lock waits for the gangs.
    fn with<T>(&self, name: &GangName, change: impl FnOnce(&mut Gang) -> T) -> T {
        let mut all = self.all.lock();
        let gang = all.entry(name.clone());
        change(gang.or_insert_with(|| Gang::new(Instant::now())))
    }

    /// The watch shows this member bound, or ended.
    pub(super) fn observe(&self, name: &GangName, member: &PodUid, bound: bool) {
        let mut all = self.all.lock();
        if let Some(gang) = all.get_mut(name) {
            for members in [&mut gang.bound, &mut gang.reserved, &mut gang.refused] {
                members.remove(member);
            }
        }
        if bound {
            let gang = all.entry(name.clone());
            let gang = gang.or_insert_with(|| Gang::new(Instant::now()));
            gang.bound.insert(member.clone());
        }
    }

    /// The watch shows that this member is deleted.
    pub(super) fn delete(&self, name: &GangName, member: &PodUid) {
        let now = Instant::now();
        self.deleted.lock().insert(member.clone(), now);
        self.observe(name, member, false);
    }

    /// A list follows, which shows all bound members again.
    pub(super) fn list(&self) {
        for gang in self.all.lock().values_mut() {
            gang.bound.clear();
        }
        self.listed.store(true, Ordering::Release);
    }

    /// Whether a member is bound: the others need not wait for each other.
    pub(crate) fn is_started(&self, name: &GangName) -> bool {
        let all = self.all.lock();
        all.get(name).is_some_and(|gang| !gang.bound.is_empty())
    }

    /// Removes the gangs whose time is over, and releases what is reserved for their members: in one
    /// step, because filter may reserve for a member again at this moment.
    fn expire(&self, now: Instant, release: impl Fn(&PodUid)) {
        let recent = |deleted: &Instant| *deleted + AFTER_DELETION > now;
        self.deleted.lock().retain(|_, deleted| recent(deleted));
        self.all.lock().retain(|_, gang| {
            if gang.until() <= now {
                gang.reserved.drain().for_each(|member| release(&member));
                gang.refused.clear();
            }
            !(gang.bound.is_empty() && gang.reserved.is_empty() && gang.refused.is_empty())
        });
    }
}

impl LedgerCache {
    /// Reserves a member's share on the first of these nodes that can take it, and returns the
    /// node; what was reserved for the member before is free.
    pub fn reserve_for_gang<'n>(
        &self,
        gang: &GangName,
        member: (&PodUid, &Demand),
        nodes: Vec<&'n str>,
    ) -> Result<&'n str, Refusal> {
        let (uid, demand) = member;
        let policies = self.policies();
        self.end_claim(uid);
        let mut refusal = Refusal::default();
        for node in nodes {
            let name: NodeName = node.into();
            let (old, reserved) = self.gangs.with(gang, |members| {
                let mut ledger = self.ledger.write();
                let old = ledger.reservation_for(uid).cloned();
                let namespace = &gang.namespace;
                let reserved = ledger.reserve_for_gang(uid, namespace, &name, demand, &policies);
                if reserved.is_ok() {
                    members.reserved.insert(uid.clone());
                    members.refused.remove(uid);
                    members.filtered = Instant::now();
                }
                let moved = old.filter(|old| ledger.reservation_for(uid) != Some(old));
                (moved, reserved)
            });
            match reserved {
                Ok(()) => {
                    if let Some(old) = old {
                        self.reservation_freed(&old);
                    }
                    if self.gangs.deleted.lock().contains_key(uid) {
                        self.gangs.observe(gang, uid, false);
                        self.release_gang_reservation(uid);
                    }
                    return Ok(node);
                }
                // Another pod took it since the snapshot.
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    /// Filter refused this member on every node.
    pub fn refuse_in_gang(&self, gang: &GangName, member: &PodUid) {
        self.gangs.with(gang, |gang| {
            gang.reserved.remove(member);
            gang.refused.insert(member.clone());
            gang.filtered = Instant::now();
            self.release_gang_reservation(member);
        });
    }

    /// A member is about to be bound; `false` where nothing is reserved for it, and it must not be.
    pub fn begin_gang_binding(&self, gang: &GangName, member: &PodUid) -> bool {
        let planned = |own: &Reservation| matches!(own.purpose, Purpose::Preemption { .. });
        let known = self.read(|ledger| {
            ledger.pod_entry(member).is_some()
                || ledger.reservation_for(member).is_some_and(planned)
        });
        // In one step: from here on nothing of the gang expires.
        self.gangs.with(gang, |gang| {
            let may = known || gang.reserved.contains(member);
            if may {
                gang.binding = Some(Instant::now());
            }
            may
        })
    }

    /// After a list, the first filter call reserves for the pending members of gangs with bound
    /// ones: an earlier process may have ended between two Bindings of the gang.
    pub fn reserve_for_unfinished_gangs(&self) {
        if !self.gangs.listed.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut pending: Vec<_> = {
            let all = self.pending.pods.lock();
            let members = all.iter().filter_map(|(uid, pending)| {
                let gang: GangName = pending.gang.clone()?;
                Some((gang, uid.clone(), pending.clone()))
            });
            members.collect()
        };
        pending.retain(|(gang, uid, _)| {
            self.gangs.is_started(gang)
                && self.read(|ledger| {
                    ledger.pod_entry(uid).is_none() && ledger.reservation_for(uid).is_none()
                })
        });
        pending.sort_by(|(a, x, _), (b, y, _)| a.cmp(b).then_with(|| x.cmp(y)));
        for (gang, uid, waiting) in pending {
            let view = self.view(&uid, gang.namespace.as_str());
            let names = view.0.iter();
            let names = names.filter(|(slot, _, _)| waiting.offered.contains(*slot));
            let names: Vec<NodeName> = names.map(|(_, name, _)| name.clone()).collect();
            let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
            let Ok(nodes) = self.best(&view, &uid, &waiting.demand, &names, names.len()) else {
                continue;
            };
            let reserved = self.reserve_for_gang(&gang, (&uid, &waiting.demand), nodes);
            if reserved.is_ok() {
                tracing::info!(
                    pod = waiting.pod.name,
                    namespace = waiting.pod.namespace,
                    gang = gang.name,
                    "reserved for a pending member of a gang with bound ones"
                );
                self.gangs
                    .with(&gang, |gang| gang.binding = Some(Instant::now()));
            }
        }
    }

    /// Gives back what is reserved for gangs whose time is over.
    pub(crate) fn expire_gangs(&self, now: Instant) {
        self.gangs
            .expire(now, |member| self.release_gang_reservation(member));
    }

    /// The same at an interval until `stop`.
    pub async fn expire_gangs_until(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = Ticks::every(INTERVAL, &stop);
        while ticks.next().await {
            self.expire_gangs(Instant::now());
        }
    }

    fn release_gang_reservation(&self, member: &PodUid) {
        let of_gang = |own: &Reservation| matches!(own.purpose, Purpose::Gang(_));
        if self.read(|ledger| ledger.reservation_for(member).is_some_and(of_gang)) {
            self.release_reservation(member);
        }
    }
}

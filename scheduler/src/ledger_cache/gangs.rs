//! The gangs of kube-scheduler's own gang scheduling, and when what is assumed for them is forgotten.
//!
//! kube-scheduler calls filter for every member of a gang before it binds any, and reports neither
//! that a gang failed nor how many members it needs. So what is assumed for a gang is forgotten
//! whole, after a time without calls. A member is bound only with what was assumed for it: a gang
//! that was forgotten is not bound at all. A gang whose Bindings were interrupted has members that
//! are bound, and its others come first.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use aliquot_core::ledger::{By, PodEntry};
use aliquot_core::{Namespace, PodUid};
use aliquot_k8s::view::PodView;
use tokio::time::Instant;

use super::State;

/// From a gang's last filter call to its first Binding, at most: kube-scheduler binds a gang right
/// after its last member's filter call.
const UNTIL_BINDING: Duration = Duration::from_secs(5);
/// The same where filter refused a member: it is likely that the gang failed.
const UNTIL_BINDING_AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// From one Binding of a gang to its next: kube-scheduler repeats a failed one within ten seconds.
const BETWEEN_BINDINGS: Duration = Duration::from_secs(30);

/// A gang: namespace and name of its `PodGroup`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GangName {
    pub namespace: Namespace,
    pub name: String,
}

impl GangName {
    pub fn read(pod: &PodView) -> Option<Self> {
        let name = pod.scheduling_group()?;
        Some(Self {
            namespace: pod.namespace(),
            name: name.to_owned(),
        })
    }
}

#[derive(Debug)]
struct Gang {
    /// Members for which a share is assumed: they may be bound.
    assumed: HashSet<PodUid>,
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
            assumed: HashSet::new(),
            refused: HashSet::new(),
            bound: HashSet::new(),
            filtered: now,
            binding: None,
        }
    }

    /// When what is assumed for it expires.
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

/// The gangs with a member that is bound, or for which a share is assumed.
#[derive(Debug, Default)]
pub(crate) struct Gangs {
    all: HashMap<GangName, Gang>,
    /// A list was read since [`State::assume_for_unfinished_gangs`].
    pub(super) listed: bool,
}

impl Gangs {
    fn get(&mut self, name: &GangName, now: Instant) -> &mut Gang {
        let gang = self.all.entry(name.clone());
        gang.or_insert_with(|| Gang::new(now))
    }

    /// The watch shows this member bound, or ended.
    pub(super) fn observe(&mut self, name: &GangName, member: &PodUid, bound: bool) {
        if let Some(gang) = self.all.get_mut(name) {
            for members in [&mut gang.bound, &mut gang.assumed, &mut gang.refused] {
                members.remove(member);
            }
        }
        if bound {
            let gang = self.get(name, Instant::now());
            gang.bound.insert(member.clone());
        }
    }

    /// A list follows, which shows all bound members again.
    pub(super) fn list(&mut self) {
        for gang in self.all.values_mut() {
            gang.bound.clear();
        }
        self.listed = true;
    }

    /// Filter has assumed a share for this member.
    pub(super) fn assume(&mut self, name: &GangName, member: &PodUid, now: Instant) {
        let gang = self.get(name, now);
        gang.assumed.insert(member.clone());
        gang.refused.remove(member);
        gang.filtered = now;
    }

    /// Filter refused this member on every node.
    pub(super) fn refuse(&mut self, name: &GangName, member: &PodUid, now: Instant) {
        let gang = self.get(name, now);
        gang.assumed.remove(member);
        gang.refused.insert(member.clone());
        gang.filtered = now;
    }

    /// A member is being bound.
    pub(super) fn bind(&mut self, name: &GangName, now: Instant) {
        self.get(name, now).binding = Some(now);
    }

    /// Whether a share is assumed for this pod as a member.
    pub(super) fn assumes(&self, member: &PodUid) -> bool {
        let mut all = self.all.values();
        all.any(|gang| gang.assumed.contains(member))
    }

    /// Whether a member is bound: the others need not wait for each other.
    pub(crate) fn is_started(&self, name: &GangName) -> bool {
        let gang = self.all.get(name);
        gang.is_some_and(|gang| !gang.bound.is_empty())
    }

    /// The gangs with a bound member.
    pub(crate) fn started(&self) -> HashSet<GangName> {
        let started = self.all.iter().filter(|(_, gang)| !gang.bound.is_empty());
        started.map(|(name, _)| name.clone()).collect()
    }

    /// Removes the gangs whose time is over, and returns the members for which a share is assumed.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<PodUid> {
        let mut expired = Vec::new();
        self.all.retain(|_, gang| {
            if gang.until() <= now {
                expired.extend(gang.assumed.drain());
                gang.refused.clear();
            }
            !(gang.bound.is_empty() && gang.assumed.is_empty() && gang.refused.is_empty())
        });
        expired
    }
}

impl State {
    /// A member is about to be bound; `false` where nothing is assumed for it, and it must not be.
    pub(crate) fn begin_gang_binding(&mut self, gang: &GangName, member: &PodUid) -> bool {
        let by = self.ledger.assumed(member).and_then(PodEntry::assumed_by);
        let known = matches!(by, Some(By::Plan { .. })) || self.ledger.pod_entry(member).is_some();
        let may = known || self.gangs.assumes(member);
        if may {
            self.gangs.bind(gang, Instant::now());
        }
        may
    }
}

//! Shares kept for pods that wait until others have ended (design 6, Preemption).
//!
//! A hold counts on its cards for everybody but the pod it is for, until that
//! pod has a booking, wherever.
//! Fed by: the scheduler, from plans and from the annotation that carries them.
//! Must not: outlive its pod's end; who makes it takes it away.

use super::{Arc, Held, Ledger};
use crate::id::{NodeName, PodUid};
use crate::node::NodeState;
use crate::seats::Seats;

/// A share that is kept for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Where.
    pub node: NodeName,
    /// What of its cards.
    pub held: Held,
    /// What of its kubelet's seats.
    pub seats: Seats,
    /// The pod's annotation says so; otherwise this process alone knows.
    pub written: bool,
}

impl Ledger {
    /// Keeps this for the pod; what was held for it before is free.
    pub fn hold(&mut self, pod: &PodUid, hold: Hold) {
        if let Some(old) = self.holds.get_mut(pod) {
            if (&old.node, &old.held, &old.seats) == (&hold.node, &hold.held, &hold.seats) {
                old.written = hold.written;
                return;
            }
            self.unhold(pod);
        }
        let node = hold.node.clone();
        let entry = self.entries.entry(node.clone()).or_default();
        entry.holds.insert(pod.clone());
        self.holds.insert(pod.clone(), hold);
        self.refresh(&node);
    }

    /// Keeps nothing for the pod any more, and says what was kept.
    pub fn unhold(&mut self, pod: &PodUid) -> Option<Hold> {
        let hold = self.holds.remove(pod)?;
        if let Some(entry) = self.entries.get_mut(&hold.node) {
            entry.holds.remove(pod);
        }
        self.refresh(&hold.node);
        Some(hold)
    }

    /// What is kept for the pod.
    pub fn held_for(&self, pod: &PodUid) -> Option<&Hold> {
        self.holds.get(pod)
    }

    /// Every hold.
    pub fn holds(&self) -> impl Iterator<Item = (&PodUid, &Hold)> {
        self.holds.iter()
    }

    /// The pods that something of a node is kept for.
    pub fn holds_on(&self, name: &str) -> impl Iterator<Item = &PodUid> {
        self.entries.get(name).into_iter().flat_map(|e| &e.holds)
    }

    /// The node's slot and how it looks to a pod that something of it is kept for.
    pub fn own(&self, pod: &PodUid) -> Option<(usize, NodeState)> {
        let hold = self.holds.get(pod)?;
        let slot = self.cluster.slot(hold.node.as_str())?;
        let entry = self.entries.get(&hold.node)?;
        Some((slot, self.state(entry, Some(pod))))
    }

    /// The node as this pod sees it.
    pub(super) fn seen_by(&self, pod: &PodUid, name: &str) -> Option<Arc<NodeState>> {
        match (self.own(pod), self.cluster.slot(name)) {
            (Some((slot, own)), Some(here)) if slot == here => Some(Arc::new(own)),
            _ => self.cluster.node(name).cloned(),
        }
    }

    /// The pod was booked, or is no longer: what is held for it counts no
    /// longer, or again.
    pub(super) fn refresh_hold(&mut self, pod: &PodUid) {
        if let Some(hold) = self.holds.get(pod) {
            let node = hold.node.clone();
            self.refresh(&node);
        }
    }
}

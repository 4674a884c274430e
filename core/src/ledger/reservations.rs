//! Reservations for preemptors, which wait until their victims have ended.
//!
//!
//! A reservation takes capacity from every pod but its preemptor, until that pod has an
//! entry on any node. The scheduler makes it from a plan, or from the annotation that
//! records one, and removes it.

use super::{AllocatedUse, Arc, Ledger};
use crate::id::{NodeName, PodUid};
use crate::node::NodeState;
use crate::replicas::Replicas;

/// A share that is reserved for a preemptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionReservation {
    /// The node.
    pub node: NodeName,
    /// What is reserved of its devices.
    pub allocated: AllocatedUse,
    /// What is reserved of its kubelet's replicas.
    pub replicas: Replicas,
    /// The pod's annotation records it; otherwise only this process knows it.
    pub recorded: bool,
}

impl Ledger {
    /// Reserves this for the pod in place of an earlier reservation.
    pub fn reserve_for_preemptor(&mut self, pod: &PodUid, reservation: PreemptionReservation) {
        if let Some(old) = self.reservations.get_mut(pod) {
            if (&old.node, &old.allocated, &old.replicas)
                == (
                    &reservation.node,
                    &reservation.allocated,
                    &reservation.replicas,
                )
            {
                old.recorded = reservation.recorded;
                return;
            }
            self.drop_reservation(pod);
        }
        let node = reservation.node.clone();
        let entry = self.entries.entry(node.clone()).or_default();
        entry.reservations.insert(pod.clone());
        self.reservations.insert(pod.clone(), reservation);
        self.refresh(&node);
    }

    /// Removes the pod's reservation and returns it.
    pub fn drop_reservation(&mut self, pod: &PodUid) -> Option<PreemptionReservation> {
        let reservation = self.reservations.remove(pod)?;
        if let Some(entry) = self.entries.get_mut(&reservation.node) {
            entry.reservations.remove(pod);
        }
        self.refresh(&reservation.node);
        Some(reservation)
    }

    /// The pod's reservation.
    pub fn reservation_for(&self, pod: &PodUid) -> Option<&PreemptionReservation> {
        self.reservations.get(pod)
    }

    /// Every reservation.
    pub fn reservations(&self) -> impl Iterator<Item = (&PodUid, &PreemptionReservation)> {
        self.reservations.iter()
    }

    /// The pods with a reservation on a node.
    pub fn reservations_on(&self, name: &str) -> impl Iterator<Item = &PodUid> {
        self.entries
            .get(name)
            .into_iter()
            .flat_map(|e| &e.reservations)
    }

    /// The slot of the node with the pod's reservation, and the node's state without that
    /// reservation.
    pub fn node_seen_by_preemptor(&self, pod: &PodUid) -> Option<(usize, NodeState)> {
        let reservation = self.reservations.get(pod)?;
        let slot = self.cluster.slot(reservation.node.as_str())?;
        let entry = self.entries.get(&reservation.node)?;
        Some((slot, self.state(entry, Some(pod))))
    }

    /// The node as this pod sees it.
    pub(super) fn node_for(&self, pod: &PodUid, name: &str) -> Option<Arc<NodeState>> {
        match (self.node_seen_by_preemptor(pod), self.cluster.slot(name)) {
            (Some((slot, node_seen_by_preemptor)), Some(here)) if slot == here => {
                Some(Arc::new(node_seen_by_preemptor))
            }
            _ => self.cluster.node(name).cloned(),
        }
    }

    /// The pod gained or lost an entry, so its reservation counts no longer, or again.
    pub(super) fn refresh_reservation(&mut self, pod: &PodUid) {
        if let Some(reservation) = self.reservations.get(pod) {
            let node = reservation.node.clone();
            self.refresh(&node);
        }
    }
}

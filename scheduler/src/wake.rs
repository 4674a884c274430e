//! What the books know of room that appeared, and whom it may serve.
//!
//! Fed by: everything that frees or enlarges something.
//! Must not: wake; [`crate::nudge`] does.

use std::collections::HashSet;

use aliquot_core::ledger::Booking;
use aliquot_core::quota::Amount;
use aliquot_core::{Cluster, Namespace, NodeName, PodUid, fit};
use aliquot_k8s::event::PodRef;
use tokio::time::Instant;

use crate::books::Books;
use crate::claims::Claim;
use crate::grown::{Places, Where};
use crate::waiting::{self, Room, Waiting};

impl Books {
    /// A number that grows with every enlargement; see [`Self::refused`].
    pub fn enlargements(&self) -> u64 {
        self.grown.lock().count()
    }

    /// Returns after something was freed or became available, or a claim is over.
    pub async fn enlarged(&self) {
        let next = self.claims.lock().next();
        let over = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.enlarged.notified() => {}
            () = over => {
                let over = self.claims.lock().expire(Instant::now());
                for claim in over {
                    self.grow_by(&claim);
                }
            }
        }
    }

    /// Takes the mark of refusal from those refused pods that fit together
    /// where something became free, highest priority first, and returns them.
    pub fn wakeable(&self) -> Vec<(PodUid, PodRef)> {
        let (cluster, places) = self.places();
        if places.is_empty() {
            return Vec::new();
        }
        let mut all = self.waits.lock();
        let refused = || all.iter().filter(|(_, waiting)| waiting.refused);
        let namespaces: HashSet<_> = refused().map(|(_, w)| w.pod.namespace.as_str()).collect();
        let headrooms = self.read(|ledger| {
            let left = |name| Some((name, ledger.headroom(name)?));
            namespaces.into_iter().filter_map(left).collect()
        });
        // After the books: who has booked what it claimed claims it no longer.
        let now = Instant::now();
        let claimed = self.claims.lock().all(now);
        let policies = self.policies();
        let at_home = self.read(|ledger| {
            let fits = |(uid, waiting): (&PodUid, &Waiting)| {
                let (slot, state) = ledger.own(uid)?;
                let fit = fit::fit(&state, &waiting.demand, &policies).ok()?;
                let amount = Amount::of(fit.uses.iter().map(|(_, used)| used));
                let headroom = ledger.headroom(&waiting.pod.namespace);
                let allowed = headroom.is_none_or(|left| left.allows(amount));
                (allowed && places.slots.contains(&slot)).then(|| uid.clone())
            };
            let holders = ledger.holds().map(|(uid, _)| uid);
            let holders = holders.filter_map(|uid| all.get_key_value(uid));
            let refused = holders.filter(|(_, waiting)| waiting.refused);
            refused.filter_map(fits).collect::<Vec<_>>()
        });
        let room = Room {
            cluster: &cluster,
            places: &places,
            claimed: &claimed,
            headrooms,
            policies: &policies,
        };
        let others = refused().filter(|(uid, _)| !at_home.contains(uid));
        let together: Vec<_> = waiting::fit_together(others, room)
            .into_iter()
            .map(|(uid, note)| (uid.clone(), note))
            .collect();
        let mut awake = Vec::with_capacity(together.len());
        for uid in at_home {
            if let Some(waiting) = all.get_mut(&uid) {
                waiting.refused = false;
                awake.push((uid, waiting.pod.clone()));
            }
        }
        for (uid, note) in together {
            if let Some(waiting) = all.get_mut(&uid) {
                waiting.refused = false;
                let namespace = waiting.pod.namespace.as_str().into();
                let claim = Claim { note, namespace };
                let old = self.claims.lock().put(&uid, claim, now);
                if let Some(old) = old {
                    self.grow_by(&old);
                }
                awake.push((uid, waiting.pod.clone()));
            }
        }
        awake
    }

    /// What is to be looked at, and the nodes with all of it: nothing can grow
    /// between the two, or it would be taken and not be seen.
    fn places(&self) -> (Cluster, Places) {
        let mut grown = self.grown.lock();
        let cluster = self.snapshot();
        let places = grown.take(cluster.slots());
        (cluster, places)
    }

    /// The pod could not be woken: it is looked at again.
    pub fn not_woken(&self, pod: &PodUid) {
        if let Some(waiting) = self.waits.lock().get_mut(pod) {
            waiting.refused = true;
        }
        self.unclaim(pod);
        self.grow(Where::Everywhere);
    }

    /// The pod's claim is over. What it claimed may serve another.
    pub(crate) fn unclaim(&self, pod: &PodUid) {
        let claimed = self.claims.lock().end(pod);
        if let Some(claim) = claimed {
            self.grow_by(&claim);
        }
    }

    /// This is not claimed any more.
    pub(crate) fn grow_by(&self, claim: &Claim) {
        self.grow(Where::Slot(claim.note.slot));
        self.grow_within(&claim.namespace);
    }

    /// This is not booked any more.
    pub(crate) fn freed(&self, booking: &Booking) {
        self.grow_on(&booking.node);
        if booking.holds() {
            self.grow_within(&booking.namespace);
        }
    }

    /// The namespace's quotas leave more than before, if it has any.
    fn grow_within(&self, namespace: &Namespace) {
        if self.read(|ledger| ledger.spaces().limited(namespace.as_str())) {
            self.grow(Where::Namespace(namespace.clone()));
        }
    }

    /// Something became free.
    pub(crate) fn grow(&self, at: Where) {
        self.grown.lock().add(at);
        self.enlarged.notify_one();
    }

    /// Something became free on this node.
    pub(crate) fn grow_on(&self, node: &NodeName) {
        let slot = self.read(|ledger| ledger.cluster().slot(node.as_str()));
        // A node that is not known has no room to offer.
        if let Some(slot) = slot {
            self.grow(Where::Slot(slot));
        }
    }
}

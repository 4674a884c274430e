//! The books of a node of dynamic cards, as the scheduler and the agent keep them.

use std::sync::Arc;

use super::{cut, instances};
use crate::fit::Policies;
use crate::ledger::{Ledger, NotReserved};
use crate::mig::place::Placement;
use crate::mig::published::Made;
use crate::mig::{Geometry, Instance};
use crate::node::Published;
use crate::tests::inventory;
use crate::{PodUid, invariant};

/// The ledger, and what the driver has.
pub(in crate::tests) struct Books {
    ledger: Ledger,
    geometry: Geometry,
}

fn uid(arrival: u32) -> PodUid {
    format!("p{arrival}").into()
}

impl Books {
    pub(in crate::tests) fn new(geometry: &Geometry) -> Self {
        Self {
            ledger: Ledger::default(),
            geometry: geometry.clone(),
        }
    }

    /// The agent publishes what is there; then one pod asks for one instance.
    pub(in crate::tests) fn reserve(
        &mut self,
        cards: &[Vec<Instance>],
        profile: usize,
        arrival: u32,
    ) -> Option<Placement> {
        let profiles = self.geometry.profiles();
        let made = |one: &Instance| Made {
            profile: profiles[one.profile].name.clone(),
            start: one.start,
            uuid: "MIG-made".into(),
            gi: 0,
            ci: 0,
        };
        let gpus = (0..).zip(cards).map(|(index, there)| {
            let made = there.iter().map(made).collect();
            cut(index, &self.geometry, made)
        });
        let published = Published {
            inventory: Some(Arc::new(inventory(gpus.collect()))),
            ..Published::default()
        };
        let name = &"n".into();
        self.ledger.publish(name, Some(published));
        let demand = instances(&[&profiles[profile].name]);
        let (pod, namespace, policies) = (uid(arrival), "d".into(), Policies::default());
        let given = self
            .ledger
            .reserve(&pod, &namespace, name, &demand, &policies);
        let given = match given {
            Ok(given) => given,
            Err(NotReserved::Refused(_)) => return None,
            Err(NotReserved::Booked(node)) => unreachable!("booked on {node}"),
        };
        let node = self.ledger.cluster().node("n").expect("published");
        assert!(invariant::instances_have_their_places(node));
        let grant = &given.grants("c0").expect("granted")[0];
        let placed = grant.mig.as_ref().expect("an instance");
        let card = grant.gpu.as_str()[4..].parse().expect("a card");
        let there: &Vec<Instance> = &cards[card];
        let wanted = &profiles[profile];
        let same = |one: &&Instance| (one.profile, one.start) == (profile, placed.start);
        let ready = there.iter().any(|one| same(&one) && !one.busy);
        // What the agent does at PreStart: what is in the way and idle gives way,
        // also compute slices and the number of its kind.
        let mut left = there.clone();
        let mut destroys = Vec::new();
        if !ready {
            let slices = |one: &Instance| profiles[one.profile].slices(one.start);
            let taken = wanted.slices(placed.start);
            let over = there
                .iter()
                .filter(|one| !one.busy && slices(one) & taken != 0);
            destroys.extend(over.map(|one| one.start));
            left.retain(|one| one.busy || !destroys.contains(&one.start));
            while !self
                .geometry
                .starts(profile, &left)
                .any(|s| s == placed.start)
            {
                let at = left.iter().rposition(|one| !one.busy).expect("idle ones");
                destroys.push(left.remove(at).start);
            }
        }
        Some(Placement {
            card,
            profile,
            start: placed.start,
            ready,
            destroys,
        })
    }

    pub(in crate::tests) fn release(&mut self, arrival: u32) {
        let held = self.ledger.release(&uid(arrival));
        assert!(held.is_some(), "a running pod's instance was taken");
        assert!(self.ledger == self.ledger.recompute());
    }
}

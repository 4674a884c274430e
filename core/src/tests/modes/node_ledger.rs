//! The ledger of a node under dynamic MIG, as the scheduler and the node agent track it.

use super::{dynamic_gpu, instances};
use crate::PodUid;
use crate::ledger::{Ledger, NotReserved};
use crate::mig::place::InstancePlacement;
use crate::mig::published::CreatedInstance;
use crate::mig::{Geometry, Instance};
use crate::tests::{published, reserve};

/// The ledger, and the driver's geometry.
pub(in crate::tests) struct NodeLedger {
    ledger: Ledger,
    geometry: Geometry,
}

fn uid(arrival: u32) -> PodUid {
    format!("p{arrival}").into()
}

impl NodeLedger {
    pub(in crate::tests) fn new(geometry: &Geometry) -> Self {
        Self {
            ledger: Ledger::default(),
            geometry: geometry.clone(),
        }
    }

    /// The node agent publishes its instances; then one pod asks for one instance.
    pub(in crate::tests) fn reserve(
        &mut self,
        layouts: &[Vec<Instance>],
        profile: usize,
        arrival: u32,
    ) -> Option<InstancePlacement> {
        let profiles = self.geometry.profiles();
        let made = |one: &Instance| CreatedInstance {
            profile: profiles[one.profile].name.clone(),
            start: one.start,
            uuid: "MIG-made".into(),
            gi: 0,
            ci: 0,
        };
        let gpus = (0..).zip(layouts).map(|(index, there)| {
            let made = there.iter().map(made).collect();
            dynamic_gpu(index, &self.geometry, made)
        });
        let published = published(gpus.collect());
        self.ledger.publish(&"n".into(), Some(published));
        let demand = instances(&[&profiles[profile].name]);
        let given = match reserve(&mut self.ledger, uid(arrival).as_str(), "n", &demand) {
            Ok(given) => given,
            Err(NotReserved::Refused(_)) => return None,
            Err(NotReserved::AlreadyAllocated(node)) => unreachable!("allocated on {node}"),
        };
        let node = self.ledger.cluster().node("n").expect("published");
        assert!(crate::node::mig_placements_are_consistent(node));
        let grant = &given.grants("c0").expect("granted")[0];
        let placed = grant.mig.as_ref().expect("an instance");
        let gpu = grant.gpu.as_str()[4..].parse().expect("a GPU");
        let there: &Vec<Instance> = &layouts[gpu];
        let requested = &profiles[profile];
        let same = |one: &&Instance| (one.profile, one.start) == (profile, placed.start);
        let ready = there.iter().any(|one| same(&one) && !one.busy);
        // As the node agent does at PreStart: idle instances in the way are destroyed, also
        // for compute slices and the profile's maximum.
        let mut left = there.clone();
        let mut destroys = Vec::new();
        if !ready {
            let slices = |one: &Instance| profiles[one.profile].slices(one.start);
            let taken = requested.slices(placed.start);
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
        Some(InstancePlacement {
            gpu,
            profile,
            start: placed.start,
            ready,
            destroys,
        })
    }

    pub(in crate::tests) fn release(&mut self, arrival: u32) {
        let allocated = self.ledger.release(&uid(arrival));
        assert!(allocated.is_some(), "a running pod's instance was taken");
        assert!(self.ledger == self.ledger.recompute());
    }
}

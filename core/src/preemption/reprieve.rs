//! Which pods of a node to evict, as kube-scheduler chooses them: all candidates are taken away,
//! then put back one by one while the preemptor still fits. The rest are the victims.
//!
//! The most important are put back first, so the victims have the lowest priorities, but are not
//! the fewest. The pods of each device are tried, and all of the node where no device suffices.
//! Only [`crate::fit`] decides what fits.

use std::cmp::Reverse;

use super::{CandidateNode, NoPlan, Occupant, OccupantState, PlanCost, PreemptionQuery, state};
use crate::demand::Demand;
use crate::fit;
use crate::inventory::Gpu;
use crate::mig::published::MigPlacement;
use crate::units::{Mib, Percent};
use crate::usage::{DeviceUse, DeviceUses};

/// The choice of victims on one node.
pub(super) struct Reprieve<'a> {
    query: &'a PreemptionQuery<'a>,
    /// The query's demand, or one that fits wherever that fits and is placed faster.
    demand: &'a Demand,
    node: &'a CandidateNode,
    /// How often it was tried whether the preemptor fits.
    pub(super) attempts: usize,
}

impl<'a> Reprieve<'a> {
    pub(super) fn new(
        query: &'a PreemptionQuery<'a>,
        demand: &'a Demand,
        node: &'a CandidateNode,
    ) -> Self {
        Self {
            query,
            demand,
            node,
            attempts: 0,
        }
    }

    /// An error if the preemptor fits, now or once the terminating pods have ended.
    pub(super) fn needs_victims(&mut self) -> Result<(), NoPlan> {
        if self.fits(|_| true) {
            return Err(NoPlan::Fits);
        }
        if self.fits_without(&[]) {
            return Err(NoPlan::Terminating);
        }
        Ok(())
    }

    /// The cheapest victims.
    pub(super) fn cheapest(&mut self) -> Result<PlanCost, NoPlan> {
        let (query, node) = (self.query, self.node);
        let may_end = |occupant: &Occupant| {
            let uses = occupant.allocated.uses();
            let shares = uses.is_some_and(|uses| !uses.is_empty())
                && node.published.counts(&occupant.uid, &occupant.allocated);
            shares && occupant.state == OccupantState::Running && occupant.priority < query.priority
        };
        let occupants = node.occupants.iter();
        let mut candidates: Vec<_> = occupants.filter(|o| may_end(o)).collect();
        if candidates.is_empty() {
            return Err(NoPlan::NoVictim);
        }
        // The least important first.
        candidates.sort_by_key(|o| {
            let share = Reverse(share(o));
            (o.priority, share, Reverse(o.started), o.uid.clone())
        });
        if !self.fits_without(&candidates) {
            return Err(NoPlan::NotEnough);
        }
        candidates.retain(|o| o.budgets.iter().all(|&budget| query.budgets[budget] > 0));
        let inventory = node.published.inventory.iter();
        let gpus = inventory.flat_map(|inventory| &inventory.gpus);
        let best = gpus
            .filter_map(|gpu| {
                let pods = candidates.iter().copied().filter(|o| uses(o, gpu));
                self.without_reprieved(pods.collect())
            })
            .min();
        best.or_else(|| self.without_reprieved(candidates))
            .ok_or(NoPlan::Budgets)
    }

    /// Those of these pods that cannot be put back; `None` if the preemptor does not fit without
    /// all of them, or a budget forbids it.
    fn without_reprieved(&mut self, mut victims: Vec<&Occupant>) -> Option<PlanCost> {
        if !self.fits_without(&victims) {
            return None;
        }
        // Pods that their budgets protect are put back first, then the others.
        for only_protected in [true, false] {
            for place in (0..victims.len()).rev() {
                if only_protected && !self.is_protected(victims[place], &victims) {
                    continue;
                }
                let pod = victims.remove(place);
                if !self.fits_without(&victims) {
                    victims.insert(place, pod);
                }
            }
        }
        let protected = victims.iter().any(|pod| self.is_protected(pod, &victims));
        (!protected).then(|| PlanCost::new(self.query, self.node, &victims))
    }

    /// Whether a budget of this pod allows fewer evictions than those of all `victims`.
    fn is_protected(&self, pod: &Occupant, victims: &[&Occupant]) -> bool {
        pod.budgets.iter().any(|&budget| {
            let counted = victims.iter().filter(|o| o.budgets.contains(&budget));
            counted.count() > self.query.budgets[budget] as usize
        })
    }

    fn fits_without(&mut self, gone: &[&Occupant]) -> bool {
        self.fits(|occupant| {
            let goes = gone.iter().any(|gone| std::ptr::eq(*gone, occupant));
            occupant.state != OccupantState::Terminating && !goes
        })
    }

    fn fits(&mut self, stays: impl Fn(&Occupant) -> bool) -> bool {
        self.attempts += 1;
        let node = state(self.node, stays);
        fit::fit(&node, self.demand, self.query.policies).is_ok()
    }
}

/// What the pod uses of all its devices.
fn share(occupant: &Occupant) -> (Mib, Percent) {
    let uses = occupant.allocated.uses().into_iter();
    let sum = uses
        .flat_map(DeviceUses::values)
        .fold(DeviceUse::default(), |sum, used| sum.with(*used));
    (sum.memory, sum.cores)
}

/// Whether the pod uses this GPU, or an instance on it.
fn uses(occupant: &Occupant, gpu: &Gpu) -> bool {
    let uses = occupant.allocated.uses().into_iter();
    uses.flat_map(DeviceUses::keys)
        .any(|key| MigPlacement::split_device_key(key).0 == gpu.uuid.as_str())
}

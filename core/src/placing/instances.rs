//! Instances of cards that are cut as pods come, where the units that are there for
//! good are not enough.
//!
//! Fed by: [`super::Placing`]. Must not: choose a start; [`crate::cut`] does.

use super::numa::Numa;
use super::{Placing, Share};
use crate::choose::Manner;
use crate::cut::{self, Cut, Offer};
use crate::demand::Stage;
use crate::fit::Trace;
use crate::inventory::Gpu;
use crate::judge::Judge;
use crate::mig::published::{self, Mig};
use crate::mig::{self, Instance};
use crate::node::NodeState;
use crate::reason::{Reason, Refusal};
use crate::request::{Ask, Memory};
use crate::units::Percent;
use crate::usage::Use;

impl Placing<'_, '_> {
    /// The candidates, and for the rest instances that are made: on one NUMA node
    /// where it must be so.
    pub(super) fn with_instances(
        &mut self,
        container: usize,
        ask: &Ask,
        manner: Manner,
        mut refusal: Refusal,
        trace: &mut impl Trace,
    ) -> Result<(), Refusal> {
        let node = self.judge.node;
        let mut numas: Vec<Option<Numa>> = vec![self.numa];
        if manner.one_numa && manner.count > 1 && self.numa.is_none() {
            numas = node
                .cards
                .iter()
                .map(|card| Some(Numa(card.numa)))
                .collect();
            numas.sort_unstable();
            numas.dedup();
        }
        let all = std::mem::take(&mut self.candidates);
        let before = self.shares.len();
        let mut refused = Vec::new();
        for numa in numas {
            let here = |place: usize| numa.is_none_or(|numa| Numa(node.cards[place].numa) == numa);
            self.candidates = all.iter().copied().filter(|c| here(c.place)).collect();
            self.candidates.sort_unstable();
            let ready = self.candidates.len().min(manner.count);
            self.take(container, ask, ready);
            match self.instances(container, ask, manner.count - ready, here) {
                Ok(()) => {
                    for share in &self.shares[before..] {
                        trace.card(share.card, share.used, None);
                    }
                    return Ok(());
                }
                Err(why) => refused.extend(why),
            }
            self.shares.truncate(before);
        }
        if self.numa.is_some() {
            let cuts = node.cuts.iter();
            let away = cuts.filter(|cut| self.elsewhere(&node.cards[cut.card]).is_some());
            refused.extend(away.map(|cut| {
                let (place, used, offer) = self.offer(cut, ask);
                (place, used, offer.err().unwrap_or(Reason::NumaNotFit))
            }));
        }
        if all.len() >= manner.count {
            // There are enough of them, on different NUMA nodes.
            refused.extend(all.iter().map(|candidate| {
                let (_, used, _) = self.taken(container, ask, candidate.place);
                (candidate.place, used, Reason::NumaNotFit)
            }));
        }
        for (place, used, reason) in refused {
            trace.card(place, used, Some(reason));
            refusal.add(reason);
        }
        if refusal == Refusal::default() {
            refusal.add(Reason::AllocatedCardsInsufficientRequest);
        }
        Err(refusal)
    }

    /// So many instances on the cards that are `here`, each where it costs least;
    /// or each card's reason why it has none.
    fn instances(
        &mut self,
        container: usize,
        ask: &Ask,
        missing: usize,
        here: impl Fn(usize) -> bool,
    ) -> Result<(), Vec<(usize, Use, Reason)>> {
        let node = self.judge.node;
        for _ in 0..missing {
            if let Some(again) = self.reused(container, ask, &here) {
                self.shares.push(again);
                continue;
            }
            let cuts = node.cuts.iter().filter(|cut| here(cut.card));
            let offers = cuts.map(|cut| self.offer(cut, ask));
            let mut best: Option<(usize, Use, Offer)> = None;
            let mut refused = Vec::new();
            for (card, used, offer) in offers {
                match offer {
                    Ok(offer) if best.is_none_or(|(.., b)| offer.loss < b.loss) => {
                        best = Some((card, used, offer));
                    }
                    Ok(_) => {}
                    Err(reason) => refused.push((card, used, reason)),
                }
            }
            let Some((card, used, offer)) = best else {
                return Err(refused);
            };
            self.shares.push(Share {
                container,
                resource: ask.resource,
                card,
                used,
                instance: Some(offer.instance),
                waste: false,
                loss: offer.loss,
            });
        }
        Ok(())
    }

    /// For an init container: an instance that the pod has for a container which
    /// runs when this one has ended.
    fn reused(&self, container: usize, ask: &Ask, here: impl Fn(usize) -> bool) -> Option<Share> {
        let demand = self.judge.demand;
        let stage = |container: usize| demand.containers[container].stage;
        if stage(container) != Stage::Init || (demand.rules.same_unit && ask.count > 1) {
            return None;
        }
        let enough = |used: Use| !ask.wrote.memory || asked(ask, used) <= used.memory.0;
        let own = |share: &Share| {
            let mut own = self.shares.iter().filter(|s| s.container == container);
            own.any(|o| (o.card, o.instance) == (share.card, share.instance))
        };
        let free = self.shares.iter().find(|share| {
            let alike = share.resource == ask.resource && share.instance.is_some();
            let runs_later = stage(share.container) != Stage::Sidecar;
            alike && runs_later && here(share.card) && enough(share.used) && !own(share)
        });
        free.map(|share| Share {
            container,
            loss: 0,
            ..*share
        })
    }

    /// What this card offers beside what the pod has of it already.
    fn offer(&self, cut: &Cut, ask: &Ask) -> (usize, Use, Result<Offer, Reason>) {
        let Judge { node, demand, .. } = *self.judge;
        let place = cut.card;
        let whole = Use::of(node.cards[place].scaled, Percent::WHOLE);
        let Some((gpu, found)) = dynamic(node, place) else {
            return (place, whole, Err(Reason::CardTypeMismatch));
        };
        let name = demand.resource(ask);
        let profile = cut::profile_of(&found.geometry, name);
        let used = profile.map_or(whole, |profile| cut::use_of(&found.geometry, profile));
        let card = &node.cards[place];
        let rules = &demand.rules;
        // An instance has one seat.
        let several = rules.same_unit && ask.count > 1;
        let small = ask.wrote.memory && asked(ask, used) > used.memory.0;
        let idle = self.policy.idle && card.sums.pods > 0;
        let refused = card
            .closed
            .or_else(|| rules.refuse(gpu))
            .or_else(|| demand.kept_from(gpu))
            .or_else(|| several.then_some(Reason::CardTimeSlicingExhausted))
            .or_else(|| small.then_some(Reason::CardInsufficientMemory))
            .or_else(|| idle.then_some(Reason::ExclusiveDeviceAllocateConflict));
        let offer = refused.map_or_else(
            || {
                let here = self.shares.iter().filter(|share| share.card == place);
                let more: Vec<Instance> = here.filter_map(|share| share.instance).collect();
                cut.offer(gpu, found, name, &more, demand)
            },
            Err,
        );
        (place, used, offer)
    }
}

/// The memory that was written, of an instance that has this much.
fn asked(ask: &Ask, used: Use) -> u64 {
    match ask.memory {
        Memory::Mib(memory) => memory.0,
        Memory::Share(part) => used.memory.share(part).0,
    }
}

/// The card that is cut as pods come.
fn dynamic(node: &NodeState, place: usize) -> Option<(&Gpu, &published::Cut)> {
    let gpu = node.inventory.as_ref()?.gpus.get(place)?;
    Some((gpu, gpu.mig.as_ref().and_then(Mig::dynamic)?))
}

pub(super) fn serves(node: &NodeState, place: usize, name: &str) -> bool {
    name.starts_with(mig::RESOURCES) && dynamic(node, place).is_some()
}

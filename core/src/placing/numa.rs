//! What must be on one NUMA node together: all that a container asks for, or all
//! that its pod does.
//!
//! Fed by: [`super::place`], where the kubelet or the pod wants it so.
//! Must not: judge a card; it says which NUMA node is tried next.

use super::Placing;
use crate::fit::Trace;
use crate::node::{Align, Card};
use crate::reason::{Reason, Refusal};
use crate::request::Ask;

/// A NUMA node; of cards of which the driver knows none, that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Numa(pub(super) Option<u32>);

impl Placing<'_, '_> {
    /// What the node's kubelet and the pod want of NUMA nodes.
    pub(super) fn align(&self) -> Align {
        let own = if self.judge.demand.rules.one_numa {
            Align::Container
        } else {
            Align::Nothing
        };
        own.max(self.judge.node.align)
    }

    /// The card is on another NUMA node than the one that is tried.
    pub(super) fn elsewhere(&self, card: &Card) -> Option<Reason> {
        let numa = self.numa?;
        (Numa(card.numa) != numa).then_some(Reason::NumaNotFit)
    }

    /// Places the asks, those of each container or of the whole pod together.
    pub(super) fn aligned(
        &mut self,
        order: &[(usize, &Ask)],
        align: Align,
        trace: &mut impl Trace,
    ) -> Result<(), Refusal> {
        let with = |one: usize, other: usize| align == Align::Pod || one == other;
        for (at, &(container, _)) in order.iter().enumerate() {
            let mut before = order[..at].iter();
            if before.any(|(earlier, _)| with(*earlier, container)) {
                continue;
            }
            let all = order.iter().copied();
            let group: Vec<_> = all.filter(|(other, _)| with(*other, container)).collect();
            self.together(&group, trace)?;
        }
        Ok(())
    }

    /// These asks on one NUMA node: first on that which the first of them would
    /// choose by itself. What is refused is told of the last one that was tried.
    fn together(&mut self, group: &[(usize, &Ask)], trace: &mut impl Trace) -> Result<(), Refusal> {
        let before = self.shares.len();
        let Some((&(container, ask), rest)) = group.split_first() else {
            return Ok(());
        };
        trace.container(container);
        self.one(container, ask, trace)?;
        if rest.is_empty() {
            return Ok(());
        }
        let cards = &self.judge.node.cards;
        let own = self.shares.get(before);
        let first = own.map(|share| Numa(cards[share.card].numa));
        let mut numas: Vec<Numa> = cards.iter().map(|card| Numa(card.numa)).collect();
        numas.sort_unstable_by_key(|numa| (Some(*numa) != first, *numa));
        numas.dedup();
        let mut refusal = Refusal::default();
        for numa in numas {
            self.shares.truncate(before);
            self.numa = Some(numa);
            let placed = group.iter().try_for_each(|&(container, ask)| {
                trace.container(container);
                self.one(container, ask, trace)
            });
            self.numa = None;
            match placed {
                Ok(()) => return Ok(()),
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }
}

//! What a choice on one node is worth to one pod: cards by the keys of the card
//! policy, the node by the node policy.
//!
//! Fed by: [`crate::fit`], with uses that have room. Must not: judge room.

use std::cell::OnceCell;

use crate::card_policy::{CardKey, CardPolicy, MOST_KEYS};
use crate::demand::Demand;
use crate::fit::Policies;
use crate::fragmentation::View;
use crate::node::{Card, NodeState};
use crate::score::{self, Load, Policy};
use crate::usage::Use;

/// One pod on one node.
pub(crate) struct Judge<'a> {
    /// The node.
    pub(crate) node: &'a NodeState,
    /// The pod.
    pub(crate) demand: &'a Demand,
    defaults: &'a Policies,
    /// Made when the first choice is judged by its fragmentation.
    view: OnceCell<View<'a>>,
}

impl<'a> Judge<'a> {
    /// `defaults` are for a pod that chooses no policy.
    pub(crate) fn new(node: &'a NodeState, demand: &'a Demand, defaults: &'a Policies) -> Self {
        Self {
            node,
            demand,
            defaults,
            view: OnceCell::new(),
        }
    }

    fn view(&self) -> &View<'a> {
        let view = || View::new(&self.defaults.typical, self.node, self.demand.host);
        self.view.get_or_init(view)
    }

    /// Of the node with these uses of its cards; higher is better. Under
    /// `fragmentation` the fuller of two nodes with one score is better.
    pub(crate) fn node(&self, uses: &[(usize, Use)]) -> u64 {
        match self.demand.node_policy.unwrap_or(self.defaults.node) {
            Policy::Fragmentation => {
                let view = self.view();
                u64::from(view.score(uses)) << 32 | view.fullness()
            }
            policy => score::score(policy, node_load(self.node, uses)),
        }
    }

    /// Of a card that would be used like this; lower is better, key by key.
    pub(crate) fn card(&self, policy: CardPolicy, place: usize, used: Use) -> [u64; MOST_KEYS] {
        policy.keys.map(|key| match key {
            Some(CardKey::Load(Policy::Fragmentation)) => {
                u64::MAX - u64::from(self.view().score(&[(place, used)]))
            }
            Some(CardKey::Load(policy)) => {
                let load = card_load(&self.node.cards[place], used);
                u64::MAX - score::weighted(policy, load, self.demand.rules.weights)
            }
            // The NUMA nodes are compared when all candidates are known.
            Some(CardKey::Numa) | None => 0,
        })
    }
}

fn card_load(card: &Card, more: Use) -> Load {
    let used = card.sums.used.with(more);
    Load {
        seats: (u64::from(used.seats), u64::from(card.seats)),
        cores: (u64::from(used.cores.0), u64::from(card.cores.0)),
        memory: (used.memory.0, card.scaled.0),
    }
}

fn node_load(node: &NodeState, uses: &[(usize, Use)]) -> Load {
    let cards = node.cards.iter().enumerate();
    cards.fold(Load::default(), |sum, (place, card)| {
        let here = uses.iter().filter(|(card, _)| *card == place);
        let more = here.fold(Use::default(), |more, (_, used)| more.with(*used));
        sum.plus(card_load(card, more))
    })
}

//! A node on which pods are taken away and put back to see whether another fits.
//!
//! Fed by: [`super::search`]. Must not: choose among the pods.

use crate::fit;
use crate::ledger::Held;
use crate::mig::Instance;
use crate::mig::published::{Mig, Placed};
use crate::node::{NodeState, Sums};
use crate::preemption::{Occupant, Question};
use crate::reason::Reason;
use crate::seats::Seats;
use crate::units::{Mib, Percent};
use crate::usage::Use;

/// Cards that sets of cards can tell apart.
pub(super) const CARDS: usize = 64;

/// A pod that may end. They are in the order in which they may.
pub(super) struct Pod {
    pub(super) priority: i32,
    pub(super) age: i64,
    pub(super) budgets: Vec<usize>,
    /// The one before it that has the same shares and budgets: it goes first.
    pub(super) twin: Option<usize>,
    /// By the card's place.
    uses: Vec<(usize, Use)>,
    /// Of cards that are cut as pods come, by the card's place: an instance, or
    /// something that is none and closes the card.
    instances: Vec<(usize, Option<Instance>)>,
    seats: Seats,
}

/// One try: the cards it may use, who is gone and who will not go.
pub(super) struct Try {
    pub(super) cards: u64,
    pub(super) gone: Vec<usize>,
    pub(super) kept: Vec<bool>,
    /// How many more each disruption budget allows.
    pub(super) budgets: Vec<u32>,
}

/// The node and its pods.
pub(super) struct Trial<'a> {
    question: &'a Question<'a>,
    /// Without any of the pods.
    base: NodeState,
    pub(super) pods: Vec<Pod>,
    scratch: NodeState,
    /// The kubelet has too few seats: whoever ends helps, on whatever card it is.
    tight: bool,
    /// Judgements left.
    pub(super) steps: u64,
}

impl<'a> Trial<'a> {
    pub(super) fn new(
        question: &'a Question<'a>,
        base: NodeState,
        low: &[&Occupant],
        steps: u64,
    ) -> Self {
        let mut pods: Vec<Pod> = Vec::with_capacity(low.len());
        let mut all = base.seats.clone();
        for occupant in low {
            let (uses, instances) = uses(&base, &occupant.held);
            all.requested.plus(&occupant.seats);
            let twin = pods.iter().rposition(|pod| {
                pod.uses == uses
                    && pod.instances == instances
                    && pod.seats == occupant.seats
                    && pod.budgets == occupant.budgets
            });
            pods.push(Pod {
                priority: occupant.priority,
                age: -occupant.started,
                budgets: occupant.budgets.clone(),
                twin,
                uses,
                instances,
                seats: occupant.seats.clone(),
            });
        }
        Self {
            question,
            tight: all.short(question.demand).is_some(),
            scratch: base.clone(),
            base,
            pods,
            steps,
        }
    }

    pub(super) fn cards(&self) -> usize {
        self.base.cards.len()
    }

    pub(super) fn nobody(&self, cards: u64) -> Try {
        Try {
            cards,
            gone: Vec::new(),
            kept: vec![false; self.pods.len()],
            budgets: self.question.budgets.to_vec(),
        }
    }

    /// The pod's end may help on these cards.
    pub(super) fn touches(&self, pod: usize, cards: u64) -> bool {
        let pod = &self.pods[pod];
        let mut uses = pod.uses.iter();
        uses.any(|(card, _)| cards & bit(*card) != 0) || (self.tight && !pod.seats.is_empty())
    }

    /// The preemptor fits on the cards of this try.
    pub(super) fn fits(&mut self, attempt: &Try) -> bool {
        self.reset(attempt.cards);
        for (number, pod) in self.pods.iter().enumerate() {
            if !attempt.gone.contains(&number) {
                for &(card, used) in &pod.uses {
                    self.scratch.cards[card].sums.add(used);
                }
                put(&mut self.scratch, pod, |_| true);
                self.scratch.seats.requested.plus(&pod.seats);
            }
        }
        self.judge()
    }

    /// This card would do, were the others of the try empty.
    pub(super) fn serves(&mut self, card: usize, attempt: &Try) -> bool {
        self.reset(attempt.cards);
        for (number, pod) in self.pods.iter().enumerate() {
            if let (false, Some(used)) = (attempt.gone.contains(&number), on(pod, card)) {
                self.scratch.cards[card].sums.add(used);
                put(&mut self.scratch, pod, |place| place == card);
            }
        }
        self.judge()
    }

    /// At least this many more pods have to leave this card: as many as suffice
    /// when the largest of each quantity go, whoever holds it.
    pub(super) fn needed_on(&mut self, card: usize, attempt: &Try) -> usize {
        let (mut stay, mut go) = (Sums::default(), Vec::new());
        for (number, pod) in self.pods.iter().enumerate() {
            let Some(used) = on(pod, card).filter(|_| !attempt.gone.contains(&number)) else {
                continue;
            };
            if attempt.kept[number] {
                stay.add(used);
            } else {
                go.push(used);
            }
        }
        for ended in 0..=go.len() {
            self.reset(attempt.cards);
            let sums = &mut self.scratch.cards[card].sums;
            if stay.pods > 0 {
                sums.used = sums.used.with(stay.used);
                sums.pods += stay.pods;
            }
            if ended < go.len() {
                sums.used = sums.used.with(rest(&go, ended));
                sums.pods += u32::try_from(go.len() - ended).unwrap_or(u32::MAX);
            }
            if self.judge() {
                return ended;
            }
        }
        usize::MAX
    }

    fn reset(&mut self, cards: u64) {
        self.scratch.cards.copy_from_slice(&self.base.cards);
        self.scratch.cuts.clone_from(&self.base.cuts);
        let requested = &mut self.scratch.seats.requested;
        requested.clone_from(&self.base.seats.requested);
        let places = self.scratch.cards.iter_mut().enumerate();
        for (place, card) in places {
            if cards & bit(place) == 0 {
                card.closed = Some(Reason::CardCordoned);
            }
        }
    }

    fn judge(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        let (demand, policies) = (self.question.demand, self.question.policies);
        fit::fit(&self.scratch, demand, policies).is_ok()
    }
}

/// By the card's place: what is held of it, and which instances ([`Pod`]).
type Shares = (Vec<(usize, Use)>, Vec<(usize, Option<Instance>)>);

/// What is held, by the card's place.
fn uses(base: &NodeState, held: &Held) -> Shares {
    let mut found = Shares::default();
    let (Held::Uses(uses), Some(inventory)) = (held, &base.inventory) else {
        return found;
    };
    for (unit, used) in uses {
        let instance = Placed::of(unit);
        let card = instance.as_ref().map_or(unit.as_str(), |(card, _)| card);
        let Some(place) = inventory.gpus.iter().position(|g| g.uuid.as_str() == card) else {
            continue;
        };
        match found.0.iter_mut().find(|(known, _)| *known == place) {
            Some((_, sum)) => *sum = sum.with(*used),
            None => found.0.push((place, *used)),
        }
        let cut = inventory.gpus[place].mig.as_ref().and_then(Mig::dynamic);
        let placed = instance.as_ref().map(|(_, placed)| placed);
        found
            .1
            .extend(cut.map(|cut| (place, placed.and_then(|it| cut.geometry.instance(it)))));
    }
    found
}

/// The pod holds its instances on the cards that are `here`.
fn put(node: &mut NodeState, pod: &Pod, here: impl Fn(usize) -> bool) {
    for &(place, instance) in pod.instances.iter().filter(|(place, _)| here(*place)) {
        let Some(cut) = node.cuts.iter_mut().find(|cut| cut.card == place) else {
            continue;
        };
        match instance {
            Some(instance) => cut.put(instance),
            None => cut.unclear = true,
        }
    }
}

/// What is left of these when the `ended` largest of each quantity have gone.
fn rest(uses: &[Use], ended: usize) -> Use {
    let left = |of: fn(&Use) -> u64| {
        let mut all: Vec<u64> = uses.iter().map(of).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all[ended..].iter().sum::<u64>()
    };
    let narrow = |amount| u32::try_from(amount).unwrap_or(u32::MAX);
    Use {
        seats: narrow(left(|u| u.seats.into())),
        memory: Mib(left(|u| u.memory.0)),
        cores: Percent(narrow(left(|u| u.cores.0.into()))),
        alone: uses.iter().filter(|u| u.alone).count() > ended,
        leftover: false,
    }
}

fn on(pod: &Pod, card: usize) -> Option<Use> {
    let mut uses = pod.uses.iter();
    uses.find(|(place, _)| *place == card)
        .map(|(_, used)| *used)
}

/// A place beyond the 64th is in every set.
pub(super) fn bit(place: usize) -> u64 {
    if place < CARDS { 1 << place } else { u64::MAX }
}

pub(super) fn places(cards: u64, all: usize) -> impl Iterator<Item = usize> {
    (0..all).filter(move |&place| cards & bit(place) != 0)
}

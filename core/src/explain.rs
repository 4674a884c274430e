//! Why a node takes a pod or not, card by card.
//!
//! Fed by: the scheduler's `GET /explain` and `kubectl-aliquot explain`.
//! Must not: judge a card; it only listens to [`crate::fit`], so that what is
//! explained is what was decided. Nor guess what becomes free when.

use serde::{Deserialize, Serialize};

use crate::demand::Demand;
use crate::fit::{self, Fit, Policies, Trace};
use crate::id::{GpuUuid, Namespace, NodeName};
use crate::inventory::{Gpu, Health};
use crate::mig::published::Mig;
use crate::node::{Card, NodeState};
use crate::quota::{self, Headroom};
use crate::reason::{Reason, Refusal};
use crate::top::Amount;
use crate::usage::Use;

/// How one card was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The card's place.
    pub card: usize,
    /// What the pod would take of it.
    pub needs: Use,
    /// Why it cannot; `None` if it can.
    pub refused: Option<Reason>,
}

/// How a node was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The same as [`fit::fit`] says.
    pub outcome: Result<Fit, Refusal>,
    /// The container that found no room, or the last one that was placed: the
    /// place in [`Demand::containers`]. `None` where no card was looked at.
    pub container: Option<usize>,
    /// Each card as it was judged for that container; none where the node as a
    /// whole is out of the question.
    pub cards: Vec<Judged>,
}

#[derive(Debug, Default)]
struct Trail {
    container: Option<usize>,
    cards: Vec<Judged>,
}

impl Trace for Trail {
    fn container(&mut self, container: usize) {
        self.container = Some(container);
        self.cards.clear();
    }

    fn card(&mut self, card: usize, needs: Use, refused: Option<Reason>) {
        let judged = Judged {
            card,
            needs,
            refused,
        };
        // A card that would do may be refused for its neighbours afterwards.
        match self.cards.iter_mut().find(|known| known.card == card) {
            Some(known) => *known = judged,
            None => self.cards.push(judged),
        }
    }
}

/// Judges the node as [`fit::fit`] does, and keeps what it said of each card.
pub fn explain(node: &NodeState, demand: &Demand, policies: &Policies) -> Explained {
    let mut trail = Trail::default();
    let outcome = fit::traced(node, demand, policies, &mut trail);
    Explained {
        outcome,
        container: trail.container,
        cards: trail.cards,
    }
}

/// The answer for one node, as people and programs read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// Which node.
    pub node: NodeName,
    /// kube-scheduler named it in the call that was last refused; `false` means
    /// that something besides GPUs is against it, such as a taint.
    pub offered: bool,
    /// It takes the pod now.
    pub fits: bool,
    /// It would not with those beside it that are about to go there.
    pub crowded: bool,
    /// The counted reasons; empty when it fits.
    pub why: String,
    /// The container that found no room, or the last one that was placed.
    pub container: Option<String>,
    /// Its cards.
    pub gpus: Vec<GpuAnswer>,
}

/// The answer for one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAnswer {
    /// Which card.
    pub gpu: GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// NVML's product name.
    pub model: String,
    /// What can still be promised of it.
    pub left: Amount,
    /// What the pod would take of it; `null` where the card was not looked at.
    pub needs: Option<Amount>,
    /// `taken` (the pod would get it), `fits`, the reason why not, or `-` where
    /// the card was not looked at because the node is out of the question.
    pub answer: String,
    /// More about the reason: what is wrong with the card, which slices are free and
    /// where the profile may start, who holds the unit that the pod names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The pod would get this card.
pub const TAKEN: &str = "taken";
/// The card could take what was asked of it.
pub const FITS: &str = "fits";
/// The card was not looked at.
pub const NOT_ASKED: &str = "-";

impl NodeAnswer {
    /// Judges the node; beside the answer, why it does not take the pod. The
    /// caller knows whether it was `offered`, and `crowd` is the same node with
    /// those who are about to go there; `headroom` is what quotas leave.
    pub fn of(
        name: &NodeName,
        node: &NodeState,
        demand: &Demand,
        policies: &Policies,
        offered: bool,
        crowd: Option<&NodeState>,
        headroom: Option<&Headroom>,
    ) -> (Self, Option<Refusal>) {
        let explained = explain(node, demand, policies);
        let refusal = match &explained.outcome {
            Err(refusal) => Some(refusal.clone()),
            // The cards would do; the namespace's quota may not.
            Ok(fit) => {
                let amount = quota::Amount::of(fit.uses.iter().map(|(_, used)| used));
                let over = headroom.and_then(|left| left.over(amount));
                over.map(Refusal::over)
            }
        };
        let fits = refusal.is_none();
        let crowded = fits && crowd.is_some_and(|node| fit::fit(node, demand, policies).is_err());
        let container = explained.container;
        let answer = Self {
            node: name.clone(),
            offered,
            fits,
            crowded,
            why: refusal
                .as_ref()
                .map_or_else(String::new, ToString::to_string),
            container: container.map(|at| demand.containers[at].name.clone()),
            gpus: gpus(node, demand, &explained),
        };
        (answer, refusal)
    }
}

/// What there is to say about a reason.
fn detail(node: &NodeState, demand: &Demand, container: usize, judged: &Judged) -> String {
    let gpu = node
        .inventory
        .as_ref()
        .map(|found| &found.gpus[judged.card]);
    let Some((gpu, reason)) = gpu.zip(judged.refused) else {
        return String::new();
    };
    match (reason, &gpu.health, &gpu.cordon) {
        (Reason::CardNotHealth, Health::Sick(why), _) | (Reason::CardCordoned, _, Some(why)) => {
            return why.clone();
        }
        (Reason::CardReserved, ..) => return kept(gpu, &demand.namespace),
        _ => {}
    }
    let slices = [Reason::CardMigNoPlacement, Reason::CardInsufficientMemory];
    let cut = node.cuts.iter().find(|cut| cut.card == judged.card);
    let found = gpu.mig.as_ref().and_then(Mig::dynamic);
    let Some((cut, found)) = cut.zip(found).filter(|_| slices.contains(&reason)) else {
        return String::new();
    };
    let asks = demand.containers[container].asks.iter();
    let mut texts = asks.filter_map(|ask| cut.told(&found.geometry, demand.resource(ask)));
    texts.next().unwrap_or_default()
}

/// For whom a card is kept, or which places on it.
fn kept(gpu: &Gpu, from: &Namespace) -> String {
    let list = |namespaces: &[Namespace]| {
        let names: Vec<&str> = namespaces.iter().map(Namespace::as_str).collect();
        names.join(", ")
    };
    if !gpu.reserved.is_empty() {
        return format!("kept for pods of {}", list(&gpu.reserved));
    }
    let found = gpu.mig.as_ref().and_then(Mig::dynamic);
    let all = found.iter().flat_map(|found| &found.reserved);
    let others = all.filter(|kept| !kept.namespaces.contains(from));
    let texts: Vec<String> = others
        .map(|kept| {
            let (profile, start) = (&kept.place.profile, kept.place.start);
            format!(
                "{profile}@{start} is kept for pods of {}",
                list(&kept.namespaces)
            )
        })
        .collect();
    texts.join("; ")
}

fn gpus(node: &NodeState, demand: &Demand, explained: &Explained) -> Vec<GpuAnswer> {
    let gpus = node.inventory.iter().flat_map(|inventory| &inventory.gpus);
    let cards = gpus.zip(&node.cards).enumerate();
    let answer = |(place, (gpu, card)): (usize, (_, &Card))| {
        let gpu: &Gpu = gpu;
        let judged = explained.cards.iter().find(|judged| judged.card == place);
        let placed = explained.outcome.as_ref().map_or(&[][..], |fit| &fit.uses);
        let taken = placed.iter().find(|(taken, _)| *taken == place);
        let (needs, answer) = match (taken, judged) {
            (Some((_, used)), _) => (Some(*used), TAKEN),
            (None, Some(judged)) => {
                let answer = judged.refused.map_or(FITS, Reason::name);
                (Some(judged.needs), answer)
            }
            (None, None) => (None, NOT_ASKED),
        };
        GpuAnswer {
            gpu: gpu.uuid.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            left: Amount::left(card),
            needs: needs.map(Amount::from),
            answer: answer.to_owned(),
            detail: match (judged, explained.container) {
                (Some(judged), Some(container)) => detail(node, demand, container, judged),
                _ => String::new(),
            },
        }
    };
    cards.map(answer).collect()
}

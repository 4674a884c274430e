//! Filter and prioritize as functions: a snapshot and names in, an order out.
//!
//! Fed by: the scheduler's routes and `kubectl-aliquot simulate`, which share it.
//! Must not: change anything but the memo, or name a node in `FailedNodes`
//! (kube-scheduler would wake the pod with its own message).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::fit::{self, Policies};
use crate::memo::{Memo, Verdict, Verdicts};
use crate::mig::Instance;
use crate::node::{Card, NodeState};
use crate::quota::{Amount, Headroom};
use crate::reason::{Reason, Refusal};
use crate::seats::Seats;
use crate::usage::Use;

/// A pod that was told its best node a moment ago and is not booked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftNote {
    /// The node's slot.
    pub slot: usize,
    /// What the pod would take of which of its cards.
    pub uses: Vec<(usize, Use)>,
    /// Which of `uses` are instances ([`fit::Fit::instances`]).
    pub instances: Vec<(usize, Instance)>,
    /// What it would take of the kubelet's seats.
    pub seats: Seats,
}

impl SoftNote {
    /// A pod that asks for this was told the node in this slot, where it fits like this.
    pub fn of(slot: usize, fit: fit::Fit, demand: &Demand) -> Self {
        Self {
            slot,
            uses: fit.uses,
            instances: fit.instances,
            seats: demand.seats(),
        }
    }

    /// The node with the pod on it.
    pub fn on(&self, node: &NodeState) -> NodeState {
        node.with(&self.uses, &self.instances, &self.seats)
    }
}

/// What is asked: which nodes can take a pod like this.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The snapshot.
    pub cluster: &'a Cluster,
    /// What the pod asks for.
    pub demand: &'a Demand,
    /// For pods that choose none.
    pub policies: &'a Policies,
    /// Where others are about to go. They lower a node's place, never its
    /// feasibility: what they would take counts as taken, and a node that is
    /// full with them comes last.
    pub notes: &'a [SoftNote],
    /// The slot of the node on which a share is kept for this pod, and that node
    /// without it.
    pub own: Option<&'a (usize, NodeState)>,
    /// What the quotas of the pod's namespace leave; `None` where nothing is
    /// limited. A node counts with the cards that the pod would be given there.
    pub headroom: Option<&'a Headroom>,
}

impl Question<'_> {
    /// The node in a slot, as this pod sees it.
    fn node(&self, slot: usize) -> Option<&NodeState> {
        match self.own {
            Some((own, state)) if *own == slot => Some(state),
            _ => self.cluster.at(slot).map(|state| &**state),
        }
    }

    /// Whether the node in this slot can take the pod.
    fn verdict<'v>(&self, verdicts: &'v mut Verdicts<'_>, slot: usize) -> Cow<'v, Verdict> {
        match self.own {
            Some((own, state)) if *own == slot => {
                Cow::Owned(Verdict::on(state, self.demand, self.policies))
            }
            _ => Cow::Borrowed(verdicts.of(slot)),
        }
    }
}

/// A node that can take the pod. The order is best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranked<'n> {
    /// Full once those who are about to go there have gone.
    crowded: bool,
    score: Reverse<u64>,
    /// The node; names decide between equals.
    pub name: &'n str,
}

/// The named nodes that can take the pod, in the order of `names`, or why none can.
pub fn fitting<'n, S: AsRef<str>>(
    question: &Question<'_>,
    memo: &mut Memo,
    names: &'n [S],
) -> Result<Vec<Ranked<'n>>, Refusal> {
    let noted = noted(question);
    let mut verdicts = memo.verdicts(question.cluster, question.demand, question.policies);
    let mut fits = Vec::with_capacity(names.len());
    for name in names.iter().map(AsRef::as_ref) {
        let Some(slot) = question.cluster.slot(name) else {
            continue;
        };
        if let Verdict::Fits { score, amount } = *question.verdict(&mut verdicts, slot) {
            if question.headroom.is_some_and(|left| !left.allows(amount)) {
                continue;
            }
            let (crowded, score) = match noted.get(&slot) {
                None => (false, score),
                Some(others) => match with_others(question, slot, others) {
                    Some(score) => (false, score),
                    None => (true, score),
                },
            };
            fits.push(Ranked {
                crowded,
                score: Reverse(score),
                name,
            });
        }
    }
    if !fits.is_empty() {
        return Ok(fits);
    }
    let mut refusal = Refusal::default();
    let mut over: Option<(Amount, Refusal)> = None;
    for name in names.iter().map(AsRef::as_ref) {
        let slot = question.cluster.slot(name);
        let verdict = slot.map(|slot| question.verdict(&mut verdicts, slot));
        match verdict.as_deref() {
            Some(Verdict::Refused(why)) => refusal.merge(why),
            Some(Verdict::Fits { amount, .. }) => {
                // Most nodes would give the same: said once, counted often.
                if over.as_ref().is_none_or(|(asked, _)| asked != amount) {
                    let passed = question.headroom.and_then(|left| left.over(*amount));
                    over = passed.map(|passed| (*amount, Refusal::over(passed)));
                }
                if let Some((_, why)) = &over {
                    refusal.merge(why);
                }
            }
            None => refusal.add(Reason::NodeNotRegistered),
        }
    }
    Err(refusal)
}

/// The named nodes of which some card refuses the pod for this reason, by name. Asked
/// after [`fitting`] it costs a look at the memo for each name.
pub fn refused_for<'n, S: AsRef<str>>(
    question: &Question<'_>,
    memo: &mut Memo,
    names: &'n [S],
    reason: Reason,
) -> Vec<&'n str> {
    let mut verdicts = memo.verdicts(question.cluster, question.demand, question.policies);
    let names = names.iter().map(AsRef::as_ref);
    let refused = names.filter(|name| {
        let slot = question.cluster.slot(name);
        let verdict = slot.map(|slot| question.verdict(&mut verdicts, slot));
        matches!(verdict.as_deref(), Some(Verdict::Refused(why)) if why.count(reason) > 0)
    });
    let mut refused: Vec<&str> = refused.collect();
    refused.sort_unstable();
    refused
}

/// Where others are about to go, by slot.
fn noted<'a>(question: &Question<'a>) -> HashMap<usize, Vec<&'a SoftNote>> {
    let mut noted: HashMap<usize, Vec<&SoftNote>> = HashMap::new();
    for note in question.notes {
        noted.entry(note.slot).or_default().push(note);
    }
    noted
}

/// The score of a node with those who are about to go there; `None` where the
/// pod does not fit beside them.
fn with_others(question: &Question<'_>, slot: usize, others: &[&SoftNote]) -> Option<u64> {
    let mut state = question.node(slot)?.clone();
    for note in others {
        state = note.on(&state);
    }
    let fit = fit::fit(&state, question.demand, question.policies);
    fit.ok().map(|fit| fit.score)
}

/// The best `most` of them, best first.
pub fn shortlist(mut fits: Vec<Ranked<'_>>, most: usize) -> Vec<&str> {
    if most < fits.len() {
        fits.select_nth_unstable(most);
        fits.truncate(most);
    }
    fits.sort_unstable();
    fits.into_iter().map(|ranked| ranked.name).collect()
}

/// Ranks 0 to 10 for the named nodes, in their order: one 10, the others by
/// their place; 0 for nodes that do not fit.
pub fn ranks<'n, S: AsRef<str>>(
    question: &Question<'_>,
    memo: &mut Memo,
    names: &'n [S],
) -> Vec<(&'n str, i64)> {
    let mut fits = fitting(question, memo, names).unwrap_or_default();
    fits.sort_unstable();
    let last = fits.len().max(2) - 1;
    let rank = |place| match place {
        0 => 10,
        _ => i64::try_from(9 * (last - place) / last).unwrap_or(0),
    };
    let places = fits.iter().enumerate();
    let ranks: HashMap<&str, i64> = places.map(|(at, fit)| (fit.name, rank(at))).collect();
    let of = |name: &str| ranks.get(name).copied().unwrap_or(0);
    let names = names.iter().map(AsRef::as_ref);
    names.map(|name| (name, of(name))).collect()
}

/// Ranks 0 to 10 for a pod that asks for no GPU: 10 for nodes without free GPU,
/// so that what is free stays usable; the others the lower the more they have.
pub fn cpu_only_ranks<S: AsRef<str>>(cluster: &Cluster, names: &[S]) -> Vec<i64> {
    let free = |name: &S| {
        let node = cluster.node(name.as_ref());
        node.map_or(0, |node| node.cards.iter().map(Card::free).sum::<u64>())
    };
    let free: Vec<u64> = names.iter().map(free).collect();
    let most = free.iter().copied().max().unwrap_or(0);
    let rank = |free: u64| match free {
        0 => 10,
        _ => i64::try_from(9 * (most - free) / most).unwrap_or(0),
    };
    free.into_iter().map(rank).collect()
}

/// The refusal as kube-scheduler, the event and the user read it. Its length
/// does not grow with the cluster, and equal books give equal texts.
pub fn refusal_text(nodes: usize, refusal: &Refusal) -> String {
    format!("0/{nodes} nodes can serve the GPU request: {refusal}")
}

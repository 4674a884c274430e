//! Which pods must end so that a pod of higher priority fits, and where.
//!
//! kube-scheduler cannot plan this: it does not see shares. The plan is the one
//! with the fewest victims; among those with as many, the one whose victims have
//! the lowest priorities, then the youngest ones, then the better node.
//! Fed by: the scheduler, with the pods of the nodes that filter was asked about.
//! Must not: name a pod of the same or a higher priority, one that holds no
//! share, or more of a disruption budget than it allows.

pub mod record;
mod search;
mod trial;

use crate::demand::Demand;
use crate::fit::{self, Fit, Policies};
use crate::id::{NodeName, PodUid};
use crate::ledger::Held;
use crate::node::{NodeState, Published, Requests};
use crate::score::Policy;
use crate::seats::Seats;
use search::Search;

pub use record::Record;

/// What a pod that holds shares of a node will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Runs on, unless it is asked to end.
    Runs,
    /// Ends by itself soon.
    Ending,
    /// Cannot be asked to end: unknown, static, or not on its way out for long.
    Fixed,
}

/// A pod, or a hold, that has shares of a node.
#[derive(Clone, Debug)]
pub struct Occupant {
    /// The pod.
    pub uid: PodUid,
    /// What it holds.
    pub held: Held,
    /// What it requests of the kubelet's seats.
    pub seats: Seats,
    /// `spec.priority`.
    pub priority: i32,
    /// When it started, in seconds since 1970; a larger one is younger.
    pub started: i64,
    /// The disruption budgets that its end counts against, as places in
    /// [`Question::budgets`].
    pub budgets: Vec<usize>,
    /// What it will do.
    pub standing: Standing,
}

/// A node that the preemptor may go to, if there is room.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// What it published.
    pub published: Published,
    /// What all its pods request of CPU and memory, and those that are no occupants
    /// of seats.
    pub requested: Requests,
    /// Who has shares of its cards, the preemptor's own hold left out.
    pub occupants: Vec<Occupant>,
}

/// Who needs room.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What the preemptor asks for.
    pub demand: &'a Demand,
    /// Its `spec.priority`.
    pub priority: i32,
    /// For pods that choose none.
    pub policies: &'a Policies,
    /// How many pods each disruption budget allows to be evicted now.
    pub budgets: &'a [u32],
}

/// Which pods end where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where the preemptor fits afterwards.
    pub node: NodeName,
    /// Who ends: lowest priority first, then youngest.
    pub victims: Vec<PodUid>,
}

/// Why there is nothing to plan. The order is that of what is told when nodes
/// differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPlan {
    /// No node is known that it may go to.
    NoNode,
    /// No pod of lower priority holds a share there.
    NoVictim,
    /// Not even all their shares would make room.
    NotEnough,
    /// Disruption budgets do not allow enough of them to be evicted.
    Budgets,
    /// A quota of its namespace has no room for it.
    Quota,
    /// Pods that end already will make room.
    Ending,
    /// It fits as it is.
    Fits,
}

impl NoPlan {
    /// As users read it.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoNode => "no node is known that it may go to",
            Self::NoVictim => "no pod of lower priority holds a share",
            Self::NotEnough => "the shares of all pods of lower priority are not enough",
            Self::Budgets => "disruption budgets protect the pods that would have to end",
            Self::Quota => "a quota of its namespace has no room for it",
            Self::Ending => "pods that are ending will make room",
            Self::Fits => "there is room",
        }
    }
}

/// The plan with the least harm over all `nodes`, or why there is none. A node
/// on which no victim is needed ends it: then it is only to wait.
pub fn plan(
    question: &Question<'_>,
    nodes: impl IntoIterator<Item = Node>,
) -> Result<Plan, NoPlan> {
    let mut why = NoPlan::NoNode;
    let mut best = None;
    let mut steps = search::STEPS_IN_ALL;
    let quick = quick(question);
    for node in nodes {
        match harm(question, &quick, &node, best.as_ref(), &mut steps) {
            Ok(Some(found)) => best = Some(found),
            Ok(None) => {}
            Err(none) => why = why.max(none),
        }
        if why >= NoPlan::Ending {
            return Err(why);
        }
    }
    let best = best.ok_or(why)?;
    Ok(Plan {
        node: best.node,
        victims: best.victims,
    })
}

/// The fewest, lowest, youngest of the node's pods whose end makes room there;
/// empty when that of the ending ones suffices.
pub fn victims(question: &Question<'_>, node: &Node) -> Result<Vec<PodUid>, NoPlan> {
    let quick = quick(question);
    match harm(question, &quick, node, None, &mut { search::STEPS_IN_ALL }) {
        Ok(found) => found.map(|found| found.victims).ok_or(NoPlan::NotEnough),
        Err(NoPlan::Ending | NoPlan::Fits) => Ok(Vec::new()),
        Err(why) => Err(why),
    }
}

/// How the preemptor fits on the node once `gone` and all that are ending have
/// ended.
pub fn room(question: &Question<'_>, node: &Node, gone: &[PodUid]) -> Option<Fit> {
    let stays = |o: &Occupant| o.standing != Standing::Ending && !gone.contains(&o.uid);
    fit::fit(&state(node, stays), question.demand, question.policies).ok()
}

/// A pod that fits where this one does and is placed with less thought: a single
/// container fits or not whatever is better, unless only idle cards will do.
fn quick(question: &Question<'_>) -> Demand {
    let demand = question.demand;
    let policy = demand.gpu_policy.unwrap_or(question.policies.gpu);
    let asks = demand.containers.iter().flat_map(|c| &c.asks);
    let single = asks.count() == 1;
    Demand {
        node_policy: Some(Policy::Binpack),
        gpu_policy: if single && !policy.idle {
            Some(Policy::Binpack.into())
        } else {
            demand.gpu_policy
        },
        ..demand.clone()
    }
}

/// What a plan costs. The order is from little harm to much.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Harm {
    count: usize,
    /// Highest first.
    priorities: Vec<i32>,
    /// Oldest first; its age, so that younger is less.
    ages: Vec<i64>,
    /// Of the node afterwards, negated: better is less.
    rank: std::cmp::Reverse<u64>,
    node: NodeName,
    victims: Vec<PodUid>,
}

/// The least harm on one node, if it is less than `best`.
fn harm(
    question: &Question<'_>,
    quick: &Demand,
    node: &Node,
    best: Option<&Harm>,
    steps: &mut u64,
) -> Result<Option<Harm>, NoPlan> {
    let fits = |base: &NodeState| fit::fit(base, quick, question.policies).is_ok();
    if fits(&state(node, |_| true)) {
        return Err(NoPlan::Fits);
    }
    if fits(&state(node, |o| o.standing != Standing::Ending)) {
        return Err(NoPlan::Ending);
    }
    let may_end = |occupant: &Occupant| {
        let shares = matches!(&occupant.held, Held::Uses(uses) if !uses.is_empty());
        shares && occupant.standing == Standing::Runs && occupant.priority < question.priority
    };
    let mut low: Vec<&Occupant> = node.occupants.iter().filter(|o| may_end(o)).collect();
    if low.is_empty() {
        return Err(NoPlan::NoVictim);
    }
    // Those that may end first, first: lowest priority, youngest.
    low.sort_by_key(|o| (o.priority, -o.started, o.uid.clone()));
    let without = |low: &[&Occupant]| {
        let stays = |o: &Occupant| !low.iter().any(|low| std::ptr::eq(*low, o));
        state(node, |o| o.standing != Standing::Ending && stays(o))
    };
    if !fits(&without(&low)) {
        return Err(NoPlan::NotEnough);
    }
    low.retain(|o| o.budgets.iter().all(|&budget| question.budgets[budget] > 0));
    let base = without(&low);
    if !fits(&base) {
        return Err(NoPlan::Budgets);
    }
    let most = best.map_or(usize::MAX, |best| best.count);
    let Some(places) = Search::new(
        &Question {
            demand: quick,
            ..*question
        },
        base,
        &low,
        steps,
    )
    .least(most) else {
        // Nothing within what is the best already says nothing against the node.
        return best.map_or(Err(NoPlan::Budgets), |_| Ok(None));
    };
    let found = cost(question, node, &low, &places);
    Ok(best.is_none_or(|best| found < *best).then_some(found))
}

fn cost(question: &Question<'_>, node: &Node, low: &[&Occupant], places: &[usize]) -> Harm {
    let chosen = || places.iter().map(|&place| low[place]);
    let mut priorities: Vec<_> = chosen().map(|o| o.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    let mut ages: Vec<_> = chosen().map(|o| -o.started).collect();
    ages.sort_unstable_by(|a, b| b.cmp(a));
    let victims: Vec<_> = chosen().map(|o| o.uid.clone()).collect();
    let rank = room(question, node, &victims).map_or(0, |fit| fit.score);
    Harm {
        count: victims.len(),
        priorities,
        ages,
        rank: std::cmp::Reverse(rank),
        node: node.name.clone(),
        victims,
    }
}

/// The node with only those of its occupants that stay.
fn state(node: &Node, stays: impl Fn(&Occupant) -> bool) -> NodeState {
    let mut requested = node.requested.clone();
    let mut staying = Vec::with_capacity(node.occupants.len());
    for occupant in node.occupants.iter().filter(|occupant| stays(occupant)) {
        requested.seats.plus(&occupant.seats);
        staying.push((&occupant.uid, &occupant.held));
    }
    NodeState::of(&node.published, &staying, requested)
}

//! Which pods to evict so that a pod of higher priority fits, and where.
//!
//!
//! kube-scheduler cannot plan this: it does not know shares. The plan has the fewest
//! victims; among those, the victims with the lowest priorities, then the youngest, then
//! the better node. It never names a pod of the same or a higher priority, one without a
//! share, or more pods than a disruption budget allows.

pub mod record;
mod search;
mod trial;

use crate::demand::{Demand, Requests};
use crate::fit::{self, Fit};
use crate::id::{NodeName, PodUid};
use crate::node::{NodePublication, NodeState};
use crate::policy::Policy;
use crate::replicas::Replicas;
use crate::score::Policies;
use crate::usage::AllocatedUse;
use search::VictimSearch;

pub use record::PreemptionRecord;

/// The state of a pod with shares on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccupantState {
    /// Runs until it is evicted.
    Running,
    /// Is terminating.
    Terminating,
    /// Cannot be evicted: unknown, static, or terminating for too long.
    NotEvictable,
}

/// A pod, or a reservation, with shares on a node.
#[derive(Clone, Debug)]
pub struct Occupant {
    /// The pod.
    pub uid: PodUid,
    /// What it is allocated.
    pub allocated: AllocatedUse,
    /// What it requests of the kubelet's replicas.
    pub replicas: Replicas,
    /// `spec.priority`.
    pub priority: i32,
    /// When it started, in seconds since 1970; larger is younger.
    pub started: i64,
    /// The disruption budgets that its eviction counts against, as indices in
    /// [`PreemptionQuery::budgets`].
    pub budgets: Vec<usize>,
    /// Its state.
    pub state: OccupantState,
}

/// A node that the preemptor may go to.
#[derive(Clone, Debug)]
pub struct CandidateNode {
    /// Its name.
    pub name: NodeName,
    /// What it published.
    pub published: NodePublication,
    /// The CPU and memory that all its pods request, and the replicas of pods that are not
    /// among the occupants.
    pub requested: Requests,
    /// The pods with shares of its devices, without the preemptor's own reservation.
    pub occupants: Vec<Occupant>,
}

/// The pod that needs capacity.
#[derive(Clone, Copy, Debug)]
pub struct PreemptionQuery<'a> {
    /// The preemptor's demand.
    pub demand: &'a Demand,
    /// Its `spec.priority`.
    pub priority: i32,
    /// The policies for pods that choose none.
    pub policies: &'a Policies,
    /// How many pods each disruption budget allows to be evicted now.
    pub budgets: &'a [u32],
}

/// Which pods to evict, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionPlan {
    /// The node on which the preemptor fits afterwards.
    pub node: NodeName,
    /// The pods to evict: lowest priority first, then youngest.
    pub victims: Vec<PodUid>,
}

/// Why there is no plan. The order is that in which reasons take precedence where nodes
/// differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoPlan {
    /// No node is known that the pod may go to.
    NoNode,
    /// No pod of lower priority has a share there.
    NoVictim,
    /// Not even all their shares would suffice.
    NotEnough,
    /// Disruption budgets do not allow enough evictions.
    Budgets,
    /// The pod exceeds a quota of its namespace.
    Quota,
    /// Pods that are terminating will free enough.
    Terminating,
    /// The pod fits already.
    Fits,
}

impl NoPlan {
    /// As shown to users.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoNode => "no candidate node is known",
            Self::NoVictim => "no pod of lower priority has a GPU share",
            Self::NotEnough => "evicting all pods of lower priority would not free enough",
            Self::Budgets => "disruption budgets protect the pods that would have to be evicted",
            Self::Quota => "the pod exceeds a quota of its namespace",
            Self::Terminating => "terminating pods will free enough",
            Self::Fits => "the pod fits",
        }
    }
}

/// The cheapest plan over all `nodes`, or why there is none. A node that needs no victim
/// ends the search: the pod only has to wait.
pub fn plan(
    query: &PreemptionQuery<'_>,
    nodes: impl IntoIterator<Item = CandidateNode>,
) -> Result<PreemptionPlan, NoPlan> {
    let mut why = NoPlan::NoNode;
    let mut best = None;
    let mut steps = search::STEPS_IN_ALL;
    let simplified = simplified(query);
    for node in nodes {
        match least_cost(query, &simplified, &node, best.as_ref(), &mut steps) {
            Ok(Some(found)) => best = Some(found),
            Ok(None) => {}
            Err(none) => why = why.max(none),
        }
        if why >= NoPlan::Terminating {
            return Err(why);
        }
    }
    let best = best.ok_or(why)?;
    Ok(PreemptionPlan {
        node: best.node,
        victims: best.victims,
    })
}

/// The fewest, lowest, youngest of the node's pods whose eviction lets the preemptor fit;
/// empty if waiting for terminating pods suffices.
pub fn victims(query: &PreemptionQuery<'_>, node: &CandidateNode) -> Result<Vec<PodUid>, NoPlan> {
    let simplified = simplified(query);
    match least_cost(query, &simplified, node, None, &mut {
        search::STEPS_IN_ALL
    }) {
        Ok(found) => found.map(|found| found.victims).ok_or(NoPlan::NotEnough),
        Err(NoPlan::Terminating | NoPlan::Fits) => Ok(Vec::new()),
        Err(why) => Err(why),
    }
}

/// How the preemptor fits on the node once `gone` and all terminating pods have ended.
pub fn fit_without(
    query: &PreemptionQuery<'_>,
    node: &CandidateNode,
    gone: &[PodUid],
) -> Option<Fit> {
    let stays = |o: &Occupant| o.state != OccupantState::Terminating && !gone.contains(&o.uid);
    fit::fit(&state(node, stays), query.demand, query.policies).ok()
}

/// A demand that fits wherever this one does and is placed faster: whether a single
/// container fits does not depend on the policy, unless only idle devices will do.
fn simplified(query: &PreemptionQuery<'_>) -> Demand {
    let demand = query.demand;
    let policy = demand.gpu_policy.unwrap_or(query.policies.gpu);
    let requests = demand.containers.iter().flat_map(|c| &c.requests);
    let single = requests.count() == 1;
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

/// The cost of a plan, ordered from cheap to expensive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlanCost {
    count: usize,
    /// Highest first.
    priorities: Vec<i32>,
    /// Oldest first, as negated start times: younger is less.
    ages: Vec<i64>,
    /// The score of the node afterwards, negated: better is less.
    rank: std::cmp::Reverse<u64>,
    node: NodeName,
    victims: Vec<PodUid>,
}

/// The cheapest plan on one node, if it is cheaper than `best`.
fn least_cost(
    query: &PreemptionQuery<'_>,
    simplified: &Demand,
    node: &CandidateNode,
    best: Option<&PlanCost>,
    steps: &mut u64,
) -> Result<Option<PlanCost>, NoPlan> {
    let fits = |base: &NodeState| fit::fit(base, simplified, query.policies).is_ok();
    if fits(&state(node, |_| true)) {
        return Err(NoPlan::Fits);
    }
    if fits(&state(node, |o| o.state != OccupantState::Terminating)) {
        return Err(NoPlan::Terminating);
    }
    let may_end = |occupant: &Occupant| {
        let uses = occupant.allocated.uses();
        let shares = uses.is_some_and(|uses| !uses.is_empty())
            && node.published.counts(&occupant.uid, &occupant.allocated);
        shares && occupant.state == OccupantState::Running && occupant.priority < query.priority
    };
    let mut low: Vec<&Occupant> = node.occupants.iter().filter(|o| may_end(o)).collect();
    if low.is_empty() {
        return Err(NoPlan::NoVictim);
    }
    // In the order of eviction: lowest priority, then youngest.
    low.sort_by_key(|o| (o.priority, -o.started, o.uid.clone()));
    let without = |low: &[&Occupant]| {
        let stays = |o: &Occupant| !low.iter().any(|low| std::ptr::eq(*low, o));
        state(node, |o| o.state != OccupantState::Terminating && stays(o))
    };
    if !fits(&without(&low)) {
        return Err(NoPlan::NotEnough);
    }
    low.retain(|o| o.budgets.iter().all(|&budget| query.budgets[budget] > 0));
    let base = without(&low);
    if !fits(&base) {
        return Err(NoPlan::Budgets);
    }
    let most = best.map_or(usize::MAX, |best| best.count);
    let Some(places) = VictimSearch::new(
        &PreemptionQuery {
            demand: simplified,
            ..*query
        },
        base,
        &low,
        steps,
    )
    .least(most) else {
        // No plan within the best cost so far is no refusal by the node.
        return best.map_or(Err(NoPlan::Budgets), |_| Ok(None));
    };
    let found = cost(query, node, &low, &places);
    Ok(best.is_none_or(|best| found < *best).then_some(found))
}

fn cost(
    query: &PreemptionQuery<'_>,
    node: &CandidateNode,
    low: &[&Occupant],
    places: &[usize],
) -> PlanCost {
    let chosen = || places.iter().map(|&place| low[place]);
    let mut priorities: Vec<_> = chosen().map(|o| o.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    let mut ages: Vec<_> = chosen().map(|o| -o.started).collect();
    ages.sort_unstable_by(|a, b| b.cmp(a));
    let victims: Vec<_> = chosen().map(|o| o.uid.clone()).collect();
    let rank = fit_without(query, node, &victims).map_or(0, |fit| fit.score);
    PlanCost {
        count: victims.len(),
        priorities,
        ages,
        rank: std::cmp::Reverse(rank),
        node: node.name.clone(),
        victims,
    }
}

/// The node with only those of its occupants that stay.
fn state(node: &CandidateNode, stays: impl Fn(&Occupant) -> bool) -> NodeState {
    let mut requested = node.requested.clone();
    let mut staying = Vec::with_capacity(node.occupants.len());
    for occupant in node.occupants.iter().filter(|occupant| stays(occupant)) {
        requested.replicas.plus(&occupant.replicas);
        staying.push((&occupant.uid, &occupant.allocated));
    }
    NodeState::of(&node.published, &staying, requested)
}

//! Which pods to evict so that a pod of higher priority fits, and where.
//!
//! kube-scheduler cannot plan this: it does not know shares. As there, the highest priority of
//! the victims decides, and then their number: two pods of low priority are preferred to one of a
//! higher priority. No victim could stay, but other victims might be fewer. A plan never names a
//! pod of the same or a higher priority, one without a share, or more pods than a disruption
//! budget allows.

pub mod record;
mod reprieve;

use std::cmp::Reverse;

use crate::demand::{Demand, Requests};
use crate::fit::{self, Fit};
use crate::id::{NodeName, PodUid};
use crate::node::{NodePublication, NodeState};
use crate::policy::Policy;
use crate::replicas::Replicas;
use crate::score::Policies;
use crate::usage::AllocatedUse;
use reprieve::Reprieve;

pub use record::PreemptionRecord;

/// About how often a plan may try whether the preemptor fits: this takes a second, by estimate.
const ATTEMPTS: usize = 50_000;

/// The state of a pod with shares on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OccupantState {
    /// Runs until it is evicted.
    Running,
    Terminating,
    /// Cannot be evicted: unknown, static, or terminating for too long.
    NotEvictable,
}

/// A pod, or a reservation, with shares on a node.
#[derive(Clone, Debug)]
pub struct Occupant {
    pub uid: PodUid,
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
    pub state: OccupantState,
}

#[derive(Clone, Debug)]
pub struct CandidateNode {
    pub name: NodeName,
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
    pub demand: &'a Demand,
    /// Its `spec.priority`.
    pub priority: i32,
    /// The policies for pods that choose none.
    pub policies: &'a Policies,
    /// How many pods each disruption budget allows to be evicted now.
    pub budgets: &'a [u32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionPlan {
    /// The node on which the preemptor fits afterwards.
    pub node: NodeName,
    /// The pods to evict: lowest priority first, then the largest share, then the youngest.
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

/// The cheapest plan over `nodes`, or why there is none. A node that needs no victim ends the
/// search: the pod only has to wait. Once the attempts run out, the remaining nodes are only asked
/// whether they need none.
pub fn plan(
    query: &PreemptionQuery<'_>,
    nodes: impl IntoIterator<Item = CandidateNode>,
) -> Result<PreemptionPlan, NoPlan> {
    let demand = simplified(query);
    let mut why = NoPlan::NoNode;
    let mut best: Option<PlanCost> = None;
    let mut attempts = 0;
    for node in nodes {
        let mut reprieve = Reprieve::new(query, &demand, &node);
        reprieve.needs_victims()?;
        if attempts < ATTEMPTS {
            match reprieve.cheapest() {
                Ok(cost) => best = best.into_iter().chain([cost]).min(),
                Err(none) => why = why.max(none),
            }
            attempts += reprieve.attempts;
        }
    }
    let PlanCost { node, victims, .. } = best.ok_or(why)?;
    Ok(PreemptionPlan { node, victims })
}

/// The victims on this node, chosen as for a plan; none if waiting for terminating pods suffices.
pub fn victims(query: &PreemptionQuery<'_>, node: &CandidateNode) -> Result<Vec<PodUid>, NoPlan> {
    let demand = simplified(query);
    let mut reprieve = Reprieve::new(query, &demand, node);
    if reprieve.needs_victims().is_err() {
        return Ok(Vec::new());
    }
    reprieve.cheapest().map(|cost| cost.victims)
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
    highest: Option<i32>,
    count: usize,
    /// Highest first.
    priorities: Vec<i32>,
    /// In that order; younger is less.
    started: Vec<Reverse<i64>>,
    /// The score of the node afterwards; better is less.
    rank: Reverse<u64>,
    node: NodeName,
    victims: Vec<PodUid>,
}

impl PlanCost {
    /// The cost of evicting these pods, of which the least important is first.
    fn new(query: &PreemptionQuery<'_>, node: &CandidateNode, victims: &[&Occupant]) -> Self {
        let highest_first = || victims.iter().rev();
        let uids: Vec<_> = victims.iter().map(|o| o.uid.clone()).collect();
        let rank = fit_without(query, node, &uids).map_or(0, |fit| fit.score);
        Self {
            highest: victims.last().map(|o| o.priority),
            count: victims.len(),
            priorities: highest_first().map(|o| o.priority).collect(),
            started: highest_first().map(|o| Reverse(o.started)).collect(),
            rank: Reverse(rank),
            node: node.name.clone(),
            victims: uids,
        }
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
    NodeState::new(&node.published, &staying, requested)
}

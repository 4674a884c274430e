//! The ledger as preemption reads it: the nodes, which of their pods may be evicted, and what is
//! assumed for the preemptor.

use std::collections::HashSet;

use aliquot_core::ledger::PodEntry;
use aliquot_core::preemption::record::{self, PlanState, Victim};
use aliquot_core::preemption::{
    self, CandidateNode, NoPlan, Occupant, OccupantState, PreemptionPlan, PreemptionQuery,
    PreemptionRecord,
};
use aliquot_core::usage::{self, AllocatedUse};
use aliquot_core::{Demand, NodeName, PodUid, Requests};
use tokio::time::Instant;

use crate::ledger_cache::bound_pods::{BoundPod, Budgets};
use crate::ledger_cache::pending_pods::PendingPod;
use crate::ledger_cache::{LedgerCache, State};

/// A pod that is still terminating this many seconds after its grace period is not waited for.
const OVERDUE: i64 = 30;
/// Seconds beyond twice the victims' grace period.
const SLACK: u64 = 30;

/// Pods that are not evicted: they terminate already, or may not be evicted.
#[derive(Debug, Default)]
pub(super) struct ExcludedPods<'a> {
    /// Victims of another plan.
    pub(super) terminating: HashSet<&'a PodUid>,
    /// Pods that a disruption budget protects, by the API server.
    pub(super) protected: &'a [PodUid],
}

/// The victims for this pod, if evicting them helps.
pub(super) fn plan(
    cache: &LedgerCache,
    uid: &PodUid,
    waiting: &PendingPod,
    excluded: &ExcludedPods<'_>,
    now: i64,
) -> Result<PreemptionPlan, NoPlan> {
    let (budgets, policies, cluster) = {
        let state = cache.lock();
        (
            state.bound_pods.budgets(),
            state.policies.clone(),
            state.ledger.cluster().clone(),
        )
    };
    let allowed = budgets.allowed_evictions();
    let query = PreemptionQuery {
        demand: &waiting.demand,
        priority: waiting.priority,
        policies: &policies,
        budgets: &allowed,
    };
    // A node at a time, so that nothing waits for the lock meanwhile.
    let nodes = waiting.offered.named().filter_map(|slot| {
        let (name, _) = cluster.named(slot)?;
        candidate_node(&cache.lock(), name, uid, (&budgets, excluded), now)
    });
    preemption::plan(&query, nodes)
}

/// Reserves what the pod will take once the plan's victims have ended; returns the record to
/// write. `None` if the ledger has changed so that the pod would not fit, or if kube-scheduler
/// preempts for it; an error if a quota forbids it.
pub(super) fn reserve(
    cache: &LedgerCache,
    uid: &PodUid,
    waiting: &PendingPod,
    plan: &PreemptionPlan,
    excluded: &ExcludedPods<'_>,
    now: i64,
) -> Result<Option<PreemptionRecord>, NoPlan> {
    let Some(attempt) = waiting.preemption.next_attempt(now) else {
        return Ok(None);
    };
    let mut state = cache.lock();
    let left = state
        .preemptions
        .is_left_to_kube_scheduler(uid, Instant::now());
    if left || state.ledger.pod_entry(uid).is_some() {
        return Ok(None);
    }
    let budgets = state.bound_pods.budgets();
    let allowed = budgets.allowed_evictions();
    let policies = state.policies.clone();
    let query = PreemptionQuery {
        demand: &waiting.demand,
        priority: waiting.priority,
        policies: &policies,
        budgets: &allowed,
    };
    let node = candidate_node(&state, &plan.node, uid, (&budgets, excluded), now);
    let fit_without = |node: &CandidateNode| preemption::fit_without(&query, node, &plan.victims);
    let (Some(node), Some(fit)) = (&node, node.as_ref().and_then(fit_without)) else {
        return Ok(None);
    };
    // What victims of the pod's own namespace have is left once they have ended.
    let ending = plan.victims.iter();
    let ending = ending.filter_map(|victim| state.ledger.pod_entry(victim));
    let own = ending.filter(|entry| entry.namespace.as_str() == waiting.pod.namespace);
    let headroom = state.ledger.headroom_for(uid, &waiting.pod.namespace);
    let rest = headroom.map(|left| own.fold(left, |left, own| left.without(&own.allocated)));
    if rest.is_some_and(|rest| !rest.allows(fit.amount())) {
        return Err(NoPlan::Quota);
    }
    let inventory = node.published.inventory.as_deref();
    let allocation =
        inventory.map(|inventory| fit.allocation(&plan.node, inventory, &waiting.demand));
    let reserved = allocation
        .map(|allocation| usage::effective(&allocation, waiting.demand.stages()))
        .unwrap_or_default();
    let Some((victims, grace)) = recorded(&state, plan, &waiting.pod.namespace) else {
        return Ok(None);
    };
    let now = u64::try_from(now).unwrap_or(0);
    let until = now.saturating_add(time_limit(grace));
    let planned = PodEntry::planned(
        plan.node.clone(),
        waiting.pod.namespace.as_str().into(),
        (
            AllocatedUse::Known(reserved.clone()),
            waiting.demand.replicas(),
        ),
        (plan.victims.clone(), false),
    );
    state.assume_plan(uid, planned);
    Ok(Some(PreemptionRecord {
        v: record::VERSION,
        state: PlanState::Open,
        node: plan.node.clone(),
        victims,
        reserved,
        until,
        attempt,
    }))
}

/// The plan's victims as the record of a pod of this namespace has them, and the longest of their
/// grace periods; `None` if one of them is gone.
fn recorded(state: &State, plan: &PreemptionPlan, namespace: &str) -> Option<(Vec<Victim>, u64)> {
    let mut grace = 0;
    let mut victims = Vec::new();
    for uid in &plan.victims {
        let bound_pod = state.bound_pods.get(uid)?;
        grace = grace.max(bound_pod.grace);
        let pod = &bound_pod.pod;
        let (namespace, name) = if pod.namespace == namespace {
            (pod.namespace.clone(), pod.name.clone())
        } else {
            Default::default()
        };
        victims.push(Victim {
            uid: uid.clone(),
            namespace,
            name,
        });
    }
    Some((victims, grace))
}

/// The further victims on a node, beside those of kube-scheduler, that have to be evicted so
/// that the pod fits there; `None` if that does not help.
pub(crate) fn victims_beside(
    state: &State,
    uid: &PodUid,
    (demand, priority): (&Demand, i32),
    (name, chosen): (&NodeName, &[PodUid]),
    now: i64,
) -> Option<Vec<PodUid>> {
    let budgets = state.bound_pods.budgets();
    let allowed = budgets.allowed_evictions();
    let query = PreemptionQuery {
        demand,
        priority,
        policies: &state.policies,
        budgets: &allowed,
    };
    let excluded = ExcludedPods {
        terminating: chosen.iter().collect(),
        protected: &[],
    };
    let node = candidate_node(state, name, uid, (&budgets, &excluded), now)?;
    preemption::victims(&query, &node).ok()
}

/// How many seconds a plan may take whose victims have this grace period.
pub(super) fn time_limit(grace: u64) -> u64 {
    grace.saturating_mul(2).saturating_add(SLACK)
}

fn candidate_node(
    state: &State,
    name: &NodeName,
    preemptor: &PodUid,
    (budgets, excluded): (&Budgets, &ExcludedPods<'_>),
    now: i64,
) -> Option<CandidateNode> {
    let (ledger, bound_pods) = (&state.ledger, &state.bound_pods);
    let mut requested = Requests {
        host: ledger.cluster().node(name.as_str())?.host.requested,
        ..Requests::default()
    };
    let mut occupants = Vec::new();
    for (uid, entry) in ledger.on(name.as_str()) {
        if uid == preemptor && entry.assumed_by().is_some() {
            continue;
        }
        if !entry.uses_devices() {
            requested.replicas.plus(&entry.requests.replicas);
            continue;
        }
        // A pod for which a share is only assumed has none.
        let bound_pod = bound_pods.get(uid);
        let counted = bound_pod.map(|bound_pod| budgets.of(bound_pod));
        occupants.push(Occupant {
            uid: uid.clone(),
            allocated: entry.allocated.clone(),
            replicas: entry.requests.replicas.clone(),
            priority: bound_pod.map_or(i32::MAX, |bound_pod| bound_pod.priority),
            started: bound_pod.map_or(0, |bound_pod| bound_pod.started),
            budgets: counted.unwrap_or_default(),
            state: occupant_state(uid, entry, bound_pod, excluded, now),
        });
    }
    Some(CandidateNode {
        name: name.clone(),
        published: ledger.published(name.as_str())?.clone(),
        requested,
        occupants,
    })
}

fn occupant_state(
    uid: &PodUid,
    entry: &PodEntry,
    bound_pod: Option<&BoundPod>,
    excluded: &ExcludedPods<'_>,
    now: i64,
) -> OccupantState {
    let deadline = bound_pod.and_then(|bound_pod| bound_pod.terminating);
    let ends_in_time = deadline.is_some_and(|deadline| now <= deadline.saturating_add(OVERDUE));
    if excluded.terminating.contains(uid) || ends_in_time {
        OccupantState::Terminating
    } else if entry.is_confirmed()
        && bound_pod.is_some_and(BoundPod::can_be_evicted)
        && !excluded.protected.contains(uid)
    {
        OccupantState::Running
    } else {
        OccupantState::NotEvictable
    }
}

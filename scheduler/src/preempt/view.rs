//! What the books say to a plan: who has shares of which node and may be asked to
//! end, and what is held for the pod that it is made for.
//!
//! Fed by: the ledger and what is known of its pods.
//! Must not: send anything.

use std::collections::HashSet;

use aliquot_core::ledger::{Held, Hold};
use aliquot_core::preemption::record::{self, State, Victim};
use aliquot_core::preemption::{self, NoPlan, Node, Occupant, Plan, Question, Record, Standing};
use aliquot_core::quota::Amount;
use aliquot_core::{Demand, Ledger, NodeName, PodUid, Requests, Seats};
use tokio::time::Instant;

use crate::books::Books;
use crate::tenants::{Tenant, Tenants};
use crate::waiting::Waiting;

/// A pod that has not ended this many seconds after its time is not waited for.
const LATE: i64 = 30;
/// What is given beyond twice the time that victims may take to end.
const SLACK: u64 = 30;

/// Pods that are not asked to end: they do already, or may not.
#[derive(Debug, Default)]
pub(crate) struct Apart<'a> {
    /// They will end for another pod's plan.
    pub(crate) ending: HashSet<&'a PodUid>,
    /// The API server says that a budget protects them.
    pub(crate) protected: HashSet<PodUid>,
}

impl Books {
    /// Who has to end for this pod, if that helps.
    pub(crate) fn plan(
        &self,
        uid: &PodUid,
        waiting: &Waiting,
        apart: &Apart<'_>,
        now: i64,
    ) -> Result<Plan, NoPlan> {
        let (allowed, _) = self.tenants.0.read().budgets();
        let policies = self.policies();
        let question = Question {
            demand: &waiting.demand,
            priority: waiting.priority,
            policies: &policies,
            budgets: &allowed,
        };
        let cluster = self.snapshot();
        let named = waiting
            .offered
            .named()
            .filter_map(|slot| cluster.named(slot));
        let nodes = named.filter_map(|(name, _)| {
            let tenants = self.tenants.0.read();
            self.read(|ledger| node(ledger, &tenants, name, uid, apart, now))
        });
        preemption::plan(&question, nodes)
    }

    /// Holds what the pod will take once the plan's victims have ended, and says
    /// what is to be written of it; `None` if the books have changed so that it
    /// would not fit, or somebody else sees to it. A quota ends it.
    pub(crate) fn hold_for(
        &self,
        uid: &PodUid,
        waiting: &Waiting,
        plan: &Plan,
        apart: &Apart<'_>,
        now: i64,
    ) -> Result<Option<Record>, NoPlan> {
        let preemptions = self.preemptions.lock();
        if preemptions.kubes(uid, Instant::now()) {
            return Ok(None);
        }
        let tenants = self.tenants.0.read();
        let mut ledger = self.ledger.write();
        if ledger.booking(uid).is_some() {
            return Ok(None);
        }
        let (allowed, _) = tenants.budgets();
        let policies = self.policies();
        let question = Question {
            demand: &waiting.demand,
            priority: waiting.priority,
            policies: &policies,
            budgets: &allowed,
        };
        let node = node(&ledger, &tenants, &plan.node, uid, apart, now);
        let room = |node: &Node| preemption::room(&question, node, &plan.victims);
        let (Some(node), Some(fit)) = (&node, node.as_ref().and_then(room)) else {
            return Ok(None);
        };
        let amount = Amount::of(fit.uses.iter().map(|(_, used)| used));
        let headroom = ledger.headroom(&waiting.pod.namespace);
        if headroom.is_some_and(|left| !left.allows(amount)) {
            return Err(NoPlan::Quota);
        }
        let inventory = node.published.inventory.as_deref();
        let hold = inventory
            .map(|inventory| fit.held(inventory))
            .unwrap_or_default();
        let victims: Option<Vec<&Tenant>> =
            plan.victims.iter().map(|uid| tenants.get(uid)).collect();
        let Some(victims) = victims else {
            return Ok(None);
        };
        let grace = victims.iter().map(|tenant| tenant.grace).max().unwrap_or(0);
        let until = u64::try_from(now).unwrap_or(0) + limit(grace);
        ledger.hold(
            uid,
            Hold {
                node: plan.node.clone(),
                held: Held::Uses(hold.clone()),
                seats: waiting.demand.seats(),
                written: false,
            },
        );
        let name = |tenant: &&Tenant| Victim {
            uid: tenant.pod.uid.as_str().into(),
            namespace: tenant.pod.namespace.clone(),
            name: tenant.pod.name.clone(),
        };
        Ok(Some(Record {
            v: record::VERSION,
            state: State::Open,
            node: plan.node.clone(),
            victims: victims.iter().map(name).collect(),
            hold,
            until,
        }))
    }

    /// Which of these victims that kube-scheduler thinks of on a node, and which
    /// more, must end so that the pod fits there; `None` if that does not help.
    pub(crate) fn victims_beside(
        &self,
        uid: &PodUid,
        (demand, priority): (&Demand, i32),
        (name, kubes): (&NodeName, &[PodUid]),
        now: i64,
    ) -> Option<Vec<PodUid>> {
        let tenants = self.tenants.0.read();
        let (allowed, _) = tenants.budgets();
        let policies = self.policies();
        let question = Question {
            demand,
            priority,
            policies: &policies,
            budgets: &allowed,
        };
        let apart = Apart {
            ending: kubes.iter().collect(),
            protected: HashSet::new(),
        };
        let node = self.read(|ledger| node(ledger, &tenants, name, uid, &apart, now))?;
        drop(tenants);
        preemption::victims(&question, &node).ok()
    }
}

/// How many seconds a plan is followed whose victims may take `grace` to end.
pub(super) fn limit(grace: u64) -> u64 {
    grace.saturating_mul(2).saturating_add(SLACK)
}

/// A node and who has shares of it, as the planner sees it.
fn node(
    ledger: &Ledger,
    tenants: &Tenants,
    name: &NodeName,
    preemptor: &PodUid,
    apart: &Apart<'_>,
    now: i64,
) -> Option<Node> {
    let (_, covering) = tenants.budgets();
    let bookings = ledger.pods_on(name.as_str());
    let bookings = bookings.filter_map(|uid| Some((uid, ledger.booking(uid)?)));
    let (holding, others): (Vec<_>, Vec<_>) = bookings.partition(|(_, booking)| booking.holds());
    let mut requested = Requests {
        host: ledger.cluster().node(name.as_str())?.host.requested,
        seats: Seats::default(),
    };
    for (_, booking) in others {
        requested.seats.plus(&booking.requests.seats);
    }
    let mut occupants: Vec<Occupant> = holding
        .into_iter()
        .map(|(uid, booking)| {
            let tenant = tenants.get(uid);
            let ending = tenant.and_then(|tenant| tenant.ending);
            let standing = if apart.ending.contains(uid) {
                Standing::Ending
            } else if let Some(until) = ending {
                let in_time = now <= until.saturating_add(LATE);
                if in_time {
                    Standing::Ending
                } else {
                    Standing::Fixed
                }
            } else if booking.confirmed
                && tenant.is_some_and(Tenant::can_end)
                && !apart.protected.contains(uid)
            {
                Standing::Runs
            } else {
                Standing::Fixed
            };
            Occupant {
                uid: uid.clone(),
                held: booking.held.clone(),
                seats: booking.requests.seats.clone(),
                priority: tenant.map_or(i32::MAX, |tenant| tenant.priority),
                started: tenant.map_or(0, |tenant| tenant.started),
                budgets: tenant.map(&covering).unwrap_or_default(),
                standing,
            }
        })
        .collect();
    let holders = ledger.holds_on(name.as_str());
    let others = holders.filter(|uid| *uid != preemptor && ledger.booking(uid).is_none());
    let others = others.filter_map(|uid| Some((uid, ledger.held_for(uid)?)));
    occupants.extend(others.map(|(uid, hold)| Occupant {
        uid: uid.clone(),
        held: hold.held.clone(),
        seats: hold.seats.clone(),
        priority: i32::MAX,
        started: 0,
        budgets: Vec::new(),
        standing: Standing::Fixed,
    }));
    Some(Node {
        name: name.clone(),
        published: ledger.published(name.as_str())?.clone(),
        requested,
        occupants,
    })
}

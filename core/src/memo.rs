//! A cache of verdicts on nodes, for each shape of pod.
//!
//!
//! A verdict is valid until its node's version changes, so an extender call evaluates only
//! the nodes that changed since the last pod of the same shape. A change of the typical
//! pods empties the cache; whoever changes the policies starts a new one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::fit::{self, Policies};
use crate::node::NodeState;
use crate::quota::QuotaAmount;
use crate::reason::{Reason, Refusal};
use crate::typical::Typical;

/// Verdicts cached by default; the least recently used shape is dropped. About 50 MiB: 200
/// shapes of 5,000 nodes.
const VERDICTS: usize = 1 << 20;
const _: () = assert!(size_of::<Option<(u64, NodeVerdict)>>() <= 48);
/// Shapes cached however many nodes there are.
const SHAPES: usize = 32;

/// Whether a node can take a pod of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    /// It can.
    Fits {
        /// The score; higher is better.
        score: u64,
        /// What the pod would use there, for its namespace's quotas. The verdict is valid
        /// for pods of every namespace without reservations.
        amount: QuotaAmount,
    },
    /// It cannot. Nodes with equal refusals share one, because it is large.
    Refused(Arc<Refusal>),
}

impl NodeVerdict {
    /// Evaluates one node.
    pub fn on(node: &NodeState, demand: &Demand, policies: &Policies) -> Self {
        match fit::fit(node, demand, policies) {
            Ok(fit) => Self::Fits {
                score: fit.score,
                amount: QuotaAmount::of(fit.uses.iter().map(|(_, used)| used)),
            },
            Err(refusal) => Self::Refused(Arc::new(refusal)),
        }
    }
}

#[derive(Debug, Default)]
struct ShapeVerdicts {
    last_used: u64,
    /// By slot: the node's version, and the verdict on it.
    verdicts: Vec<Option<(u64, NodeVerdict)>>,
    /// The last refusal.
    refusal: Arc<Refusal>,
}

/// Verdicts by shape and node.
#[derive(Debug, Default)]
pub struct Memo {
    most: Option<usize>,
    shapes: HashMap<Demand, ShapeVerdicts>,
    calls: u64,
    /// The typical pods that the verdicts were made with.
    typical: Option<Arc<Typical>>,
}

/// The verdicts for one shape on one snapshot.
#[derive(Debug)]
pub struct Verdicts<'a> {
    shape: &'a mut ShapeVerdicts,
    cluster: &'a Cluster,
    demand: &'a Demand,
    policies: &'a Policies,
}

impl Memo {
    /// An empty cache for this many shapes, however many nodes there are.
    pub fn with_shapes(most: usize) -> Self {
        Self {
            most: Some(most),
            ..Self::default()
        }
    }

    /// The verdicts for pods like `demand`.
    pub fn verdicts<'a>(
        &'a mut self,
        cluster: &'a Cluster,
        demand: &'a Demand,
        policies: &'a Policies,
    ) -> Verdicts<'a> {
        self.calls += 1;
        let known = self.typical.as_ref();
        if !known.is_some_and(|known| Arc::ptr_eq(known, &policies.typical)) {
            self.shapes.clear();
            self.typical = Some(policies.typical.clone());
        }
        let affordable = (VERDICTS / cluster.slots().max(1)).max(SHAPES);
        let most = self.most.unwrap_or(affordable);
        let key = demand.shape(cluster);
        if !self.shapes.contains_key(&*key) && self.shapes.len() >= most {
            let oldest = self.shapes.iter().min_by_key(|(_, shape)| shape.last_used);
            if let Some(oldest) = oldest.map(|(demand, _)| demand.clone()) {
                self.shapes.remove(&oldest);
            }
        }
        let shape = self.shapes.entry(key.into_owned()).or_default();
        shape.last_used = self.calls;
        shape.verdicts.resize_with(cluster.slots(), || None);
        Verdicts {
            shape,
            cluster,
            demand,
            policies,
        }
    }
}

impl Verdicts<'_> {
    /// The verdict on the node in this slot of the snapshot.
    pub fn of(&mut self, slot: usize) -> &NodeVerdict {
        let version = self.cluster.version(slot);
        let ShapeVerdicts {
            verdicts, refusal, ..
        } = &mut *self.shape;
        let cached = &mut verdicts[slot];
        let is_current = cached
            .as_ref()
            .is_some_and(|(evaluated, _)| *evaluated == version);
        if !is_current {
            *cached = None;
        }
        let evaluated = cached.get_or_insert_with(|| {
            let mut verdict = self.cluster.at(slot).map_or_else(
                || NodeVerdict::Refused(Refusal::of(Reason::NodeNotRegistered).into()),
                |node| NodeVerdict::on(node, self.demand, self.policies),
            );
            if let NodeVerdict::Refused(why) = &mut verdict {
                if why == refusal {
                    *why = refusal.clone();
                } else {
                    *refusal = why.clone();
                }
            }
            (version, verdict)
        });
        &evaluated.1
    }
}

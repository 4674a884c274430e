//! What was concluded of each node for each shape of pod, kept while it holds.
//!
//! A verdict stands until its node's version changes, so a call of the extender
//! judges only the nodes that changed since the last pod of the same shape.
//! Fed by: [`crate::decide`]. Must not: outlive a change of the typical pods,
//! which empties it, or of the policies; who changes those starts an empty memo.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::fit::{self, Policies};
use crate::node::NodeState;
use crate::quota::Amount;
use crate::reason::{Reason, Refusal};
use crate::typical::Typical;

/// Verdicts kept unless somebody says otherwise; the shape not asked for longest
/// gives way. About 50 MiB: 200 shapes of 5,000 nodes.
const VERDICTS: usize = 1 << 20;
const _: () = assert!(size_of::<Option<(u64, Verdict)>>() <= 48);
/// Shapes kept however many nodes there are.
const SHAPES: usize = 32;

/// Whether a node can take a pod of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It can.
    Fits {
        /// How good it is; higher is better.
        score: u64,
        /// What the pod would take there, for its namespace's quotas. The verdict holds
        /// for pods of every namespace that nothing is kept for.
        amount: Amount,
    },
    /// It cannot. Nodes that refuse alike share one refusal: it is long.
    Refused(Arc<Refusal>),
}

impl Verdict {
    /// Judges one node.
    pub fn on(node: &NodeState, demand: &Demand, policies: &Policies) -> Self {
        match fit::fit(node, demand, policies) {
            Ok(fit) => Self::Fits {
                score: fit.score,
                amount: Amount::of(fit.uses.iter().map(|(_, used)| used)),
            },
            Err(refusal) => Self::Refused(Arc::new(refusal)),
        }
    }
}

#[derive(Debug, Default)]
struct Shape {
    asked: u64,
    /// By slot: the version of the node that was judged, and how.
    verdicts: Vec<Option<(u64, Verdict)>>,
    /// The refusal that was met last.
    refusal: Arc<Refusal>,
}

/// Verdicts by shape and node.
#[derive(Debug, Default)]
pub struct Memo {
    most: Option<usize>,
    shapes: HashMap<Demand, Shape>,
    calls: u64,
    /// What the verdicts were made with.
    typical: Option<Arc<Typical>>,
}

/// The verdicts for one shape on one snapshot.
#[derive(Debug)]
pub struct Verdicts<'a> {
    shape: &'a mut Shape,
    cluster: &'a Cluster,
    demand: &'a Demand,
    policies: &'a Policies,
}

impl Memo {
    /// An empty one that keeps verdicts for this many shapes, however many nodes
    /// there are.
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
            let oldest = self.shapes.iter().min_by_key(|(_, shape)| shape.asked);
            if let Some(oldest) = oldest.map(|(demand, _)| demand.clone()) {
                self.shapes.remove(&oldest);
            }
        }
        let shape = self.shapes.entry(key.into_owned()).or_default();
        shape.asked = self.calls;
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
    /// The verdict on the node in this slot, which must be one of the snapshot.
    pub fn of(&mut self, slot: usize) -> &Verdict {
        let version = self.cluster.version(slot);
        let Shape {
            verdicts, refusal, ..
        } = &mut *self.shape;
        let kept = &mut verdicts[slot];
        let stands = kept.as_ref().is_some_and(|(judged, _)| *judged == version);
        if !stands {
            *kept = None;
        }
        let judged = kept.get_or_insert_with(|| {
            let mut verdict = self.cluster.at(slot).map_or_else(
                || Verdict::Refused(Refusal::of(Reason::NodeNotRegistered).into()),
                |node| Verdict::on(node, self.demand, self.policies),
            );
            if let Verdict::Refused(why) = &mut verdict {
                if why == refusal {
                    *why = refusal.clone();
                } else {
                    *refusal = why.clone();
                }
            }
            (version, verdict)
        });
        &judged.1
    }
}

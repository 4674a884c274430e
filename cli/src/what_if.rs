//! Would this pod fit a cluster as it is now, where, and if not, what would have
//! to change.
//!
//! Fed by: a snapshot of nodes and pods, and a manifest. Judged by core alone:
//! a change is found by asking again with a pod that wants less.
//! Must not: write anything, guess what becomes free, or judge taints, affinity
//! and quota, which are kube-scheduler's and the namespace's.

use std::sync::Arc;

use aliquot_core::answer::{self, Head, PodAnswer, Tail};
use aliquot_core::decide::{self, Question};
use aliquot_core::explain::NodeAnswer;
use aliquot_core::fit::Policies;
use aliquot_core::memo::Memo;
use aliquot_core::{Ask, Census, Demand, Ledger, Memory, Mib, Percent, Rules};
use aliquot_k8s::pod::{self, DemandError, Settings};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use thiserror::Error;

use crate::live;

/// A smaller wish that would be granted now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What would have to be different.
    pub change: String,
    /// How many nodes would then take the pod.
    pub nodes: usize,
    /// The best of them.
    pub best: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// Each node, as `explain` says it; offered are those that are not cordoned
    /// and have room for the pod's CPU and memory.
    #[serde(flatten)]
    pub answer: PodAnswer,
    /// The nodes that take it, best first, with the rank that prioritize gives.
    pub ranks: Vec<(String, i64)>,
    /// Where none does: each on its own would help.
    pub changes: Vec<Change>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WhatIfError {
    /// Not YAML or JSON, or not the shape of a pod.
    #[error("the manifest cannot be read as a Pod: {0}")]
    Manifest(#[from] serde_saphyr::Error),
    /// Another kind of object.
    #[error("kind {kind:?}; accepted: one Pod (of a Deployment, its spec.template with kind: Pod)")]
    Kind {
        /// As it came.
        kind: String,
    },
    /// Its resources or annotations.
    #[error("the pod's GPU request cannot be read: {0}")]
    Demand(#[from] DemandError),
    /// Nothing of ours.
    #[error("the pod asks for no GPU; kube-scheduler places it by CPU and memory")]
    AsksForNone,
}

/// Reads a manifest, YAML or JSON.
pub fn manifest(text: &str) -> Result<Pod, WhatIfError> {
    let value: serde_json::Value = serde_saphyr::from_str(text)?;
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind != "Pod" {
        return Err(WhatIfError::Kind {
            kind: kind.to_owned(),
        });
    }
    Ok(serde_saphyr::from_str(text)?)
}

/// Asks for `pod` on these nodes with these pods on them.
pub fn what_if(
    nodes: &[Node],
    pods: &[Pod],
    pod: &Pod,
    settings: &Settings,
    mut policies: Policies,
) -> Result<WhatIf, WhatIfError> {
    let demand = pod::demand(pod, settings)?;
    if !demand.asks() {
        return Err(WhatIfError::AsksForNone);
    }
    let ledger = live::ledger(nodes, pods, settings);
    let mut census = Census::default();
    for (_, name, node) in ledger.cluster().iter() {
        if node.inventory.is_some() {
            census.count(&ledger, name);
        }
    }
    policies.typical = Arc::new(census.typical());
    let cordoned = |node: &&Node| {
        node.spec
            .as_ref()
            .is_some_and(|s| s.unschedulable == Some(true))
    };
    let cordoned = nodes.iter().filter(cordoned);
    let asked = Asked {
        ledger: &ledger,
        policies: &policies,
        cordoned: cordoned
            .filter_map(|n| n.metadata.name.as_deref())
            .collect(),
    };
    let ranks = asked.ranks(&demand);
    let changes = if ranks.is_empty() {
        asked.changes(&demand)
    } else {
        Vec::new()
    };
    Ok(WhatIf {
        answer: asked.answer(pod, &demand),
        ranks,
        changes,
    })
}

struct Asked<'a> {
    ledger: &'a Ledger,
    policies: &'a Policies,
    cordoned: Vec<&'a str>,
}

impl Asked<'_> {
    /// kube-scheduler's part, as far as it is judged here.
    fn offered(&self, demand: &Demand) -> Vec<&str> {
        let nodes = self.ledger.cluster().iter();
        let room = nodes.filter(|(.., node)| node.host.free().covers(demand.host));
        let names = room.map(|(_, name, _)| name.as_str());
        let mut names: Vec<_> = names.filter(|name| !self.cordoned.contains(name)).collect();
        names.sort_unstable();
        names
    }

    /// The nodes that take it, best first.
    fn ranks(&self, demand: &Demand) -> Vec<(String, i64)> {
        let question = Question {
            cluster: self.ledger.cluster(),
            demand,
            policies: self.policies,
            notes: &[],
            own: None,
            headroom: None,
        };
        let names = self.offered(demand);
        let mut memo = Memo::default();
        let Ok(fits) = decide::fitting(&question, &mut memo, &names) else {
            return Vec::new();
        };
        let best = decide::shortlist(fits, usize::MAX);
        let ranks = decide::ranks(&question, &mut memo, &best).into_iter();
        ranks.map(|(name, rank)| (name.to_owned(), rank)).collect()
    }

    fn answer(&self, pod: &Pod, demand: &Demand) -> PodAnswer {
        let offered = self.offered(demand);
        let mut tail = Tail::default();
        let judge = |(_, name, node): (usize, &aliquot_core::NodeName, &Arc<_>)| {
            let offered = offered.contains(&name.as_str());
            let (line, refusal) =
                NodeAnswer::of(name, node, demand, self.policies, offered, None, None);
            tail.add(&line, refusal.as_ref());
            line
        };
        let mut nodes: Vec<_> = self.ledger.cluster().iter().map(judge).collect();
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        PodAnswer {
            head: Head {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: pod::uid(pod),
                leads: false,
                asks: answer::asked(demand),
                refused: None,
                booked: None,
            },
            nodes,
            tail,
        }
    }

    /// What would help, each on its own, the smallest step of its kind.
    fn changes(&self, demand: &Demand) -> Vec<Change> {
        let mut changes = Vec::new();
        let most =
            |of: fn(&Ask) -> u64| demand.containers.iter().flat_map(|c| &c.asks).map(of).max();
        let mut largest =
            |what: &str, unit: &str, most: Option<u64>, less: &dyn Fn(&mut Ask, u64)| {
                let with = |limit: u64| {
                    let mut smaller = demand.clone();
                    let asks = smaller.containers.iter_mut().flat_map(|c| &mut c.asks);
                    asks.for_each(|ask| less(ask, limit));
                    self.ranks(&smaller)
                };
                let limit = highest(most.unwrap_or(0), |limit| !with(limit).is_empty());
                if let Some(limit) = limit {
                    changes.push(change(
                        format!("{what} {limit}{unit} or less"),
                        &with(limit),
                    ));
                }
            };
        largest("memory: on each GPU", " MiB", most(mib), &|ask, limit| {
            if let Memory::Mib(memory) = &mut ask.memory {
                *memory = (*memory).min(Mib(limit));
            }
        });
        largest("memory: of each GPU", " %", most(part), &|ask, limit| {
            if let Memory::Share(part) = &mut ask.memory {
                *part = (*part).min(Percent(u32::try_from(limit).unwrap_or(100)));
            }
        });
        largest(
            "compute: of each GPU",
            " %",
            most(|ask| ask.cores.0.into()),
            &|ask, limit| {
                ask.cores = ask.cores.min(Percent(u32::try_from(limit).unwrap_or(100)));
            },
        );
        largest(
            "GPUs: for each container",
            "",
            most(|ask| ask.count.into()),
            &|ask, limit| {
                ask.count = ask.count.min(u32::try_from(limit).unwrap_or(1));
            },
        );
        if demand.rules != Rules::default() {
            let rules = Rules::default();
            let free = Demand {
                rules,
                ..demand.clone()
            };
            changes.extend(worth(
                "rules: none of its annotations for models, uuids, modes and NUMA",
                &self.ranks(&free),
            ));
        }
        let host = aliquot_core::Compute::default();
        let light = Demand {
            host,
            ..demand.clone()
        };
        changes.extend(worth(
            "CPU and memory of the node: enough of both",
            &self.ranks(&light),
        ));
        let open = Asked {
            cordoned: Vec::new(),
            ..*self
        };
        changes.extend(worth("nodes: none cordoned", &open.ranks(demand)));
        changes
    }
}

fn mib(ask: &Ask) -> u64 {
    match ask.memory {
        Memory::Mib(memory) => memory.0,
        Memory::Share(_) => 0,
    }
}

fn part(ask: &Ask) -> u64 {
    match ask.memory {
        Memory::Mib(_) => 0,
        Memory::Share(part) => part.0.into(),
    }
}

/// The highest number below `most`, at least 1, that still `fits`; what fits a
/// number fits every lower one.
fn highest(most: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut fitting, mut refused) = (0, most);
    while refused > fitting + 1 {
        let middle = u64::midpoint(fitting, refused);
        if fits(middle) {
            fitting = middle;
        } else {
            refused = middle;
        }
    }
    (fitting > 0).then_some(fitting)
}

fn worth(what: &str, ranks: &[(String, i64)]) -> Option<Change> {
    (!ranks.is_empty()).then(|| change(what.to_owned(), ranks))
}

fn change(change: String, ranks: &[(String, i64)]) -> Change {
    Change {
        change,
        nodes: ranks.len(),
        best: ranks
            .first()
            .map_or_else(String::new, |(name, _)| name.clone()),
    }
}

#[cfg(test)]
#[path = "what_if_tests.rs"]
mod tests;

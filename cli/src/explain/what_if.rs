//! `explain -f`: whether a pod would fit a cluster as it is now, where, and if not, which
//! changes would help. A change is found by asking again for a pod that requests less. Taints, affinity
//! and quota are not checked.

use std::fmt::Write as _;
use std::sync::Arc;

use aliquot_core::decide::{self, Memo, NodeQuery};
use aliquot_core::explain::{NodeAnswer, NodeTotals, PodAnswer, PodHeader, container_requests};
use aliquot_core::request_annotation::REQUEST;
use aliquot_core::score::Policies;
use aliquot_core::{Census, Demand, DeviceRules, GpuRequest, Ledger, Memory, Mib, Percent};
use aliquot_k8s::pod::{self, DemandError, Settings};
use aliquot_k8s::view::PodView;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;
use thiserror::Error;

use super::{asks, nodes_table};
use crate::snapshot;
use crate::table::aligned;

/// A smaller request that would fit now.
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
    /// Each node, as in `explain`; offered are those that are not cordoned and have enough CPU and memory
    /// for the pod.
    #[serde(flatten)]
    pub answer: PodAnswer,
    /// The nodes that fit, best first, with the rank that prioritize gives.
    pub ranks: Vec<(String, i64)>,
    /// Where none fits: changes that each would help alone.
    pub changes: Vec<Change>,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum WhatIfError {
    /// Not YAML or JSON, or not the shape of a pod.
    #[error("the manifest cannot be parsed as a Pod: {0}")]
    Manifest(#[from] serde_saphyr::Error),
    /// Another kind of object.
    #[error("kind is {kind:?}; expected: Pod (for a Deployment, its spec.template with kind: Pod)")]
    Kind {
        /// The manifest's kind.
        kind: String,
    },
    /// Its resources or annotations.
    #[error("the pod's GPU request cannot be read: {0}")]
    Demand(#[from] DemandError),
    /// It requests nothing of Aliquot's.
    #[error("the pod requests no GPU; kube-scheduler places it by CPU and memory")]
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

/// Tries `pod` on these nodes with these pods on them.
pub fn what_if(
    nodes: &[Node],
    pods: &[Pod],
    pod: &Pod,
    settings: &Settings,
    mut policies: Policies,
) -> Result<WhatIf, WhatIfError> {
    let demand = pod::demand(&PodView::from(pod), settings)?;
    if !demand.requests_gpu() {
        return Err(WhatIfError::AsksForNone);
    }
    let ledger = snapshot::ledger(nodes, pods, settings);
    let mut census = Census::default();
    for (_, name, node) in ledger.cluster().iter() {
        if node.inventory.is_some() {
            ledger.count_pods(name, &mut census);
        }
    }
    policies.typical = Arc::new(census.typical());
    let cordoned = |node: &&Node| {
        node.spec
            .as_ref()
            .is_some_and(|s| s.unschedulable == Some(true))
    };
    let cordoned = nodes.iter().filter(cordoned);
    let query = WhatIfQuery {
        ledger: &ledger,
        policies: &policies,
        cordoned: cordoned
            .filter_map(|n| n.metadata.name.as_deref())
            .collect(),
    };
    let ranks = query.ranks(&demand);
    let changes = if ranks.is_empty() {
        query.changes(&demand)
    } else {
        Vec::new()
    };
    Ok(WhatIf {
        answer: query.answer(pod, &demand),
        ranks,
        changes,
    })
}

struct WhatIfQuery<'a> {
    ledger: &'a Ledger,
    policies: &'a Policies,
    cordoned: Vec<&'a str>,
}

impl WhatIfQuery<'_> {
    /// The nodes that kube-scheduler would offer, by cordon, CPU and memory.
    fn offered(&self, demand: &Demand) -> Vec<&str> {
        let nodes = self.ledger.cluster().iter();
        let room = nodes.filter(|(.., node)| node.host.free().covers(demand.host));
        let names = room.map(|(_, name, _)| name.as_str());
        let mut names: Vec<_> = names.filter(|name| !self.cordoned.contains(name)).collect();
        names.sort_unstable();
        names
    }

    /// The nodes that fit, best first.
    fn ranks(&self, demand: &Demand) -> Vec<(String, i64)> {
        let question = NodeQuery {
            cluster: self.ledger.cluster(),
            demand,
            policies: self.policies,
            without_own: None,
            headroom: None,
        };
        let names = self.offered(demand);
        let mut memo = Memo::default();
        let Ok(best) = decide::best(&question, &mut memo, &names, names.len()) else {
            return Vec::new();
        };
        let ranks = decide::ranks(&question, &mut memo, &best).into_iter();
        ranks.map(|(name, rank)| (name.to_owned(), rank)).collect()
    }

    fn answer(&self, pod: &Pod, demand: &Demand) -> PodAnswer {
        let offered = self.offered(demand);
        let mut tail = NodeTotals::default();
        let answer_of = |(_, name, node): (usize, &aliquot_core::NodeName, &Arc<_>)| {
            let offered = offered.contains(&name.as_str());
            let (line, refusal) =
                NodeAnswer::evaluate(name, node, demand, self.policies, offered, None);
            tail.add(&line, refusal.as_ref());
            line
        };
        let mut nodes: Vec<_> = self.ledger.cluster().iter().map(answer_of).collect();
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        PodAnswer {
            head: PodHeader {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                uid: pod::uid(pod),
                leads: false,
                requests: container_requests(demand),
                annotated: pod::annotation(pod, REQUEST).is_some(),
                burst: demand.rules.burst,
                refused: None,
                condition: None,
                placement: None,
            },
            nodes,
            tail,
        }
    }

    /// Changes that would help alone, the smallest of each kind.
    fn changes(&self, demand: &Demand) -> Vec<Change> {
        let mut changes = Vec::new();
        let most = |of: fn(&GpuRequest) -> u64| {
            demand
                .containers
                .iter()
                .flat_map(|c| &c.requests)
                .map(of)
                .max()
        };
        let mut largest =
            |what: &str, per_gpu: &str, most: Option<u64>, less: &dyn Fn(&mut GpuRequest, u64)| {
                let with = |limit: u64| {
                    let mut smaller = demand.clone();
                    let asks = smaller.containers.iter_mut().flat_map(|c| &mut c.requests);
                    asks.for_each(|ask| less(ask, limit));
                    self.ranks(&smaller)
                };
                let limit = highest(most.unwrap_or(0), |limit| !with(limit).is_empty());
                if let Some(limit) = limit {
                    changes.push(change(
                        format!("{what}: at most {limit}{per_gpu}"),
                        &with(limit),
                    ));
                }
            };
        largest("memory", " MiB on each GPU", most(mib), &|ask, limit| {
            if let Memory::Mib(memory) = &mut ask.memory {
                *memory = (*memory).min(Mib(limit));
            }
        });
        largest("memory", " % of each GPU", most(part), &|ask, limit| {
            if let Memory::Share(part) = &mut ask.memory {
                *part = (*part).min(Percent(u32::try_from(limit).unwrap_or(100)));
            }
        });
        largest(
            "compute",
            " % of each GPU",
            most(|ask| ask.cores.0.into()),
            &|ask, limit| {
                ask.cores = ask.cores.min(Percent(u32::try_from(limit).unwrap_or(100)));
            },
        );
        largest(
            "GPUs",
            " for each container",
            most(|ask| ask.count.into()),
            &|ask, limit| {
                ask.count = ask.count.min(u32::try_from(limit).unwrap_or(1));
            },
        );
        if demand.rules != DeviceRules::default() {
            let rules = DeviceRules::default();
            let free = Demand {
                rules,
                ..demand.clone()
            };
            changes.extend(change_if_any(
                "annotations: none for models, UUIDs, modes and NUMA",
                &self.ranks(&free),
            ));
        }
        let host = aliquot_core::HostResources::default();
        let light = Demand {
            host,
            ..demand.clone()
        };
        changes.extend(change_if_any(
            "CPU and memory: enough of both on the node",
            &self.ranks(&light),
        ));
        let open = WhatIfQuery {
            cordoned: Vec::new(),
            ..*self
        };
        changes.extend(change_if_any("nodes: uncordoned", &open.ranks(demand)));
        changes
    }
}

fn mib(ask: &GpuRequest) -> u64 {
    match ask.memory {
        Memory::Mib(memory) => memory.0,
        Memory::Share(_) => 0,
    }
}

fn part(ask: &GpuRequest) -> u64 {
    match ask.memory {
        Memory::Mib(_) => 0,
        Memory::Share(part) => part.0.into(),
    }
}

/// The highest number below `most`, at least 1, that still `fits`; `fits` is monotonic.
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

fn change_if_any(what: &str, ranks: &[(String, i64)]) -> Option<Change> {
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

/// Whether a pod would fit, where, and what would help.
pub fn table(answer: &WhatIf, most: usize) -> String {
    let mut text = asks(&answer.answer.head);
    match answer.ranks.first() {
        Some((best, _)) => {
            let _ = writeln!(text, "The pod would be placed on node {best}.");
        }
        None => text.push_str("The pod would stay pending.\n"),
    }
    let change = |change: &Change| {
        let (what, nodes, best) = (&change.change, change.nodes, &change.best);
        vec![what.clone(), nodes.to_string(), best.clone()]
    };
    if !answer.changes.is_empty() {
        text.push_str("\nEach of these changes alone would help:\n\n");
        let rows: Vec<_> = answer.changes.iter().map(change).collect();
        text.push_str(&aligned("CHANGE|NODES|BEST", &rows));
    } else if answer.ranks.is_empty() {
        text.push_str("No single change would help.\n");
    }
    text.push('\n');
    text.push_str(&nodes_table(&answer.answer, most));
    text
}

#[cfg(test)]
#[path = "what_if_tests.rs"]
mod tests;

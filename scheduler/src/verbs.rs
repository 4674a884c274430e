//! What filter and prioritize answer, as functions of the books and a call.
//!
//! Fed by: [`crate::routes`].
//! Must not: change anything but soft notes and the mark that a pod was
//! refused; and nothing at all for a call with Node objects, which is answered
//! from what these objects say (simulations of others).

use std::borrow::Cow;

use aliquot_core::decide::{self, Question, Ranked};
use aliquot_core::fit::Policies;
use aliquot_core::memo::Memo;
use aliquot_core::{Cluster, Demand, Ledger, PodUid, Reason, Refusal};
use aliquot_k8s::event::{Note, Notes};
use aliquot_k8s::extender::{ExtenderArgs, ExtenderFilterResult, HostPriority, NodeList};
use aliquot_k8s::node::published;
use aliquot_k8s::pod;
use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::time::Instant;

use crate::books::Books;
use crate::fail_point::{self, Point};
use crate::waiting::{Told, Waiting, reference, waiting};

/// The nodes of a call.
enum Candidates<'a> {
    /// Their names; the books know them.
    Names(Vec<Cow<'a, str>>),
    /// Whole objects; nothing but what they say counts.
    Objects(NodeList),
}

/// A call that can be decided.
pub struct Call<'a> {
    pod: Pod,
    uid: PodUid,
    demand: Demand,
    candidates: Candidates<'a>,
}

/// How a call ended, for the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered.
    Ok,
    /// No node can take the pod.
    Refused(Refusal),
}

impl<'a> Call<'a> {
    /// Reads the body of a call.
    pub fn read(body: &'a [u8], settings: &pod::Settings) -> Result<Self, String> {
        let args: ExtenderArgs<'a> = serde_json::from_slice(body)
            .map_err(|error| format!("cannot read the extender call: {error}"))?;
        let pod = args.pod.ok_or("the extender call has no Pod")?;
        let candidates = match (args.node_names, args.nodes) {
            (Some(names), _) => Candidates::Names(names),
            (None, Some(nodes)) => {
                let nameless = nodes
                    .items
                    .iter()
                    .position(|node| node.metadata.name.is_none());
                if let Some(at) = nameless {
                    return Err(format!(
                        "the extender call's Nodes.items[{at}].metadata.name is missing"
                    ));
                }
                Candidates::Objects(nodes)
            }
            (None, None) => return Err("the extender call has neither NodeNames nor Nodes".into()),
        };
        let demand = pod::demand(&pod, settings)
            .map_err(|error| format!("the pod's GPU request cannot be read: {error}"))?;
        Ok(Self {
            uid: pod::uid(&pod),
            pod,
            demand,
            candidates,
        })
    }

    /// The nodes that can take the pod: the best `shortlist` of them, or all
    /// where kube-scheduler weighs them by something else, too.
    pub fn filter(
        self,
        books: &Books,
        events: &Notes,
        shortlist: usize,
    ) -> (Outcome, ExtenderFilterResult) {
        let names = match &self.candidates {
            Candidates::Objects(nodes) => return self.filter_objects(&books.policies(), nodes),
            Candidates::Names(names) => names,
        };
        if !self.demand.asks() {
            return (Outcome::Ok, fits(names.iter().map(AsRef::as_ref)));
        }
        let most = if shortlist == 0 || wants_all(&self.pod) {
            names.len()
        } else {
            shortlist
        };
        let enlargements = books.enlargements();
        let view = books.view(pod::namespace(&self.pod).as_str());
        let cluster = &view.0;
        match books.fitting(&view, &self.uid, &self.demand, names) {
            Ok(found) => {
                let best = decide::shortlist(found, most);
                if let Some(first) = best.first() {
                    books.claim(cluster, &self.pod, &self.demand, first);
                }
                fail_point::at(Point::FilterFits);
                (Outcome::Ok, fits(best.into_iter()))
            }
            Err(refusal) => {
                let mut text = decide::refusal_text(names.len(), &refusal);
                if refusal.count(Reason::CardPinned) > 0 {
                    let nodes = books.pinned(cluster, &self.uid, &self.demand, names);
                    text.push_str(&books.held_by(&nodes, &self.demand));
                }
                tracing::info!(pod = ?self.pod.metadata.name, namespace = ?self.pod.metadata.namespace, text, "refused");
                let waiting = Waiting {
                    offered: cluster.set(names),
                    told: Some(Told::once(text.clone(), Instant::now())),
                    ..waiting(&self.pod, self.demand.clone(), true)
                };
                books.refused(&self.uid, waiting, enlargements);
                events.send(Note {
                    pod: reference(&self.pod),
                    warning: true,
                    reason: "Refused",
                    action: "Scheduling",
                    text: text.clone(),
                });
                fail_point::at(Point::FilterRefuses);
                (Outcome::Refused(refusal), refused(names, text))
            }
        }
    }

    fn filter_objects(
        &self,
        policies: &Policies,
        nodes: &NodeList,
    ) -> (Outcome, ExtenderFilterResult) {
        let names = nodes.names();
        if !self.demand.asks() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let answer = ExtenderFilterResult {
                nodes: Some(nodes.only(&names)),
                ..ExtenderFilterResult::default()
            };
            return (Outcome::Ok, answer);
        }
        let cluster = cluster_of(&nodes.items);
        match self.simulate(&cluster, policies, &names) {
            Ok(found) => {
                let names = decide::shortlist(found, usize::MAX);
                let answer = ExtenderFilterResult {
                    nodes: Some(nodes.only(&names)),
                    ..ExtenderFilterResult::default()
                };
                (Outcome::Ok, answer)
            }
            Err(refusal) => {
                let text = decide::refusal_text(names.len(), &refusal);
                let mut answer = refused(&names, text);
                answer.node_names = None;
                answer.nodes = Some(nodes.only(&[]));
                (Outcome::Refused(refusal), answer)
            }
        }
    }

    fn simulate<'n>(
        &self,
        cluster: &Cluster,
        policies: &Policies,
        names: &'n [String],
    ) -> Result<Vec<Ranked<'n>>, Refusal> {
        let question = Question {
            cluster,
            demand: &self.demand,
            policies,
            notes: &[],
            own: None,
            headroom: None,
        };
        decide::fitting(&question, &mut Memo::default(), names)
    }

    /// A rank of 0 to 10 for each node.
    pub fn prioritize(self, books: &Books) -> Vec<HostPriority> {
        let line = |(host, score): (&str, i64)| HostPriority {
            host: host.to_owned(),
            score,
        };
        match &self.candidates {
            Candidates::Names(names) if !self.demand.asks() => {
                names.iter().map(|name| line((name, 0))).collect()
            }
            Candidates::Names(names) => {
                let cluster = books.snapshot();
                let ranks = books.ranks(&cluster, &self.uid, &self.demand, names);
                if let Some((best, _)) = ranks.iter().max_by_key(|(_, rank)| *rank) {
                    books.claim(&cluster, &self.pod, &self.demand, best);
                }
                ranks.into_iter().map(line).collect()
            }
            Candidates::Objects(nodes) if !self.demand.asks() => {
                let names = nodes.names().into_iter();
                names.map(|name| line((&name, 0))).collect()
            }
            Candidates::Objects(nodes) => {
                let names = nodes.names();
                let cluster = cluster_of(&nodes.items);
                let question = Question {
                    cluster: &cluster,
                    demand: &self.demand,
                    policies: &books.policies(),
                    notes: &[],
                    own: None,
                    headroom: None,
                };
                let ranks = decide::ranks(&question, &mut Memo::default(), &names);
                ranks.into_iter().map(line).collect()
            }
        }
    }

    /// For pods that ask for no GPU, as the second, opt-in entry of the
    /// extender asks: 10 for nodes without free GPU, fewer the more there is.
    /// Pods that ask for one get 0 everywhere; the first entry ranks them.
    pub fn prioritize_cpu_only(self, books: &Books) -> Vec<HostPriority> {
        let names = match &self.candidates {
            Candidates::Names(names) => names.iter().map(ToString::to_string).collect(),
            Candidates::Objects(nodes) => nodes.names(),
        };
        let cluster = match &self.candidates {
            Candidates::Names(_) => books.snapshot(),
            Candidates::Objects(nodes) => cluster_of(&nodes.items),
        };
        let ranks = decide::cpu_only_ranks(&cluster, &names);
        let asks = self.demand.asks();
        let lines = names.into_iter().zip(ranks);
        let rank = |(host, rank)| HostPriority {
            host,
            score: if asks { 0 } else { rank },
        };
        lines.map(rank).collect()
    }
}

/// The cluster that these objects describe, with nothing on it.
fn cluster_of(nodes: &[Node]) -> Cluster {
    let mut ledger = Ledger::default();
    for node in nodes {
        let name = node.metadata.name.as_deref().unwrap_or_default().into();
        ledger.publish(&name, Some(published(node)));
    }
    ledger.cluster().clone()
}

fn fits<'n>(names: impl Iterator<Item = &'n str>) -> ExtenderFilterResult {
    ExtenderFilterResult {
        node_names: Some(names.map(str::to_owned).collect()),
        ..ExtenderFilterResult::default()
    }
}

/// One entry carries the reasons of all nodes (design 4.2).
fn refused<S: AsRef<str>>(names: &[S], text: String) -> ExtenderFilterResult {
    let first = names.iter().map(AsRef::as_ref).min().unwrap_or_default();
    ExtenderFilterResult {
        node_names: Some(Vec::new()),
        failed_and_unresolvable_nodes: Some([(first.to_owned(), text)].into()),
        ..ExtenderFilterResult::default()
    }
}

/// Preferred affinity and spread constraints are weighed by kube-scheduler
/// over all nodes, so such a pod gets all that fit.
fn wants_all(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let preferred = spec.affinity.as_ref().is_some_and(|affinity| {
        let node = affinity.node_affinity.as_ref();
        let near = affinity.pod_affinity.as_ref();
        let far = affinity.pod_anti_affinity.as_ref();
        node.is_some_and(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .is_some()
        }) || near.is_some_and(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .is_some()
        }) || far.is_some_and(|a| {
            a.preferred_during_scheduling_ignored_during_execution
                .is_some()
        })
    });
    preferred
        || spec
            .topology_spread_constraints
            .as_ref()
            .is_some_and(|c| !c.is_empty())
}

#[cfg(test)]
#[path = "verbs_tests.rs"]
mod tests;

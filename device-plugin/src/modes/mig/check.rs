//! Whether containers see the instances that were booked for them, by what their processes were
//! started with.
//!
//! Fed by: accepted shares, the node's instances, processes' environments. Must not: read them;
//! that is [`crate::host`].

use std::collections::BTreeSet;

use aliquot_core::{Grant, PodUid};
use aliquot_k8s::event::{Note, PodRef};

use super::plan;
use crate::accepted::Accepted;
use crate::inventory::Node;

/// The variable that says what a container sees.
pub const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";

/// A pod with a process that was started with something else than was booked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The pod.
    pub pod: PodUid,
    /// What the process has.
    pub has: String,
    /// What its containers should have.
    pub should: BTreeSet<String>,
}

/// The pods whose accepted share has an instance in it.
pub fn concerned(shares: &[Accepted]) -> BTreeSet<PodUid> {
    let with = shares.iter().filter(|share| grants(share).any(is_instance));
    with.map(|share| share.pod.clone()).collect()
}

/// Those among the concerned that see something else. `found`: the variable of each process of
/// these pods; a process without it, or with one that shows nothing, is no container of ours.
pub fn wrong(node: &Node, shares: &[Accepted], found: &[(PodUid, String)]) -> Vec<Wrong> {
    let mut all = Vec::new();
    for share in shares.iter().filter(|share| grants(share).any(is_instance)) {
        let lists = share
            .allocation
            .all()
            .map(|(_, grants)| visible(node, grants));
        // One that is not known now cannot be compared.
        let Some(should) = lists.collect::<Option<BTreeSet<String>>>() else {
            continue;
        };
        let shows = |(pod, has): &&(PodUid, String)| {
            *pod == share.pod && !matches!(has.as_str(), "" | "void" | "none")
        };
        let has: BTreeSet<&String> = found.iter().filter(shows).map(|(_, has)| has).collect();
        all.extend(
            has.into_iter()
                .filter(|has| !should.contains(*has))
                .map(|has| Wrong {
                    pod: share.pod.clone(),
                    has: has.clone(),
                    should: should.clone(),
                }),
        );
    }
    all
}

fn grants(share: &Accepted) -> impl Iterator<Item = &Grant> {
    share.allocation.all().flat_map(|(_, grants)| grants)
}

fn is_instance(grant: &Grant) -> bool {
    grant.mig.is_some() || grant.gpu.as_str().starts_with("MIG-")
}

/// What a container with these grants should see; `None` where an instance is not there now.
fn visible(node: &Node, grants: &[Grant]) -> Option<String> {
    let each = grants.iter().map(|grant| match &grant.mig {
        None => {
            let card = node.cards.get(&grant.gpu)?;
            let part = card.part.as_ref().map(|part| part.current.clone());
            Some(part.unwrap_or_else(|| grant.gpu.to_string()))
        }
        Some(placed) => {
            let mut cards = node.facts.cards.iter();
            let card = cards.find(|card| card.uuid == grant.gpu.as_str())?;
            let mut there = card.cut.instances.iter();
            let one = there.find(|one| plan::place_of(one) == *placed)?;
            Some(one.device()?.current.clone())
        }
    });
    Some(each.collect::<Option<Vec<String>>>()?.join(","))
}

/// What the pod's user and the node's owner read.
pub fn note(share: &Accepted, wrong: &Wrong) -> Note {
    let should: Vec<&str> = wrong.should.iter().map(String::as_str).collect();
    Note {
        pod: PodRef {
            namespace: share.namespace.clone(),
            name: share.pod_name.clone(),
            uid: share.pod.to_string(),
        },
        warning: true,
        reason: "WrongInstance",
        action: "Checking",
        text: format!(
            "a container runs with {VARIABLE}={}, but was given {}: delete the pod and create it again",
            wrong.has,
            should.join(" or ")
        ),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;

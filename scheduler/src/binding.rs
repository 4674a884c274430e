//! What a Binding says: its annotations, and the event that follows it.
//!
//! Fed by: [`crate::bind`], with an allocation. Must not: write anything itself.

use std::collections::BTreeMap;

use aliquot_core::allocation::ALLOCATION;
use aliquot_core::{Allocation, Demand, NodeName, hami};
use aliquot_k8s::event::{Note, PodRef};

/// The annotations that the Binding carries: the allocation, which is `text`,
/// and HAMi's form of it where the pod's containers are given.
pub(crate) fn annotations(
    allocation: &Allocation,
    text: &str,
    hami: Option<&Demand>,
) -> BTreeMap<&'static str, String> {
    let mut annotations = BTreeMap::from([(ALLOCATION, text.to_owned())]);
    if let Some(demand) = hami {
        let containers = demand.containers.iter().map(|c| c.name.as_str());
        annotations.insert(hami::ALLOCATED, hami::encode(allocation, containers));
    }
    annotations
}

/// The event that tells what the pod was given.
pub(crate) fn booked(pod: PodRef, node: &NodeName, allocation: &Allocation) -> Note {
    let containers = allocation.all().map(|(name, grants)| {
        let shares: Vec<_> = grants
            .iter()
            .map(|g| format!("{} ({}, cores {})", g.gpu, g.memory, g.cores))
            .collect();
        format!("{name} {}", shares.join(" + "))
    });
    let text = format!(
        "booked on {node}: {}",
        containers.collect::<Vec<_>>().join("; ")
    );
    Note {
        pod,
        warning: false,
        reason: "Booked",
        action: "Binding",
        text,
    }
}

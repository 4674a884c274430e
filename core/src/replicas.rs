//! Replicas as the kubelet counts them: what it offers under each device resource, and what
//! pods request.
//!
//! The kubelet's own admission rule: under each resource, all pods on the node that have
//! not finished, whoever scheduled them, request at most `status.allocatable`. It fails any
//! further pod instead of letting it wait.

use std::fmt;
use std::sync::Arc;

use crate::usage::{self, Stage};

/// The number of replicas under each resource, by name; resources with none are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Replicas(Vec<(Arc<str>, u32)>);

impl Replicas {
    pub fn under(&self, resource: &str) -> u32 {
        let place = self.place(resource);
        place.map_or(0, |place| self.0[place].1)
    }

    /// Adds this many under this resource.
    pub fn add(&mut self, resource: &Arc<str>, count: u32) {
        if count == 0 {
            return;
        }
        match self.place(resource) {
            Ok(place) => {
                let sum = &mut self.0[place].1;
                *sum = sum.saturating_add(count);
            }
            Err(place) => {
                // Most pods have one, and an insertion would take the memory of four.
                self.0.reserve_exact(1);
                self.0.insert(place, (resource.clone(), count));
            }
        }
    }

    pub fn plus(&mut self, others: &Self) {
        for (resource, count) in &others.0 {
            self.add(resource, *count);
        }
    }

    fn place(&self, resource: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|(known, _)| (**known).cmp(resource))
    }
}

impl FromIterator<(Arc<str>, u32)> for Replicas {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, u32)>>(all: I) -> Self {
        let mut replicas = Self::default();
        for (resource, count) in all {
            replicas.add(&resource, count);
        }
        replicas
    }
}

/// What a pod requests under one resource over its life, from its containers in pod order.
pub fn effective(containers: impl IntoIterator<Item = (Stage, u32)>) -> u32 {
    usage::over_life(containers, u32::saturating_add, u32::max)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeReplicas {
    /// What its kubelet offers; `None` if no kubelet has reported, as in simulations: then
    /// nothing is enforced.
    pub offered: Option<Replicas>,
    /// What pods request.
    pub requested: Replicas,
}

impl NodeReplicas {
    /// The first resource with too few replicas for a pod that requests this many under
    /// each, if any.
    pub fn shortage<'r>(
        &self,
        requested: impl IntoIterator<Item = (&'r Arc<str>, u32)>,
    ) -> Option<ReplicaShortage> {
        let offered = self.offered.as_ref()?;
        requested.into_iter().find_map(|(resource, asked)| {
            let offered = offered.under(resource);
            let all = self.requested.under(resource).saturating_add(asked);
            (asked > 0 && all > offered).then(|| ReplicaShortage {
                offered,
                resource: resource.clone(),
            })
        })
    }
}

/// A kubelet with too few replicas. Where nodes differ, the one with the fewest is
/// reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplicaShortage {
    /// The number that it offers.
    pub offered: u32,
    pub resource: Arc<str>,
}

impl fmt::Display for ReplicaShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offered, resource } = self;
        write!(f, "the kubelet offers {offered} of {resource}")?;
        match offered {
            0 => Ok(()),
            _ => f.write_str(", too few of them are free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{demand, request};

    fn replicas(all: &[(&str, u32)]) -> Replicas {
        all.iter()
            .map(|(name, count)| ((*name).into(), *count))
            .collect()
    }

    #[test]
    fn adds_replicas_by_resource_and_omits_zeros() {
        let mut sum = replicas(&[("b", 2), ("a", 1), ("c", 0)]);
        sum.plus(&replicas(&[("b", 3), ("d", 1)]));
        assert_eq!(sum, replicas(&[("d", 1), ("a", 1), ("b", 5)]));
        let found = ["a", "b", "c", "d"].map(|name| sum.under(name));
        assert_eq!(found, [1, 5, 0, 1]);
    }

    #[test]
    fn reports_shortage_when_kubelet_offers_too_few_replicas() {
        let check = |offered: Option<u32>, requested: u32, count: u32, expected: &str| {
            let name = "nvidia.com/gpu";
            let counted = NodeReplicas {
                offered: offered.map(|offered| replicas(&[(name, offered), ("other", 9)])),
                requested: replicas(&[(name, requested)]),
            };
            let demand = demand(&[(Stage::App, Some(request(count, 1, 0)))]);
            let shortage = counted.shortage(demand.replicas_by_resource());
            let text = shortage.map_or_else(String::new, |shortage| shortage.to_string());
            assert_eq!(text, expected, "{offered:?} {requested} {count}");
        };
        check(Some(10), 9, 1, "");
        check(Some(10), 0, 10, "");
        check(None, 99, 1, "");
        let none = "the kubelet offers 0 of nvidia.com/gpu";
        check(Some(0), 0, 1, none);
        check(Some(0), 5, 1, none);
        let few = "the kubelet offers 10 of nvidia.com/gpu, too few of them are free";
        check(Some(10), 9, 2, few);
        check(Some(10), 12, 1, few);
        let idle = NodeReplicas {
            offered: Some(Replicas::default()),
            requested: Replicas::default(),
        };
        let none = demand(&[(Stage::App, None)]);
        assert_eq!(idle.shortage(none.replicas_by_resource()), None);
    }
}

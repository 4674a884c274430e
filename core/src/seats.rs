//! Seats as the kubelet counts them: what it offers under each device resource, and
//! what pods request of it.
//!
//! Rule: the kubelet's own when it admits a pod. Under each resource all pods on the
//! node that have not ended, whoever placed them, request at most what
//! `status.allocatable` says. One more is failed, not kept waiting.
//! Fed by: nodes' status, pods' specs and demands. Must not: know cards.

use std::fmt;
use std::sync::Arc;

use crate::demand::{Demand, Stage};

/// So many seats under each resource, by name; one without any is not named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seats(Vec<(Arc<str>, u32)>);

impl Seats {
    /// How many under this resource.
    pub fn under(&self, resource: &str) -> u32 {
        let place = self.place(resource);
        place.map_or(0, |place| self.0[place].1)
    }

    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many more under this resource.
    pub fn add(&mut self, resource: &Arc<str>, count: u32) {
        if count == 0 {
            return;
        }
        match self.place(resource) {
            Ok(place) => {
                let sum = &mut self.0[place].1;
                *sum = sum.saturating_add(count);
            }
            Err(place) => self.0.insert(place, (resource.clone(), count)),
        }
    }

    /// All of these, too.
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

impl FromIterator<(Arc<str>, u32)> for Seats {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, u32)>>(all: I) -> Self {
        let mut seats = Self::default();
        for (resource, count) in all {
            seats.add(&resource, count);
        }
        seats
    }
}

/// What a pod requests under one resource from its start to its end, from its
/// containers in pod order. Rule (Kubernetes' own): the larger of (each init
/// container plus the sidecars before it) and (app containers plus sidecars).
pub fn effective(containers: impl IntoIterator<Item = (Stage, u32)>) -> u32 {
    let (mut sidecars, mut apps, mut peak) = (0_u32, 0_u32, 0);
    for (stage, own) in containers {
        match stage {
            Stage::Init => peak = sidecars.saturating_add(own).max(peak),
            Stage::Sidecar => sidecars = sidecars.saturating_add(own),
            Stage::App => apps = apps.saturating_add(own),
        }
    }
    sidecars.saturating_add(apps).max(peak)
}

/// The seats of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What its kubelet offers; `None` where no kubelet has said anything, as in trials:
    /// there nobody counts.
    pub offered: Option<Seats>,
    /// What pods request.
    pub requested: Seats,
}

impl Counted {
    /// The resource of which there are too few for this pod, if there is one.
    pub fn short(&self, demand: &Demand) -> Option<Short> {
        let offered = self.offered.as_ref()?;
        let mut resources = demand.resources.iter().enumerate();
        resources.find_map(|(place, resource)| {
            let asked = demand.seats_under(place);
            let offered = offered.under(resource);
            let all = self.requested.under(resource).saturating_add(asked);
            (asked > 0 && all > offered).then(|| Short {
                offered,
                resource: resource.clone(),
            })
        })
    }
}

/// A kubelet that has too few seats. Where nodes differ, the least is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Short {
    /// What it offers.
    pub offered: u32,
    /// Of which resource.
    pub resource: Arc<str>,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offered, resource } = self;
        write!(f, "the kubelet offers {offered} of {resource}")?;
        match offered {
            0 => Ok(()),
            _ => f.write_str(", too few of them are left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{ask, demand};

    fn seats(all: &[(&str, u32)]) -> Seats {
        all.iter()
            .map(|(name, count)| ((*name).into(), *count))
            .collect()
    }

    #[test]
    fn seats_add_up_by_name_and_none_is_no_name() {
        let mut sum = seats(&[("b", 2), ("a", 1), ("c", 0)]);
        sum.plus(&seats(&[("b", 3), ("d", 1)]));
        assert_eq!(sum, seats(&[("d", 1), ("a", 1), ("b", 5)]));
        let found = ["a", "b", "c", "d"].map(|name| sum.under(name));
        assert_eq!(found, [1, 5, 0, 1]);
    }

    #[test]
    fn a_pod_requests_what_kubernetes_counts_over_its_life() {
        use Stage::{App, Init, Sidecar};
        let check = |containers: &[(Stage, u32)], expected: u32| {
            assert_eq!(effective(containers.iter().copied()), expected);
            let asks = containers.iter().map(|&(stage, count)| {
                let ask = (count > 0).then(|| ask(count, 1, 0));
                (stage, ask)
            });
            let demand = demand(&asks.collect::<Vec<_>>());
            assert_eq!(demand.seats(), seats(&[("nvidia.com/gpu", expected)]));
        };
        check(&[(App, 0)], 0);
        check(&[(App, 2), (App, 3)], 5);
        check(&[(Init, 4), (App, 2)], 4);
        check(&[(Init, 4), (App, 2), (App, 3)], 5);
        check(&[(Sidecar, 1), (Init, 4), (App, 2)], 5);
        check(&[(Init, 4), (Sidecar, 1), (App, 2)], 4);
    }

    #[test]
    fn a_pod_fits_as_long_as_the_kubelet_offers_enough() {
        let check = |offered: Option<u32>, requested: u32, count: u32, expected: &str| {
            let name = "nvidia.com/gpu";
            let counted = Counted {
                offered: offered.map(|offered| seats(&[(name, offered), ("other", 9)])),
                requested: seats(&[(name, requested)]),
            };
            let demand = demand(&[(Stage::App, Some(ask(count, 1, 0)))]);
            let short = counted.short(&demand);
            let said = short.map_or_else(String::new, |short| short.to_string());
            assert_eq!(said, expected, "{offered:?} {requested} {count}");
        };
        check(Some(10), 9, 1, "");
        check(Some(10), 0, 10, "");
        check(None, 99, 1, "");
        let none = "the kubelet offers 0 of nvidia.com/gpu";
        check(Some(0), 0, 1, none);
        check(Some(0), 5, 1, none);
        let few = "the kubelet offers 10 of nvidia.com/gpu, too few of them are left";
        check(Some(10), 9, 2, few);
        check(Some(10), 12, 1, few);
        let idle = Counted {
            offered: Some(Seats::default()),
            requested: Seats::default(),
        };
        assert_eq!(idle.short(&demand(&[(Stage::App, None)])), None);
    }
}

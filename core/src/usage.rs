//! What a pod takes of each card: its effective use over its whole life.
//!
//! Rule (Kubernetes' own, per card): the larger of (each init container plus
//! the sidecars started before it) and (all app containers plus all sidecars).
//! Fed by: placements in [`crate::fit`], allocations read back by the watch.
//! Must not: know capacities; that is [`crate::fit`] and [`crate::invariant`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::allocation::{Allocation, Grant};
use crate::demand::Stage;
use crate::id::GpuUuid;
use crate::units::{Mib, Percent};

/// One pod's use of one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Shares at once.
    pub seats: u32,
    /// Memory at once.
    pub memory: Mib,
    /// Compute at once.
    pub cores: Percent,
    /// Some container has 100 % compute: nobody else may be on the card.
    pub alone: bool,
    /// Some container has 0 % compute: it lives on what nobody was promised.
    pub leftover: bool,
}

impl Use {
    /// One container's share of one card.
    pub fn of(memory: Mib, cores: Percent) -> Self {
        Self {
            seats: 1,
            memory,
            cores,
            alone: cores >= Percent::WHOLE,
            leftover: cores == Percent(0),
        }
    }

    /// Both at the same time.
    pub fn with(self, other: Self) -> Self {
        Self {
            seats: self.seats.saturating_add(other.seats),
            memory: self.memory + other.memory,
            cores: self.cores + other.cores,
            alone: self.alone || other.alone,
            leftover: self.leftover || other.leftover,
        }
    }

    /// One after the other: the larger of each.
    pub fn or(self, other: Self) -> Self {
        Self {
            seats: self.seats.max(other.seats),
            memory: self.memory.max(other.memory),
            cores: self.cores.max(other.cores),
            alone: self.alone || other.alone,
            leftover: self.leftover || other.leftover,
        }
    }
}

/// One pod's effective use of each unit that it touches, by [`Grant::unit`].
pub type Uses = BTreeMap<GpuUuid, Use>;

/// The effective use of a pod on one card, from its containers' uses of that
/// card in pod order.
pub fn on_card(containers: impl IntoIterator<Item = (Stage, Use)>) -> Use {
    let mut sidecars = Use::default();
    let mut apps = Use::default();
    let mut peak = Use::default();
    for (stage, used) in containers {
        match stage {
            Stage::Init => peak = peak.or(sidecars.with(used)),
            Stage::Sidecar => sidecars = sidecars.with(used),
            Stage::App => apps = apps.with(used),
        }
    }
    peak.or(sidecars.with(apps))
}

/// The effective use of an allocation, given the stage of each container in pod
/// order. A container that the pod does not have counts as an app container.
pub fn effective<'a>(
    allocation: &Allocation,
    stages: impl IntoIterator<Item = (&'a str, Stage)>,
) -> Uses {
    let mut cards: BTreeMap<GpuUuid, Vec<(Stage, Use)>> = BTreeMap::new();
    let mut add = |stage, grants: &[Grant]| {
        let mut own: BTreeMap<GpuUuid, Use> = BTreeMap::new();
        for grant in grants {
            let used = own.entry(grant.unit()).or_default();
            *used = used.with(Use {
                seats: grant.seats,
                ..Use::of(grant.memory, grant.cores)
            });
        }
        for (unit, used) in own {
            cards.entry(unit).or_default().push((stage, used));
        }
    };
    let mut known = Vec::new();
    for (name, stage) in stages {
        add(stage, allocation.grants(name).unwrap_or_default());
        known.push(name);
    }
    for (name, grants) in allocation.all() {
        if !known.contains(&name) {
            add(Stage::App, grants);
        }
    }
    cards
        .into_iter()
        .map(|(gpu, containers)| (gpu, on_card(containers)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(containers: &[(Stage, u64, u32)], seats: u32, memory: u64, cores: u32) {
        let used = on_card(
            containers
                .iter()
                .map(|&(stage, memory, cores)| (stage, Use::of(Mib(memory), Percent(cores)))),
        );
        assert_eq!(
            (used.seats, used.memory, used.cores),
            (seats, Mib(memory), Percent(cores)),
            "{containers:?}"
        );
    }

    #[test]
    fn follows_kubernetes_rule_for_init_and_restartable_init_containers() {
        use Stage::{App, Init, Sidecar};
        check(&[], 0, 0, 0);
        check(&[(App, 10, 1), (App, 20, 2)], 2, 30, 3);
        check(&[(Init, 50, 5), (App, 20, 2)], 1, 50, 5);
        check(&[(Init, 50, 5), (Init, 40, 9), (App, 20, 2)], 1, 50, 9);
        check(&[(Sidecar, 5, 1), (Init, 50, 5), (App, 20, 2)], 2, 55, 6);
        check(&[(Init, 50, 5), (Sidecar, 5, 1), (App, 20, 2)], 2, 50, 5);
        check(&[(Init, 9, 0), (Sidecar, 5, 1), (App, 20, 2)], 2, 25, 3);
    }
}

//! Who is on a card, and whether they may stay when its mode changes.
//!
//! Fed by: the node's pods, accepted shares, the inventory with its lingering and foreign holders.
//! Must not: call a card free while it is not known who is on it.

use std::sync::Arc;

use aliquot_core::inventory::{Foreign, Gpu, Inventory};
use aliquot_core::ledger::Held;
use aliquot_core::mig::published::{Mig, Placed};
use aliquot_core::usage::{Use, Uses};
use aliquot_core::{GpuUuid, PodUid};
use aliquot_profiles::Mode;

use crate::accepted::Accepted;
use crate::pod::{Phase, Pod};
use crate::transition::alike;

/// Those on one card.
#[derive(Clone, Debug, Default)]
pub struct Occupants {
    /// Living pods with a share of it, or bound to one.
    pub pods: Vec<Arc<Pod>>,
    /// Holders that are not ours, or whose pod is gone.
    pub others: usize,
    /// What the pods hold together.
    pub used: Use,
}

impl Occupants {
    /// Nobody.
    pub fn none(&self) -> bool {
        self.pods.is_empty() && self.others == 0
    }
}

/// What is known of all holders on the node.
#[derive(Clone, Copy, Debug)]
pub struct Holders<'a> {
    /// What the node publishes.
    pub inventory: &'a Inventory,
    /// Pods of other plugins.
    pub foreign: &'a [Foreign],
    /// Its pods.
    pub pods: &'a [Arc<Pod>],
    /// All accepted shares.
    pub shares: &'a [Arc<Accepted>],
    /// Holders of which nobody knows which cards they hold.
    pub unclear: usize,
    /// Pods without an object whose processes live.
    pub alive: &'a std::collections::BTreeSet<PodUid>,
    /// What pods of HAMi hold.
    pub hamis: &'a [(PodUid, Held)],
}

/// Those on this physical card.
pub fn on(card: &GpuUuid, known: Holders<'_>) -> Occupants {
    let here = |unit: &GpuUuid| {
        let made = Placed::of(unit).map(|(card, _)| GpuUuid::from(card));
        let unit = made.as_ref().unwrap_or(unit);
        let found = known.inventory.gpu(unit);
        unit == card || found.is_some_and(|unit| is_of(unit, card))
    };
    let mut found = Occupants::default();
    for pod in known.pods.iter().filter(|pod| pod.phase != Phase::Ended) {
        let mut uses = uses(pod, known.shares)
            .into_iter()
            .filter(|(unit, _)| here(unit));
        if let Some((_, first)) = uses.next() {
            found.pods.push(Arc::clone(pod));
            found.used = uses.fold(found.used.with(first), |sum, (_, used)| sum.with(used));
        }
    }
    let gone = known
        .shares
        .iter()
        .filter(|share| known.alive.contains(&share.pod));
    found.others += gone.filter(|share| share.uses().keys().any(here)).count();
    let foreign = known.foreign.iter().filter(|f| here(&f.gpu));
    found.others += foreign.count();
    let hamis = known.hamis.iter().filter(|(_, held)| match held {
        Held::Unreadable => true,
        Held::Uses(uses) => uses.contains_key(card),
    });
    found.others += hamis.count() + known.unclear;
    found
}

fn uses(pod: &Pod, shares: &[Arc<Accepted>]) -> Uses {
    if let Some(share) = shares.iter().find(|share| share.pod == pod.kubelet_uid) {
        return share.uses().clone();
    }
    pod.uses().unwrap_or_default()
}

/// Whether a unit is this card, or an instance of it.
pub fn is_of(unit: &Gpu, card: &GpuUuid) -> bool {
    card_of(unit) == card
}

/// The physical card of a unit.
pub fn card_of(unit: &Gpu) -> &GpuUuid {
    match &unit.mig {
        Some(Mig::Part(part)) => &part.parent,
        _ => &unit.uuid,
    }
}

/// Whether they may stay while the card changes.
pub fn may_stay(occupants: &Occupants, from: Option<&Mode>, to: &Mode) -> bool {
    if occupants.none() {
        return true;
    }
    let Some(from) = from else {
        // A card as an earlier plugin left it: vgpu counts its pods.
        return matches!(to, Mode::Vgpu(_));
    };
    let seats = match to {
        // A card that promised more than it may now keeps its pods and takes no new ones.
        Mode::Vgpu(_) | Mode::Mig(_) | Mode::Unmanaged => u32::MAX,
        Mode::Exclusive(_) => 1,
        Mode::Timeslice(slices) => slices.replicas,
        Mode::Mps(mps) => mps.replicas,
    };
    from == to || alike(from, to) && occupants.used.seats <= seats
}

#[cfg(test)]
mod tests {
    use aliquot_core::mig::published::Part;
    use aliquot_profiles::mode::{Exclusive, Scaling, Timeslice, Vgpu};

    use super::*;
    use crate::testing::{allocation, grant, inventory, pod};

    fn vgpu(split: u32, scaling: &str) -> Mode {
        Mode::Vgpu(Vgpu {
            split: Some(split),
            memory_scaling: Scaling::parse(scaling),
            ..Vgpu::default()
        })
    }

    /// Two pods on GPU-a, one of them not accepted yet, one on an instance of GPU-b, one ended.
    fn holders(check: impl FnOnce(Holders<'_>)) {
        let mut inventory = inventory(&["GPU-a", "MIG-1"]);
        inventory.gpus[1].mig = Some(Mig::Part(Part {
            parent: "GPU-b".into(),
            profile: "1g.5gb".to_owned(),
            start: 0,
            gi: 1,
            ci: 0,
        }));
        let foreign = Foreign {
            gpu: "GPU-c".into(),
            pod: "default/old".to_owned(),
        };
        let given = |gpu: &str| allocation(&[("main", &[grant(gpu, 3000, 10)])]);
        let accepted = |uid: &str, gpu: &str| {
            let (uid, name) = (PodUid::from(uid), uid.to_owned());
            let container = crate::accepted::Container {
                name: "main".to_owned(),
                stage: aliquot_core::demand::Stage::App,
                effective: crate::environment::Effective::of(
                    &std::collections::BTreeMap::new(),
                    crate::environment::NodeRules::new(true),
                    false,
                ),
            };
            Accepted::new(uid, "default".to_owned(), name, given(gpu), vec![container])
        };
        let mut over = pod("over").with(&given("GPU-a"));
        over.phase = Phase::Ended;
        let pods = [
            pod("u1").with(&given("GPU-a")),
            pod("u2").with(&given("GPU-a")),
            pod("cut").with(&given("MIG-1")),
            over,
        ];
        let shares = [accepted("u1", "GPU-a"), accepted("left", "GPU-d")].map(Arc::new);
        check(Holders {
            inventory: &inventory,
            foreign: &[foreign],
            pods: &pods.map(Arc::new),
            shares: &shares,
            unclear: 0,
            alive: &["left".into()].into(),
            hamis: &[],
        });
    }

    #[test]
    fn everybody_with_a_share_of_a_card_or_bound_to_one_is_on_it() {
        holders(|known| {
            let found = |card: &str| {
                let found = on(&card.into(), known);
                (found.pods.len(), found.others, found.used.seats)
            };
            assert_eq!(found("GPU-a"), (2, 0, 2));
            assert_eq!(found("GPU-b"), (1, 0, 1));
            assert_eq!(found("GPU-c"), (0, 1, 0));
            assert_eq!(found("GPU-d"), (0, 1, 0));
            assert_eq!(found("GPU-e"), (0, 0, 0));
            let unclear = Holders {
                unclear: 1,
                ..known
            };
            assert_eq!(on(&"GPU-e".into(), unclear).others, 1);
        });
    }

    #[test]
    fn who_has_a_place_in_the_same_mode_stays_and_nobody_else() {
        holders(|known| {
            let two = on(&"GPU-a".into(), known);
            let check = |from: Option<Mode>, to: Mode, expected: bool| {
                let found = may_stay(&two, from.as_ref(), &to);
                assert_eq!(found, expected, "{from:?} {to:?}");
                assert!(may_stay(&Occupants::default(), from.as_ref(), &to));
            };
            let alone = || Mode::Exclusive(Exclusive::default());
            let turns = |n| Mode::Timeslice(Timeslice::new(n));
            check(Some(vgpu(10, "1")), vgpu(2, "1"), true);
            check(Some(vgpu(10, "1")), vgpu(1, "1"), true);
            check(Some(vgpu(10, "1")), vgpu(10, "0.6"), true);
            check(Some(vgpu(10, "1")), vgpu(10, "0.5"), true);
            check(Some(vgpu(10, "1")), alone(), false);
            check(Some(turns(10)), turns(2), true);
            check(Some(turns(10)), vgpu(10, "1"), false);
            check(None, vgpu(10, "1"), true);
            check(None, alone(), false);
        });
    }
}

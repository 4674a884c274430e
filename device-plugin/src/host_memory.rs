//! Memory of the host that stands in for a card's where more is promised of a card than it has: how
//! much may be promised, and what part of the card goes with a share of that.
//!
//! What containers hold of a card together is at most what was promised of it. While the card is
//! full of it the rest is on the host, so that stays within the reserve.
//!
//! Fed by: units as their modes make them, the agent's flag. Must not: touch a unit of which no
//! more is promised than it has, or what was accepted before.

use aliquot_core::inventory::Gpu;
use aliquot_core::mig::published::Mig;
use aliquot_core::{GpuUuid, Mib};
use aliquot_nvml::Inventory;

/// Lowers what is promised of these units to what they and the `reserve` of each card have. An
/// instance has the part of its card's reserve that it has of its memory.
pub fn keep(units: &mut [Gpu], reserve: Option<Mib>, facts: &Inventory) {
    let Some(reserve) = reserve else { return };
    for unit in units {
        let most = Mib(usable(unit, facts)
            .0
            .saturating_add(part(reserve, unit, facts).0));
        unit.scaled = unit.scaled.min(most.max(unit.memory));
    }
}

/// What containers can have of a unit: the driver keeps a part of each card.
pub fn usable(unit: &Gpu, facts: &Inventory) -> Mib {
    let driver = card(unit, facts).and_then(|card| card.reserved);
    let driver = driver.map_or(Mib(0), |driver| part(driver, unit, facts));
    Mib(unit.memory.0.saturating_sub(driver.0))
}

/// Of this much of a card a unit's part.
fn part(of: Mib, unit: &Gpu, facts: &Inventory) -> Mib {
    let whole = card(unit, facts).map_or(unit.memory, |card| card.memory);
    let part = u128::from(of.0) * u128::from(unit.memory.0) / u128::from(whole.0.max(1));
    Mib(u64::try_from(part).unwrap_or(of.0))
}

fn card<'a>(unit: &Gpu, facts: &'a Inventory) -> Option<&'a aliquot_nvml::CardFacts> {
    let parent: &GpuUuid = match &unit.mig {
        Some(Mig::Part(part)) => &part.parent,
        _ => &unit.uuid,
    };
    let mut cards = facts.cards.iter();
    cards.find(|card| card.uuid == parent.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Published;
    use crate::testing::{arrangement, facts};
    use crate::units::units;

    /// What is published of a card of 10,000 MiB, of which the driver keeps 600.
    fn published(scaled: u64, reserve: Option<u64>) -> (u64, u64) {
        let mut facts = facts(&["GPU-a"]);
        facts.cards[0].reserved = Some(Mib(600));
        let mut units = units(&facts, &[], &arrangement(&["GPU-a"]));
        units[0].scaled = Mib(scaled);
        keep(&mut units, reserve.map(Mib), &facts);
        (units[0].scaled.0, usable(&units[0], &facts).0)
    }

    #[test]
    fn no_more_is_promised_than_the_card_and_the_reserve_have() {
        let check = |scaled, reserve, expected| {
            assert_eq!(published(scaled, reserve), (expected, 9_400), "{reserve:?}");
        };
        check(20_000, None, 20_000);
        check(20_000, Some(50_000), 20_000);
        check(20_000, Some(5_000), 14_400);
        // Nothing beyond the card: as without a scaling.
        check(20_000, Some(0), 10_000);
        check(20_000, Some(600), 10_000);
        check(10_000, Some(0), 10_000);
        check(5_000, Some(9_000), 5_000);
    }

    #[test]
    fn an_instance_has_its_part_of_its_cards_reserve() {
        let mut facts = facts(&["GPU-a"]);
        facts.cards[0].reserved = Some(Mib(1_000));
        let mut units = units(&facts, &[], &arrangement(&["GPU-a"]));
        units[0].uuid = "MIG-a".into();
        units[0].memory = Mib(4_000);
        units[0].scaled = Mib(8_000);
        units[0].mig = Some(Mig::Part(aliquot_core::mig::published::Part {
            parent: "GPU-a".into(),
            profile: "3g.20gb".to_owned(),
            start: 0,
            gi: 1,
            ci: 0,
        }));
        keep(&mut units, Some(Mib(5_000)), &facts);
        assert_eq!(units[0].scaled, Mib(4_000 - 400 + 2_000));
    }

    #[test]
    fn a_node_publishes_what_its_reserve_leaves() {
        let mut arrangement = arrangement(&["GPU-a"]);
        for stand in arrangement.cards.values_mut() {
            let settings = aliquot_profiles::mode::Vgpu {
                split: Some(2),
                memory_scaling: aliquot_core::Scaling::parse("2"),
                ..aliquot_profiles::mode::Vgpu::default()
            };
            stand.mode = aliquot_profiles::Mode::Vgpu(settings);
        }
        let published = Published::new(facts(&["GPU-a"]), Vec::new(), arrangement);
        let scaled = || published.get().inventory.gpus[0].scaled;
        assert_eq!(scaled(), Mib(20_000));
        published.host_reserve(Some(Mib(3_000)));
        assert_eq!(scaled(), Mib(13_000));
    }
}

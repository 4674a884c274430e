//! The annotations' texts against files that no release may stop to read.

use crate::mig::published::{Mig, Placed};
use crate::node::Sums;
use crate::preemption::record::{Record, State};
use crate::reason::Reason;
use crate::score::{self, Load, Policy};
use crate::seen::Units;
use crate::tests::{gpu, inventory};
use crate::usage::Use;
use crate::{Allocation, Inventory, Mib, Percent};

const INVENTORY: &str = include_str!("../../golden/inventory-v1.json");
const ALLOCATION: &str = include_str!("../../golden/allocation-v1.json");
const MODES: &str = include_str!("../../golden/inventory-v1-modes.json");
const MODES_ALLOCATION: &str = include_str!("../../golden/allocation-v1-modes.json");
const PREEMPTION: &str = include_str!("../../golden/preemption-v1.json");

#[test]
fn inventory_text_is_the_golden_one() {
    let mut a = gpu(0, 81_920, 10);
    a.links.insert("GPU-1".into(), 400);
    let b = gpu(1, 81_920, 10);
    let made = inventory(vec![a, b]);
    assert_eq!(made.encode().unwrap(), INVENTORY.trim());
    assert_eq!(Inventory::decode(INVENTORY).unwrap(), made);
}

#[test]
fn allocation_text_is_the_golden_one() {
    let read = Allocation::decode(ALLOCATION).unwrap();
    assert_eq!(read.encode().unwrap(), ALLOCATION.trim());
    let grant = &read.grants("main").unwrap()[0];
    assert_eq!((grant.memory.0, grant.cores.0), (3000, 30));
    assert_eq!(read.grants("warm-up").unwrap()[0].gpu.as_str(), "GPU-1");
}

/// A card of each mode, one of them about to change.
#[test]
fn inventory_text_of_every_mode_is_the_golden_one() {
    let read = Inventory::decode(MODES).unwrap();
    assert_eq!(read.encode().unwrap(), MODES.trim());
    let mig = |place: usize| read.gpus[place].mig.as_ref().unwrap();
    assert_eq!(mig(4).part().unwrap().profile, "3g.20gb");
    let cut = mig(5).dynamic().unwrap();
    let profiles = cut.geometry.profiles().iter();
    let resources: Vec<String> = profiles
        .map(|one| crate::mig::resource(&one.name))
        .collect();
    let both = ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me"];
    assert_eq!(resources, both);
    assert_eq!(cut.instances[0].uuid.as_str(), "MIG-5");
    let strict: Vec<bool> = read.gpus.iter().map(|gpu| gpu.strict).collect();
    assert_eq!(strict, [false, false, false, true, false, false]);
    assert!(read.gpus[0].cordon.is_some());
}

#[test]
fn what_a_later_release_says_of_mig_closes_that_card_alone() {
    let later = MODES.replacen("\"mig\":null", "\"mig\":{\"shape\":1}", 1);
    let read = Inventory::decode(&later).unwrap();
    assert!(matches!(read.gpus[0].mig, Some(Mig::Unknown(_))));
    // A geometry that no card has is no better.
    let absurd = MODES.replacen("\"size\":1", "\"size\":99", 1);
    let read = Inventory::decode(&absurd).unwrap();
    assert!(matches!(read.gpus[5].mig, Some(Mig::Unknown(_))));
}

#[test]
fn allocation_text_of_every_mode_is_the_golden_one() {
    let read = Allocation::decode(MODES_ALLOCATION).unwrap();
    assert_eq!(read.encode().unwrap(), MODES_ALLOCATION.trim());
    let grants = read.grants("main").unwrap();
    assert_eq!(grants[0].mig.as_ref().unwrap().start, 6);
    assert_eq!(grants[1].mig, None);
    let seats: Vec<u32> = grants.iter().map(|grant| grant.seats).collect();
    assert_eq!(seats, [1, 1, 2]);
    let unit = grants[0].unit();
    assert_eq!(unit.as_str(), "GPU-5/1g.5gb@6");
    let placed = grants[0].mig.clone();
    assert_eq!(Placed::of(&unit), placed.map(|placed| ("GPU-5", placed)));
    assert_eq!(Placed::of(&grants[1].gpu), None);
}

#[test]
fn preemption_text_is_the_golden_one() {
    let read = Record::decode(PREEMPTION).unwrap();
    assert_eq!(read.encode().unwrap(), PREEMPTION.trim());
    assert_eq!(read.hold["GPU-0"].memory.0, 60_000);
    let closed = PREEMPTION.replace("open", "given-up");
    assert_eq!(Record::decode(&closed).unwrap().state, State::GivenUp);
    assert!(Record::decode(&PREEMPTION.replace("\"v\":1", "\"v\":2")).is_err());
}

#[test]
fn unknown_fields_are_passed_over_and_unknown_versions_are_not() {
    let newer = ALLOCATION.replacen("\"v\":1", "\"v\":1,\"news\":{}", 1);
    assert!(Allocation::decode(&newer).is_ok());
    let other = ALLOCATION.replacen("\"v\":1", "\"v\":7", 1);
    assert!(
        Allocation::decode(&other)
            .unwrap_err()
            .to_string()
            .contains("version 7")
    );
    assert!(Allocation::decode("{}").is_err());
    assert!(Inventory::decode("[]").is_err());
}

#[test]
fn a_card_named_twice_was_counted_once_and_given_twice() {
    let text = inventory(vec![gpu(0, 1000, 3), gpu(0, 1000, 3)]).encode();
    let error = Inventory::decode(&text.unwrap()).unwrap_err();
    assert!(error.to_string().contains("GPU-0 twice"), "{error}");
}

#[test]
fn sums_of_absurd_figures_overflowed_the_score() {
    let full = Load {
        memory: (u64::MAX, u64::MAX),
        ..Load::default()
    };
    let score = |policy| score::score(policy, full.plus(full));
    assert!(score(Policy::Binpack) <= 3_000_000);
    assert!(score(Policy::Spread) <= 3_000_000);
    let mut sums = Sums::default();
    sums.add(Use::of(Mib(u64::MAX), Percent(u32::MAX)));
    sums.add(Use::of(Mib(1), Percent(1)));
    assert_eq!(sums.used.memory, Mib(u64::MAX));
}

#[test]
fn the_256th_resource_was_taken_for_all_after_it() {
    let mut cards: Vec<_> = (0..258).map(|index| gpu(index, 1000, 3)).collect();
    for card in &mut cards {
        card.resource = card.uuid.to_string();
    }
    let cards = Units::of(&inventory(cards), &[], &[]).cards;
    assert_eq!(cards[255].closed, None);
    assert_eq!(cards[256].closed, Some(Reason::CardTypeMismatch));
}

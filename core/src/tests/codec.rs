//! The annotations' texts against files that no release may stop to read.

use crate::tests::{gpu, inventory};
use crate::{Allocation, Inventory};

const INVENTORY: &str = include_str!("../../golden/inventory-v1.json");
const ALLOCATION: &str = include_str!("../../golden/allocation-v1.json");

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

//! The annotations against golden files that every later release must read.

use std::time::Duration;

use crate::mig::published::{Mig, MigPlacement};
use crate::node::{LedgerDevices, Sums};
use crate::policy::{Policy, Weights};
use crate::preemption::record::{PlanState, PreemptionRecord};
use crate::refusal::Reason;
use crate::request::{Resource, Written};
use crate::resize::{ResizeState, ResizeStatus};
use crate::score::{self, Load};
use crate::tests::{gpu, inventory};
use crate::usage::DeviceUse;
use crate::{Allocation, Inventory, Mib, Percent, RequestAnnotation};

const INVENTORY: &str = include_str!("../../golden/inventory-v1.json");
const ALLOCATION: &str = include_str!("../../golden/allocation-v1.json");
const MODES: &str = include_str!("../../golden/inventory-v1-modes.json");
const MODES_ALLOCATION: &str = include_str!("../../golden/allocation-v1-modes.json");
const UNREADABLE: &str = include_str!("../../golden/inventory-v1-unreadable.json");
const UNMANAGED: &str = include_str!("../../golden/inventory-v1-unmanaged.json");
const REQUEST: &str = include_str!("../../golden/request-v1.json");
const PREEMPTION: &str = include_str!("../../golden/preemption-v1.json");
const RESIZE_STATUS: &str = include_str!("../../golden/resize-status-v1.json");

#[test]
fn inventory_matches_golden_file() {
    let mut a = gpu(0, 81_920, 10);
    a.links.insert("GPU-1".into(), 400);
    let b = gpu(1, 81_920, 10);
    let made = inventory(vec![a, b]);
    assert_eq!(made.encode().unwrap(), INVENTORY.trim());
    assert_eq!(Inventory::decode(INVENTORY).unwrap(), made);
}

/// A pod with device ids whose allocation cannot be read.
#[test]
fn inventory_with_unreadable_pod_matches_golden_file() {
    let mut made = inventory(vec![gpu(0, 81_920, 10)]);
    made.unreadable.push("pod-1".into());
    assert_eq!(made.encode().unwrap(), UNREADABLE.trim());
    assert_eq!(Inventory::decode(UNREADABLE).unwrap(), made);
}

#[test]
fn inventory_with_unmanaged_memory_matches_golden_file() {
    let mut made = inventory(vec![gpu(0, 81_920, 10)]);
    made.unmanaged.insert("GPU-0".into(), Mib(60_160));
    assert_eq!(made.encode().unwrap(), UNMANAGED.trim());
    assert_eq!(Inventory::decode(UNMANAGED).unwrap(), made);
}

#[test]
fn allocation_matches_golden_file() {
    let read = Allocation::decode(ALLOCATION).unwrap();
    assert_eq!(read.encode().unwrap(), ALLOCATION.trim());
    let grant = &read.grants("main").unwrap()[0];
    assert_eq!((grant.memory.0, grant.cores.0), (3000, 30));
    assert_eq!(read.grants("warm-up").unwrap()[0].gpu.as_str(), "GPU-1");
}

#[test]
fn request_matches_golden_file() {
    let read = RequestAnnotation::decode(REQUEST).unwrap();
    assert_eq!(read.encode().unwrap(), REQUEST.trim());
    let amounts = read.containers["warm-up"];
    assert_eq!((amounts.memory, amounts.percentage), (None, Some(50)));
    assert_eq!(read.of("main").get(Resource::Cores), Some(30));
    assert_eq!(read.of("proxy").get(Resource::Priority), Some(0));
    assert_eq!(read.of("other"), Written::default());
}

#[test]
fn rejects_request_annotation_that_is_invalid() {
    let check = |text: &str, expected: &str| match RequestAnnotation::decode(text) {
        Ok(read) => panic!("{text}: {read:?}"),
        Err(error) => assert!(error.to_string().starts_with(expected), "{error}"),
    };
    check("", "cannot read the annotation: EOF");
    check("[]", "cannot read the annotation: ");
    check("{}", "cannot read the annotation: missing field `v`");
    check(
        r#"{"v":2,"containers":{"main":{"gpus":"?"}}}"#,
        "the annotation has version 2, this release reads 1",
    );
    check(
        r#"{"v":1,"containers":{"a":{},"main":{"memory":0}}}"#,
        r#"container "main", memory: "0" is out of range; expected: "#,
    );
    check(
        r#"{"v":1,"containers":{"main":{"memory":1,"percentage":1}}}"#,
        r#"container "main", percentage: memory is requested both in MiB and in percent"#,
    );
    check(
        r#"{"v":1,"containers":{"main":{"cores":-1}}}"#,
        "cannot read the annotation: invalid value: integer `-1`",
    );
    check(
        r#"{"v":1,"containers":{"main":{"memory":"3k"}}}"#,
        "cannot read the annotation: invalid type: string",
    );
    check(
        r#"{"v":1,"priority":2}"#,
        r#"priority: "2" is out of range"#,
    );
}

/// A device in each sharing mode, one of them about to change.
#[test]
fn inventory_of_every_mode_matches_golden_file() {
    let read = Inventory::decode(MODES).unwrap();
    assert_eq!(read.encode().unwrap(), MODES.trim());
    let mig = |place: usize| read.gpus[place].mig.as_ref().unwrap();
    assert_eq!(mig(4).fixed().unwrap().profile, "3g.20gb");
    let dynamic = mig(5).dynamic().unwrap();
    let profiles = dynamic.geometry.profiles().iter();
    let resources: Vec<String> = profiles
        .map(|one| crate::mig::resource(&one.name))
        .collect();
    let both = ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb.me"];
    assert_eq!(resources, both);
    assert_eq!(dynamic.instances[0].uuid.as_str(), "MIG-5");
    let strict: Vec<bool> = read.gpus.iter().map(|gpu| gpu.strict).collect();
    assert_eq!(strict, [false, false, false, true, false, false]);
    assert!(read.gpus[0].cordon.is_some());
}

#[test]
fn unknown_mig_fields_close_that_device_alone() {
    let later = MODES.replacen("\"mig\":null", "\"mig\":{\"shape\":1}", 1);
    let read = Inventory::decode(&later).unwrap();
    assert!(matches!(read.gpus[0].mig, Some(Mig::Unknown(_))));
    // An impossible geometry is treated alike.
    let absurd = MODES.replacen("\"size\":1", "\"size\":99", 1);
    let read = Inventory::decode(&absurd).unwrap();
    assert!(matches!(read.gpus[5].mig, Some(Mig::Unknown(_))));
}

#[test]
fn allocation_of_every_mode_matches_golden_file() {
    let read = Allocation::decode(MODES_ALLOCATION).unwrap();
    assert_eq!(read.encode().unwrap(), MODES_ALLOCATION.trim());
    let grants = read.grants("main").unwrap();
    assert_eq!(grants[0].mig.as_ref().unwrap().start, 6);
    assert_eq!(grants[1].mig, None);
    let replicas: Vec<u32> = grants.iter().map(|grant| grant.replicas).collect();
    assert_eq!(replicas, [1, 1, 2]);
    let key = grants[0].device_key();
    assert_eq!(key.as_str(), "GPU-5/1g.5gb@6");
    let placed = grants[0].mig.clone();
    assert_eq!(
        MigPlacement::parse_device_key(&key),
        placed.map(|placed| ("GPU-5", placed))
    );
    assert_eq!(MigPlacement::parse_device_key(&grants[1].gpu), None);
}

#[test]
fn preemption_record_matches_golden_file() {
    let read = PreemptionRecord::decode(PREEMPTION).unwrap();
    assert_eq!(read.encode().unwrap(), PREEMPTION.trim());
    let reserved = read.reserved.get(&"GPU-0".into()).unwrap();
    assert_eq!(reserved.memory.0, 60_000);
    let closed = PREEMPTION.replace("open", "given-up");
    assert_eq!(
        PreemptionRecord::decode(&closed).unwrap().state,
        PlanState::GivenUp
    );
    for (attempt, pause) in [(1, 60), (2, 120), (6, 1920), (7, 3600), (u32::MAX, 3600)] {
        let plan = PreemptionRecord {
            attempt,
            ..read.clone()
        };
        let closed = plan.given_up(1000);
        assert_eq!(
            (closed.state, closed.until),
            (PlanState::GivenUp, 1000 + pause)
        );
        let text = closed.encode().unwrap();
        assert_eq!(PreemptionRecord::decode(&text).unwrap(), closed);
    }
    assert!(PreemptionRecord::decode(&PREEMPTION.replace("\"v\":1", "\"v\":2")).is_err());
}

#[test]
fn resize_status_matches_golden_file() {
    let read = ResizeStatus::decode(RESIZE_STATUS).unwrap();
    assert_eq!(read.encode().unwrap(), RESIZE_STATUS.trim());
    assert_eq!(read.state, ResizeState::Waiting);
    let pending = read.pending.unwrap();
    assert_eq!(pending.to.grants("main").unwrap()[0].memory.0, 2000);
    let interval = Duration::from_secs(10);
    for (now, defers) in [(659, false), (660, true), (669, true), (670, false)] {
        let now = 1_795_218_000 + now;
        let next = ResizeStatus::decode(RESIZE_STATUS).unwrap();
        assert_eq!(next.defers(now, interval), defers, "{now}");
    }
    let newer = RESIZE_STATUS.replacen("\"v\":1", "\"v\":1,\"news\":{}", 1);
    assert!(ResizeStatus::decode(&newer).is_ok());
    assert!(ResizeStatus::decode(&RESIZE_STATUS.replacen("\"v\":1", "\"v\":2", 1)).is_err());
}

#[test]
fn ignores_unknown_fields_and_rejects_unknown_versions() {
    let newer = ALLOCATION.replacen("\"v\":1", "\"v\":1,\"news\":{}", 1);
    assert!(Allocation::decode(&newer).is_ok());
    let newer = REQUEST.replacen("\"v\":1", "\"v\":1,\"news\":{}", 1);
    assert!(RequestAnnotation::decode(&newer).is_ok());
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
fn rejects_inventory_with_duplicate_device() {
    let text = inventory(vec![gpu(0, 1000, 3), gpu(0, 1000, 3)]).encode();
    let error = Inventory::decode(&text.unwrap()).unwrap_err();
    assert!(error.to_string().contains("GPU-0 twice"), "{error}");
}

#[test]
fn saturates_scores_of_absurdly_large_sums() {
    let full = Load {
        memory: (u64::MAX, u64::MAX),
        ..Load::default()
    };
    let score = |policy| score::score(policy, full.plus(full), Weights::default());
    assert!(score(Policy::Binpack) <= 3_000_000);
    assert!(score(Policy::Spread) <= 3_000_000);
    let mut sums = Sums::default();
    sums.add(DeviceUse::new(Mib(u64::MAX), Percent(u32::MAX)));
    sums.add(DeviceUse::new(Mib(1), Percent(1)));
    assert_eq!(sums.used.memory, Mib(u64::MAX));
}

#[test]
fn closes_devices_beyond_the_256th_resource() {
    let mut devices: Vec<_> = (0..258).map(|index| gpu(index, 1000, 3)).collect();
    for device in &mut devices {
        device.resource = device.uuid.to_string();
    }
    let devices = LedgerDevices::new(&inventory(devices), &[], &[]).devices;
    assert_eq!(devices[255].closed, None);
    assert_eq!(devices[256].closed, Some(Reason::CardTypeMismatch));
}

//! Reservations for pods of some namespaces, and how others are refused.

use super::*;
use crate::decide::{self, Memo, NodeQuery};
use crate::explain::NodeAnswer;
use crate::mig::published::{MigPlacement, ReservedPlacement};
use crate::preemption::{self, CandidateNode, NoPlan, Occupant, OccupantState};
use crate::quota::{Limit, LimitValue, LimitedResource, Quota};
use crate::usage::{AllocatedUse, DeviceUse};

/// Reserved for pods of namespace `sys`.
fn reserved(device: Gpu) -> Gpu {
    Gpu {
        reserved: vec!["sys".into()],
        ..device
    }
}

/// A GPU with these placements reserved for pods of namespace `sys`.
fn with_reserved_placements(index: u32, places: &[(&str, u8)]) -> Gpu {
    let mut device = dynamic_gpu(index, &a100(), vec![]);
    if let Some(Mig::Dynamic(found)) = &mut device.mig {
        let place = |(profile, start): &(&str, u8)| ReservedPlacement {
            placement: MigPlacement {
                profile: (*profile).to_owned(),
                start: *start,
            },
            namespaces: vec!["sys".into()],
        };
        found.reserved = places.iter().map(place).collect();
    }
    device
}

fn of_sys(demand: Demand) -> Demand {
    Demand {
        namespace: "sys".into(),
        ..demand
    }
}

fn one(profile: &str) -> Demand {
    instances(&[profile])
}

#[test]
fn mig_15_reserved_devices_serve_only_their_namespace() {
    let devices = vec![
        reserved(fixed_instance(0, "1g.5gb", 0)),
        fixed_instance(0, "1g.5gb", 1),
        reserved(shared(1, Mode::Exclusive, 1, GPU)),
    ];
    check(
        devices,
        &[
            (one("1g.5gb"), "c0 MIG-0-1:19968/100"),
            (
                one("1g.5gb"),
                "1 CardTypeMismatch, 1 CardReserved, 1 ExclusiveDeviceAllocateConflict",
            ),
            (app(ONE), "2 CardModeMismatch, 1 CardReserved"),
            (of_sys(app(ONE)), "c0 GPU-1:40000/100"),
            (of_sys(one("1g.5gb")), "c0 MIG-0-0:19968/100"),
            (
                of_sys(one("1g.5gb")),
                "1 CardTypeMismatch, 2 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
    let whole = vec![reserved(dynamic_gpu(0, &a100(), vec![]))];
    let given = "c0 GPU-0/1g.5gb@6:5120/14";
    check(
        whole,
        &[
            (one("1g.5gb"), "1 CardReserved"),
            (of_sys(one("1g.5gb")), given),
        ],
    );
}

#[test]
fn mig_15_reserved_placement_stays_free_on_dynamic_mig_gpu() {
    let device = || vec![with_reserved_placements(0, &[("1g.5gb", 6)])];
    check(
        device(),
        &[
            (one("7g.40gb"), "1 CardReserved"),
            (one("1g.5gb"), "c0 GPU-0/1g.5gb@5:5120/14"),
            (one("4g.20gb"), "c0 GPU-0/4g.20gb@0:20480/57"),
            (one("2g.10gb"), "1 CardMigNoPlacement"),
            (one("1g.5gb"), "c0 GPU-0/1g.5gb@4:5120/14"),
            (one("1g.5gb"), "1 CardReserved"),
            (of_sys(one("1g.5gb")), "c0 GPU-0/1g.5gb@6:5120/14"),
            (of_sys(one("1g.5gb")), "1 CardInsufficientCore"),
        ],
    );
    // Its own placement first, then any.
    let own = [
        (of_sys(one("1g.5gb")), "c0 GPU-1/1g.5gb@2:5120/14"),
        (of_sys(one("1g.5gb")), "c0 GPU-1/1g.5gb@3:5120/14"),
    ];
    let two = vec![
        dynamic_gpu(0, &a100(), vec![]),
        with_reserved_placements(1, &[("1g.5gb", 2)]),
    ];
    check(two, &own);
    // A placement that is in use is not reserved beside it.
    let mut ledger = Ledger::default();
    let publish = |ledger: &mut Ledger, device: Gpu| {
        let published = NodePublication {
            inventory: Some(Arc::new(inventory(vec![device]))),
            ..NodePublication::default()
        };
        ledger.publish(&"n".into(), Some(published));
    };
    let policies = Policies::default();
    publish(&mut ledger, dynamic_gpu(0, &a100(), vec![]));
    let before = ledger.reserve(
        &"a".into(),
        &"d".into(),
        &"n".into(),
        &one("2g.10gb"),
        &policies,
    );
    let before = before.expect("fits").encode().expect("encoded");
    assert!(before.contains("\"start\":4"), "{before}");
    publish(&mut ledger, with_reserved_placements(0, &[("3g.20gb", 4)]));
    let beside = ledger.fit("n", &one("4g.20gb"), &policies);
    assert!(beside.is_ok(), "{beside:?}");
}

#[test]
fn mig_15_preempts_nobody_on_devices_reserved_for_others() {
    let occupant = Occupant {
        uid: "a".into(),
        allocated: AllocatedUse::Known(
            [("MIG-0-0".into(), DeviceUse::of(Mib(1), Percent(100)))].into(),
        ),
        replicas: crate::Replicas::default(),
        priority: 0,
        started: 0,
        budgets: vec![],
        state: OccupantState::Running,
    };
    let node = || CandidateNode {
        name: "n".into(),
        published: NodePublication {
            inventory: Some(Arc::new(inventory(vec![reserved(fixed_instance(
                0, "1g.5gb", 0,
            ))]))),
            ..NodePublication::default()
        },
        requested: crate::Requests::default(),
        occupants: vec![occupant.clone()],
    };
    let plan = |demand: &Demand| {
        let query = preemption::PreemptionQuery {
            demand,
            priority: 1,
            policies: &Policies::default(),
            budgets: &[],
        };
        preemption::plan(&query, [node()]).map(|plan| plan.victims)
    };
    assert_eq!(plan(&one("1g.5gb")), Err(NoPlan::NotEnough));
    assert_eq!(plan(&of_sys(one("1g.5gb"))), Ok(vec!["a".into()]));
}

#[test]
fn mig_15_charges_reserved_device_to_its_users_quota() {
    let mut ledger = Ledger::default();
    let published = NodePublication {
        inventory: Some(Arc::new(inventory(vec![
            reserved(fixed_instance(0, "1g.5gb", 0)),
            reserved(fixed_instance(0, "1g.5gb", 1)),
        ]))),
        ..NodePublication::default()
    };
    ledger.publish(&"n".into(), Some(published));
    let quota = Quota {
        name: "team".into(),
        limits: vec![Limit {
            on: LimitedResource::Memory,
            key: "limits.nvidia.com/gpumem".into(),
            most: LimitValue::Number(20_000),
        }],
    };
    ledger.set_quota(&"sys".into(), "team", Some(quota));
    let policies = Policies::default();
    let mut reserve = |pod: &str| {
        let demand = of_sys(one("1g.5gb"));
        let given = ledger.reserve(&pod.into(), &"sys".into(), &"n".into(), &demand, &policies);
        given.map(|_| ()).map_err(|refused| format!("{refused:?}"))
    };
    assert_eq!(reserve("a"), Ok(()));
    let refused = reserve("b").expect_err("over the quota");
    assert!(refused.contains("asked: 19968"), "{refused}");
}

#[test]
fn mig_15_separates_verdicts_by_namespace() {
    let mut ledger = Ledger::default();
    let mut publish = |device: Gpu| {
        let published = NodePublication {
            inventory: Some(Arc::new(inventory(vec![device]))),
            ..NodePublication::default()
        };
        ledger.publish(&"n".into(), Some(published));
        ledger.cluster().clone()
    };
    let mut memo = Memo::default();
    let mut fits = |cluster: &crate::Cluster, demand: &Demand| {
        let query = NodeQuery {
            cluster,
            demand,
            policies: &Policies::default(),
            pending: &[],
            own_reservation: None,
            headroom: None,
        };
        decide::best(&query, &mut memo, &["n"], 1).is_ok()
    };
    let cluster = publish(fixed_instance(0, "1g.5gb", 0));
    assert!(!cluster.reserves_for(&"sys".into()));
    assert!(fits(&cluster, &one("1g.5gb")) && fits(&cluster, &of_sys(one("1g.5gb"))));
    let cluster = publish(reserved(fixed_instance(0, "1g.5gb", 0)));
    assert!(cluster.reserves_for(&"sys".into()));
    assert!(!fits(&cluster, &one("1g.5gb")) && fits(&cluster, &of_sys(one("1g.5gb"))));
    let cluster = publish(fixed_instance(0, "1g.5gb", 0));
    assert!(!cluster.reserves_for(&"sys".into()));
    assert!(fits(&cluster, &one("1g.5gb")));
}

#[test]
fn mig_15_explains_for_whom_a_device_is_reserved() {
    let explained = |device: Gpu| {
        let published = NodePublication {
            inventory: Some(Arc::new(inventory(vec![device]))),
            ..NodePublication::default()
        };
        let node = crate::NodeState::of(&published, &[], crate::HostResources::default());
        let policies = Policies::default();
        let demand = one("7g.40gb");
        let (answer, _) = NodeAnswer::of(&"n".into(), &node, &demand, &policies, true, None, None);
        let device = &answer.gpus[0];
        format!("{}: {}", device.answer, device.detail)
    };
    assert_eq!(
        explained(reserved(fixed_instance(0, "7g.40gb", 0))),
        "CardReserved: reserved for pods of sys"
    );
    assert_eq!(
        explained(with_reserved_placements(0, &[("1g.5gb", 6), ("1g.5gb", 5)])),
        "CardReserved: 1g.5gb@6 is reserved for pods of sys; 1g.5gb@5 is reserved for pods of sys"
    );
}

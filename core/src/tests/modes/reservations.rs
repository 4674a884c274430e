//! Reservations for pods of some namespaces, and how others are refused.

use super::*;
use crate::decide::{self, Memo};
use crate::explain::NodeAnswer;
use crate::mig::published::{MigPlacement, ReservedPlacement};
use crate::preemption::{self, NoPlan};
use crate::tests::{candidate, memory_quota, query};

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
                "1 CardTypeMismatch, 1 GpuReserved, 1 ExclusiveDeviceAllocateConflict",
            ),
            (app(ONE), "2 GpuModeMismatch, 1 GpuReserved"),
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
            (one("1g.5gb"), "1 GpuReserved"),
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
            (one("7g.40gb"), "1 GpuReserved"),
            (one("1g.5gb"), "c0 GPU-0/1g.5gb@5:5120/14"),
            (one("4g.20gb"), "c0 GPU-0/4g.20gb@0:20480/57"),
            (one("2g.10gb"), "1 MigNoPlacement"),
            (one("1g.5gb"), "c0 GPU-0/1g.5gb@4:5120/14"),
            (one("1g.5gb"), "1 GpuReserved"),
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
    let mut ledger = ledger(vec![dynamic_gpu(0, &a100(), vec![])]);
    let before = reserve(&mut ledger, "a", "n", &one("2g.10gb"));
    let before = before.expect("fits").encode().expect("encoded");
    assert!(before.contains("\"start\":4"), "{before}");
    let reserved = with_reserved_placements(0, &[("3g.20gb", 4)]);
    ledger.publish(&"n".into(), Some(published(vec![reserved])));
    let node = ledger.cluster().node("n").unwrap();
    let beside = crate::fit::fit(node, &one("4g.20gb"), &Policies::default());
    assert!(beside.is_ok(), "{beside:?}");
}

#[test]
fn mig_15_preempts_nobody_on_devices_reserved_for_others() {
    let device = || vec![reserved(fixed_instance(0, "1g.5gb", 0))];
    let plan = |demand: &Demand| {
        let query = preemption::PreemptionQuery {
            demand,
            priority: 1,
            policies: &Policies::default(),
            budgets: &[],
        };
        preemption::plan(&query, [candidate(device(), &[("a", "MIG-0-0")])])
            .map(|plan| plan.victims)
    };
    assert_eq!(plan(&one("1g.5gb")), Err(NoPlan::NotEnough));
    assert_eq!(plan(&of_sys(one("1g.5gb"))), Ok(vec!["a".into()]));
}

#[test]
fn mig_15_charges_reserved_device_to_its_users_quota() {
    let mut ledger = ledger(vec![
        reserved(fixed_instance(0, "1g.5gb", 0)),
        reserved(fixed_instance(0, "1g.5gb", 1)),
    ]);
    ledger.set_quota(&"sys".into(), "q", Some(memory_quota(20_000)));
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
        ledger.publish(&"n".into(), Some(published(vec![device])));
        ledger.cluster().clone()
    };
    let (mut memo, policies) = (Memo::default(), Policies::default());
    let mut fits = |cluster: &crate::Cluster, demand: &Demand| {
        let query = query(cluster, demand, &policies);
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
fn mig_15_explains_reservations_without_names_of_other_namespaces() {
    let explained = |device: Gpu| {
        let (published, host) = (published(vec![device]), crate::HostResources::default());
        let node = crate::NodeState::new(&published, &[], host);
        let policies = Policies::default();
        let demand = one("7g.40gb");
        let (answer, _) = NodeAnswer::evaluate(&"n".into(), &node, &demand, &policies, true, None);
        let device = &answer.gpus[0];
        format!("{}: {}", device.answer, device.detail)
    };
    assert_eq!(
        explained(reserved(fixed_instance(0, "7g.40gb", 0))),
        "GpuReserved: reserved for pods of 1 other namespace"
    );
    assert_eq!(
        explained(with_reserved_placements(0, &[("1g.5gb", 6), ("1g.5gb", 5)])),
        "GpuReserved: 1g.5gb@6 is reserved for pods of 1 other namespace; 1g.5gb@5 is reserved for pods of 1 other namespace"
    );
}

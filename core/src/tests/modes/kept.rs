//! What is kept for pods of some namespaces, and what others are told.

use super::*;
use crate::decide::{self, Question};
use crate::explain::NodeAnswer;
use crate::ledger::Held;
use crate::memo::Memo;
use crate::mig::published::{Placed, Reserved};
use crate::preemption::{self, NoPlan, Node, Occupant, Standing};
use crate::quota::{Limit, Limited, Most, Quota};
use crate::usage::Use;

/// Kept for pods of namespace `sys`.
fn kept(card: Gpu) -> Gpu {
    Gpu {
        reserved: vec!["sys".into()],
        ..card
    }
}

/// A card on which these places are kept for pods of namespace `sys`.
fn with_places(index: u32, places: &[(&str, u8)]) -> Gpu {
    let mut card = cut(index, &a100(), vec![]);
    if let Some(Mig::Dynamic(found)) = &mut card.mig {
        let place = |(profile, start): &(&str, u8)| Reserved {
            place: Placed {
                profile: (*profile).to_owned(),
                start: *start,
            },
            namespaces: vec!["sys".into()],
        };
        found.reserved = places.iter().map(place).collect();
    }
    card
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
fn mig_15_units_that_are_kept_for_a_namespace_are_given_to_nobody_else() {
    let cards = vec![
        kept(part(0, "1g.5gb", 0)),
        part(0, "1g.5gb", 1),
        kept(shared(1, Mode::Exclusive, 1, GPU)),
    ];
    check(
        cards,
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
    let whole = vec![kept(cut(0, &a100(), vec![]))];
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
fn mig_15_a_place_that_is_kept_stays_free_on_a_card_that_is_cut_as_pods_come() {
    let card = || vec![with_places(0, &[("1g.5gb", 6)])];
    check(
        card(),
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
    // Its own place first, then like anybody.
    let own = [
        (of_sys(one("1g.5gb")), "c0 GPU-1/1g.5gb@2:5120/14"),
        (of_sys(one("1g.5gb")), "c0 GPU-1/1g.5gb@3:5120/14"),
    ];
    let two = vec![cut(0, &a100(), vec![]), with_places(1, &[("1g.5gb", 2)])];
    check(two, &own);
    // What somebody holds is not kept beside it.
    let mut ledger = Ledger::default();
    let publish = |ledger: &mut Ledger, card: Gpu| {
        let published = Published {
            inventory: Some(Arc::new(inventory(vec![card]))),
            ..Published::default()
        };
        ledger.publish(&"n".into(), Some(published));
    };
    let policies = Policies::default();
    publish(&mut ledger, cut(0, &a100(), vec![]));
    let before = ledger.reserve(
        &"a".into(),
        &"d".into(),
        &"n".into(),
        &one("2g.10gb"),
        &policies,
    );
    let before = before.expect("fits").encode().expect("encoded");
    assert!(before.contains("\"start\":4"), "{before}");
    publish(&mut ledger, with_places(0, &[("3g.20gb", 4)]));
    let beside = ledger.fit("n", &one("4g.20gb"), &policies);
    assert!(beside.is_ok(), "{beside:?}");
}

#[test]
fn mig_15_preemption_ends_nobody_on_what_is_kept_for_others() {
    let occupant = Occupant {
        uid: "a".into(),
        held: Held::Uses([("MIG-0-0".into(), Use::of(Mib(1), Percent(100)))].into()),
        seats: crate::Seats::default(),
        priority: 0,
        started: 0,
        budgets: vec![],
        standing: Standing::Runs,
    };
    let node = || Node {
        name: "n".into(),
        published: Published {
            inventory: Some(Arc::new(inventory(vec![kept(part(0, "1g.5gb", 0))]))),
            ..Published::default()
        },
        requested: crate::Requests::default(),
        occupants: vec![occupant.clone()],
    };
    let plan = |demand: &Demand| {
        let question = preemption::Question {
            demand,
            priority: 1,
            policies: &Policies::default(),
            budgets: &[],
        };
        preemption::plan(&question, [node()]).map(|plan| plan.victims)
    };
    assert_eq!(plan(&one("1g.5gb")), Err(NoPlan::NotEnough));
    assert_eq!(plan(&of_sys(one("1g.5gb"))), Ok(vec!["a".into()]));
}

#[test]
fn mig_15_what_is_kept_counts_in_the_quota_of_who_uses_it() {
    let mut ledger = Ledger::default();
    let published = Published {
        inventory: Some(Arc::new(inventory(vec![
            kept(part(0, "1g.5gb", 0)),
            kept(part(0, "1g.5gb", 1)),
        ]))),
        ..Published::default()
    };
    ledger.publish(&"n".into(), Some(published));
    let quota = Quota {
        name: "team".into(),
        limits: vec![Limit {
            on: Limited::Memory,
            key: "limits.nvidia.com/gpumem".into(),
            most: Most::Whole(20_000),
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
fn mig_15_what_was_concluded_for_one_namespace_is_not_taken_for_another() {
    let mut ledger = Ledger::default();
    let mut publish = |card: Gpu| {
        let published = Published {
            inventory: Some(Arc::new(inventory(vec![card]))),
            ..Published::default()
        };
        ledger.publish(&"n".into(), Some(published));
        ledger.cluster().clone()
    };
    let mut memo = Memo::default();
    let mut fits = |cluster: &crate::Cluster, demand: &Demand| {
        let question = Question {
            cluster,
            demand,
            policies: &Policies::default(),
            notes: &[],
            own: None,
            headroom: None,
        };
        decide::fitting(&question, &mut memo, &["n"]).is_ok()
    };
    let cluster = publish(part(0, "1g.5gb", 0));
    assert!(!cluster.keeps_for(&"sys".into()));
    assert!(fits(&cluster, &one("1g.5gb")) && fits(&cluster, &of_sys(one("1g.5gb"))));
    let cluster = publish(kept(part(0, "1g.5gb", 0)));
    assert!(cluster.keeps_for(&"sys".into()));
    assert!(!fits(&cluster, &one("1g.5gb")) && fits(&cluster, &of_sys(one("1g.5gb"))));
    let cluster = publish(part(0, "1g.5gb", 0));
    assert!(!cluster.keeps_for(&"sys".into()));
    assert!(fits(&cluster, &one("1g.5gb")));
}

#[test]
fn mig_15_explain_says_for_whom_it_is_kept() {
    let said = |card: Gpu| {
        let published = Published {
            inventory: Some(Arc::new(inventory(vec![card]))),
            ..Published::default()
        };
        let node = crate::NodeState::of(&published, &[], crate::Compute::default());
        let policies = Policies::default();
        let demand = one("7g.40gb");
        let (answer, _) = NodeAnswer::of(&"n".into(), &node, &demand, &policies, true, None, None);
        let card = &answer.gpus[0];
        format!("{}: {}", card.answer, card.detail)
    };
    assert_eq!(
        said(kept(part(0, "7g.40gb", 0))),
        "CardReserved: kept for pods of sys"
    );
    assert_eq!(
        said(with_places(0, &[("1g.5gb", 6), ("1g.5gb", 5)])),
        "CardReserved: 1g.5gb@6 is kept for pods of sys; 1g.5gb@5 is kept for pods of sys"
    );
}

//! Instances that are there for good, and those that are made when a pod needs them.

use super::*;
use crate::PodUid;
use crate::explain::NodeAnswer;
use crate::inventory::Health;
use crate::ledger::Held;
use crate::preemption::{self, Node, Occupant, Question, Standing};
use crate::usage::Use;

#[test]
fn mig_1_instances_that_are_there_go_by_their_own_name() {
    let cards = vec![
        part(0, "3g.20gb", 0),
        part(0, "3g.20gb", 4),
        gpu(1, 40_000, 2),
    ];
    let one = || instances(&["3g.20gb"]);
    check(
        cards,
        &[
            (one(), "c0 MIG-0-0:19968/100"),
            (
                app(&[("nvidia.com/mig-3g.20gb", 1), ("mem", 20_000)]),
                "1 CardTypeMismatch, 2 CardInsufficientMemory",
            ),
            (one(), "c0 MIG-0-4:19968/100"),
            (
                one(),
                "1 CardTypeMismatch, 2 ExclusiveDeviceAllocateConflict",
            ),
            (
                instances(&["1g.5gb"]),
                "1 CardTypeMismatch, 2 CardMigProfileMismatch",
            ),
            (app(ONE), "c0 GPU-1:5000/0"),
        ],
    );
}

#[test]
fn mig_17_instances_are_placed_where_they_cost_least() {
    let cards = vec![cut(0, &a100(), vec![]), cut(1, &a100(), vec![])];
    let one = |name| instances(&[name]);
    check(
        cards,
        &[
            (one("1g.5gb"), "c0 GPU-0/1g.5gb@6:5120/14"),
            (one("3g.20gb"), "c0 GPU-0/3g.20gb@0:20480/42"),
            (one("4g.20gb"), "c0 GPU-1/4g.20gb@0:20480/57"),
            (one("7g.40gb"), "2 CardInsufficientMemory"),
            (one("3g.20gb"), "c0 GPU-1/3g.20gb@4:20480/42"),
            (one("8g.1gb"), "2 CardMigProfileMismatch"),
            (app(ONE), "2 CardModeMismatch"),
        ],
    );
}

#[test]
fn mig_20_one_container_has_instances_of_two_profiles() {
    let both = instances(&["1g.5gb", "2g.10gb"]);
    let given = "c0 GPU-0/1g.5gb@6:5120/14+GPU-0/2g.10gb@4:10240/28";
    check(vec![cut(0, &a100(), vec![])], &[(both, given)]);
    let three = app(&[("nvidia.com/mig-1g.5gb", 3)]);
    let given = "c0 GPU-0/1g.5gb@6:5120/14+GPU-0/1g.5gb@5:5120/14+GPU-0/1g.5gb@4:5120/14";
    check(vec![cut(0, &a100(), vec![])], &[(three, given)]);
}

#[test]
fn mig_12_free_slices_without_a_legal_start_are_said_to_be_so() {
    // The driver's own choice in another life: 1g at 1 and at 5.
    let pin = |place| {
        wishing(
            &[("nvidia.com/mig-1g.5gb", 1)],
            ("aliquot.dev/use-gpu", place),
        )
    };
    check(
        vec![cut(0, &a100(), vec![])],
        &[
            (pin("0:1"), "c0 GPU-0/1g.5gb@1:5120/14"),
            (pin("0:5"), "c0 GPU-0/1g.5gb@5:5120/14"),
            (instances(&["3g.20gb"]), "1 CardMigNoPlacement"),
            (instances(&["7g.40gb"]), "1 CardInsufficientMemory"),
        ],
    );
}

#[test]
fn mig_5_a_pin_is_booked_and_the_next_one_is_told_that_it_is_held() {
    let made = |start| Made {
        profile: "1g.5gb".to_owned(),
        start,
        uuid: format!("MIG-{UUID}").into(),
        gi: 9,
        ci: 0,
    };
    let cards = || vec![cut(0, &a100(), vec![made(2)]), part(1, "1g.5gb", 4)];
    let one: &[(&str, u32)] = &[("nvidia.com/mig-1g.5gb", 1)];
    let pin = |place: &str| wishing(one, ("aliquot.dev/use-gpu", place));
    let uuid = format!("MIG-{UUID}");
    check(
        cards(),
        &[
            (pin(&uuid), "c0 GPU-0/1g.5gb@2:5120/14"),
            (pin(&uuid), "1 CardUuidMismatch, 1 CardPinned"),
            (pin("0:2:1g.5gb"), "1 CardUuidMismatch, 1 CardPinned"),
            (pin("0:3:2g.10gb"), "2 CardUuidMismatch"),
            (pin("1:4"), "c0 MIG-1-4:19968/100"),
            (pin("1:4"), "1 CardUuidMismatch, 1 CardPinned"),
            (app(one), "c0 GPU-0/1g.5gb@3:5120/14"),
        ],
    );
    let whole = || vec![shared(0, Mode::Exclusive, 1, GPU)];
    let elsewhere = format!("GPU-{UUID}");
    let named = wishing(ONE, ("aliquot.dev/use-gpu", &elsewhere));
    check(whole(), &[(named, "1 CardUuidMismatch")]);
}

#[test]
fn an_init_container_uses_the_instance_of_the_app_after_it() {
    let one: &[(&str, u32)] = &[("nvidia.com/mig-3g.20gb", 1)];
    let both = pod(&[(Stage::Init, one), (Stage::App, one)], &[]);
    let beside = pod(&[(Stage::Sidecar, one), (Stage::App, one)], &[]);
    let given = "c1 GPU-0/3g.20gb@4:20480/42, c0 GPU-0/3g.20gb@4:20480/42";
    check(vec![cut(0, &a100(), vec![])], &[(both, given)]);
    let given = "c1 GPU-0/3g.20gb@0:20480/42, c0 GPU-0/3g.20gb@4:20480/42";
    check(vec![cut(0, &a100(), vec![])], &[(beside, given)]);
}

#[test]
fn an_init_container_that_wrote_more_memory_was_given_the_apps_instance() {
    let init: &[(&str, u32)] = &[("nvidia.com/mig-1g.5gb", 1), ("mem", 10_000)];
    let app: &[(&str, u32)] = &[("nvidia.com/mig-1g.5gb", 1)];
    let both = pod(&[(Stage::Init, init), (Stage::App, app)], &[]);
    check(
        vec![cut(0, &a100(), vec![])],
        &[(both, "1 CardInsufficientMemory")],
    );
}

#[test]
fn a_note_of_an_instance_that_the_card_cannot_have_any_more_was_out_of_bounds() {
    let published = Published {
        inventory: Some(Arc::new(inventory(vec![cut(0, &a100(), vec![])]))),
        ..Published::default()
    };
    let node = crate::node::NodeState::of(&published, &[], crate::Compute::default());
    let used = Use::of(Mib(1), Percent(1));
    for (profile, start) in [(99, 0), (0, 77)] {
        let busy = true;
        let noted = crate::mig::Instance {
            profile,
            start,
            busy,
        };
        let with = node.with(&[(0, used)], &[(0, noted)], &crate::Seats::default());
        assert_eq!(with.cuts, node.cuts);
    }
}

#[test]
fn a_card_that_is_about_to_change_takes_nothing_new() {
    let mut cards = vec![gpu(0, 40_000, 4), cut(1, &a100(), vec![])];
    for card in &mut cards {
        card.cordon = Some("changes from vgpu to exclusive".to_owned());
    }
    check(
        cards,
        &[
            (app(ONE), "2 CardCordoned"),
            (instances(&["1g.5gb"]), "2 CardCordoned"),
        ],
    );
}

#[test]
fn what_is_held_of_a_cut_card_and_is_no_instance_closes_it() {
    let mut ledger = Ledger::default();
    let published = Published {
        inventory: Some(Arc::new(inventory(vec![cut(0, &a100(), vec![])]))),
        ..Published::default()
    };
    ledger.publish(&"n".into(), Some(published));
    let fits = |ledger: &Ledger| {
        let found = ledger.fit("n", &instances(&["1g.5gb"]), &Policies::default());
        found.map_err(|refusal| refusal.to_string()).err()
    };
    assert_eq!(fits(&ledger), None);
    for unit in ["GPU-0", "GPU-0/9g.9gb@0", "GPU-0/2g.10gb@1"] {
        let used = crate::usage::Use::of(Mib(1), Percent(0));
        let held = crate::ledger::Held::Uses([(unit.into(), used)].into());
        let host = crate::Compute::default();
        ledger.confirm(&"p".into(), &"d".into(), &"n".into(), held, host);
        let why = Some("1 ExclusiveDeviceAllocateConflict".to_owned());
        assert_eq!(fits(&ledger), why, "{unit}");
    }
}

/// What is explained of the first card for this pod, after those before it came.
fn explained(gpus: Vec<Gpu>, before: &[Demand], pod: &Demand) -> (String, String) {
    let mut ledger = Ledger::default();
    let published = Published {
        inventory: Some(Arc::new(inventory(gpus))),
        ..Published::default()
    };
    let name = "n".into();
    ledger.publish(&name, Some(published));
    let policies = Policies::default();
    for (number, demand) in before.iter().enumerate() {
        let uid = format!("p{number}").into();
        let given = ledger.reserve(&uid, &"d".into(), &name, demand, &policies);
        assert!(given.is_ok(), "{given:?}");
    }
    let node = ledger.cluster().node("n").unwrap();
    let (answer, _) = NodeAnswer::of(&name, node, pod, &policies, true, None, None);
    let card = &answer.gpus[0];
    (card.answer.clone(), card.detail.clone())
}

#[test]
fn mig_12_explain_says_which_slices_are_free_and_where_the_profile_may_start() {
    let pin = |place| {
        wishing(
            &[("nvidia.com/mig-1g.5gb", 1)],
            ("aliquot.dev/use-gpu", place),
        )
    };
    let card = || cut(0, &a100(), vec![]);
    let check = |gpus, before: &[Demand], pod: &Demand, answer: &str, detail: &str| {
        let found = explained(gpus, before, pod);
        assert_eq!((&*found.0, &*found.1), (answer, detail));
    };
    let big = instances(&["3g.20gb"]);
    check(
        vec![card()],
        &[pin("0:1"), pin("0:5")],
        &big,
        "CardMigNoPlacement",
        "free slices: 0, 2, 3, 4, 6, 7; 3g.20gb takes 4 from 0, 4",
    );
    let full = instances(&["7g.40gb"]);
    let told = "no slice is free; 3g.20gb takes 4 from 0, 4";
    check(vec![card()], &[full], &big, "CardInsufficientMemory", told);
    check(vec![card()], &[pin("0:1")], &pin("0:1"), "CardPinned", "");
    check(
        vec![card()],
        &[],
        &instances(&["9g.1gb"]),
        "CardMigProfileMismatch",
        "",
    );
    let mut sick = card();
    sick.health = Health::Sick("xid 79".to_owned());
    check(vec![sick], &[], &big, "CardNotHealth", "xid 79");
    let mut leaving = card();
    leaving.cordon = Some("changes from mig to vgpu".to_owned());
    let why = "changes from mig to vgpu";
    check(vec![leaving], &[], &big, "CardCordoned", why);
}

#[test]
fn who_needs_slices_ends_only_the_pods_that_are_in_their_way() {
    let uses = |unit: &str| {
        let used = Use::of(Mib(4_864), Percent(14));
        Held::Uses([(unit.into(), used)].into())
    };
    let occupant = |(name, unit): (&str, &str)| Occupant {
        uid: name.into(),
        held: uses(unit),
        seats: crate::Seats::default(),
        priority: 0,
        started: 0,
        budgets: vec![],
        standing: Standing::Runs,
    };
    let node = |held: &[(&str, &str)]| Node {
        name: "n".into(),
        published: Published {
            inventory: Some(Arc::new(inventory(vec![cut(0, &a100(), vec![])]))),
            ..Published::default()
        },
        requested: crate::Requests::default(),
        occupants: held.iter().copied().map(occupant).collect(),
    };
    let check = |held: &[(&str, &str)], wanted: &str, expected: &[&str]| {
        let demand = instances(&[wanted]);
        let policies = Policies::default();
        let question = Question {
            demand: &demand,
            priority: 1,
            policies: &policies,
            budgets: &[],
        };
        let plan = preemption::plan(&question, [node(held)]).expect("a plan");
        let victims: Vec<&str> = plan.victims.iter().map(PodUid::as_str).collect();
        assert_eq!(victims, expected, "{wanted}");
    };
    let ends = [
        ("a", "GPU-0/1g.5gb@1"),
        ("b", "GPU-0/1g.5gb@5"),
        ("c", "GPU-0/1g.5gb@6"),
    ];
    check(&ends, "3g.20gb", &["a"]);
    check(&ends, "7g.40gb", &["a", "b", "c"]);
    check(&[("a", "GPU-0/7g.40gb@0")], "1g.5gb", &["a"]);
}

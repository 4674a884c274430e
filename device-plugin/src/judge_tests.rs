//! A table of first starts: who may, who may not, and what the user reads.

use aliquot_core::Grant;
use aliquot_core::demand::Stage;
use aliquot_core::usage::Use;

use super::*;
use crate::testing::{RESOURCE, allocation, arrangement, container, grant, inventory, pod};

const RULES: NodeRules = NodeRules::new(true);

fn entry(container: &str, seats: usize) -> Entry {
    Entry {
        pod: "u1".into(),
        container: container.to_owned(),
        resource: RESOURCE.to_owned(),
        ids: (0..seats).map(|n| format!("GPU-a::{n}")).collect(),
        name: None,
        by_env: None,
    }
}

fn other(uid: &str, grants: &[Grant]) -> Accepted {
    Accepted::new(
        uid.into(),
        "default".to_owned(),
        uid.to_owned(),
        allocation(&[("main", grants)]),
        Vec::new(),
    )
}

struct Case {
    inventory: Inventory,
    arrangement: Arrangement,
    pod: Option<Pod>,
    holders: Vec<Entry>,
    others: Vec<Accepted>,
    hamis: Vec<(PodUid, Held)>,
    damaged: Vec<(PodUid, Held)>,
}

/// A pod with one share of GPU-a, on a node with GPU-a and GPU-b.
fn case() -> Case {
    Case {
        inventory: inventory(&["GPU-a", "GPU-b"]),
        arrangement: arrangement(&["GPU-a", "GPU-b"]),
        pod: Some(pod("u1").with(&allocation(&[("main", &[grant("GPU-a", 3000, 30)])]))),
        holders: vec![entry("main", 1)],
        others: Vec::new(),
        hamis: Vec::new(),
        damaged: Vec::new(),
    }
}

fn verdict(case: &Case) -> Verdict {
    verdict_under(case, RULES)
}

fn verdict_under(case: &Case, rules: NodeRules) -> Verdict {
    judge(Facts {
        node: &"n1".into(),
        inventory: &case.inventory,
        arrangement: &case.arrangement,
        rules,
        uid: &"u1".into(),
        pod: case.pod.as_ref(),
        holders: &case.holders.iter().collect::<Vec<_>>(),
        others: &case.others.iter().collect::<Vec<_>>(),
        hamis: &case.hamis,
        damaged: &case.damaged,
    })
}

/// `expected` empty: accepted. Else: refused with a text that has all parts.
fn check(change: impl FnOnce(&mut Case), expected: &[&str]) {
    let mut case = case();
    change(&mut case);
    match verdict(&case) {
        Verdict::Accept(_) => assert!(expected.is_empty(), "accepted, expected {expected:?}"),
        Verdict::Refuse(refusal) => {
            let text = refusal.to_string();
            assert!(!expected.is_empty(), "refused: {text}");
            for part in expected {
                assert!(text.contains(part), "{part:?} not in {text:?}");
            }
        }
    }
}

fn given(grants: &[Grant]) -> Pod {
    pod("u1").with(&allocation(&[("main", grants)]))
}

#[test]
fn a_pod_that_fits_is_accepted_with_its_own_environment() {
    let mut case = case();
    if let Some(pod) = &mut case.pod {
        let policy = ("GPU_CORE_UTILIZATION_POLICY".to_owned(), "force".to_owned());
        pod.containers[0].env = [policy].into();
    }
    let Verdict::Accept(accepted) = verdict(&case) else {
        panic!("refused");
    };
    assert_eq!(accepted.pod_name, "u1");
    assert_eq!(
        accepted.effective("main").map(|e| e.utilization),
        Some(crate::environment::Utilization::Force)
    );
    assert_eq!(accepted.effective("other"), None);
}

#[test]
fn a_namespace_that_may_not_have_high_priority_held_back_its_neighbours() {
    let mut case = case();
    let mut high = allocation(&[("main", &[grant("GPU-a", 3000, 30)])]);
    high.priority = 0;
    case.pod = Some(pod("u1").with(&high));
    for (set_priority, expected) in [(true, 0), (false, 1)] {
        let mut rules = RULES;
        rules.may.set_priority = set_priority;
        let Verdict::Accept(accepted) = verdict_under(&case, rules) else {
            panic!("refused");
        };
        assert_eq!(accepted.allocation.priority, expected);
    }
}

#[test]
fn pods_that_did_not_pass_the_scheduler_are_told_how_to() {
    let how = "schedulerName: aliquot-scheduler";
    check(|c| c.pod = None, &["u1", "static pod", how]);
    check(
        |c| c.pod.as_mut().expect("pod").mirror = true,
        &["default/u1", "static pod", how],
    );
    check(
        |c| c.pod = Some(pod("u1")),
        &["default/u1", how, "spec.nodeName"],
    );
    check(
        |c| c.pod.as_mut().expect("pod").allocation = Some("{".to_owned()),
        &["cannot be used", how],
    );
    check(
        |c| {
            let mut elsewhere = allocation(&[("main", &[grant("GPU-a", 1, 1)])]);
            elsewhere.node = "n2".into();
            c.pod = Some(pod("u1").with(&elsewhere));
        },
        &["node n2", how],
    );
}

#[test]
fn the_allocation_must_have_a_share_for_every_holder_of_the_seats() {
    check(|c| c.holders = vec![entry("init", 1)], &["container init"]);
    check(|c| c.holders.push(entry("init", 1)), &["container init"]);
    check(
        |c| c.holders = vec![entry("main", 2)],
        &["1 GPU(s)", "2 seat(s)"],
    );
    check(
        |c| {
            let mut share = grant("GPU-a", 1, 1);
            share.resource = "example.com/gpu".to_owned();
            c.pod = Some(given(&[share]));
        },
        &["container main"],
    );
}

#[test]
fn the_cards_must_be_here_and_usable() {
    check(
        |c| c.pod = Some(given(&[grant("GPU-z", 1, 1)])),
        &["GPU-z", "not on this node"],
    );
    check(
        |c| c.inventory.gpus[0].health = Health::Sick("xid 79".to_owned()),
        &["GPU-a", "xid 79"],
    );
    check(
        |c| c.inventory.gpus[1].health = Health::Sick("xid 79".to_owned()),
        &[],
    );
    check(
        |c| {
            c.inventory.foreign.push(aliquot_core::inventory::Foreign {
                gpu: "GPU-a".into(),
                pod: "kube-system/old".to_owned(),
            });
        },
        &["CardHeldByForeignPod"],
    );
}

#[test]
fn a_card_that_takes_nothing_new_carries_who_was_bound_before_and_nobody_while_it_switches() {
    let mark = |case: &mut Case, switching| {
        let how = "changes from vgpu to exclusive".to_owned();
        case.inventory.gpus[0].cordon = Some(how.clone());
        let stand = case.arrangement.cards.get_mut(&GpuUuid::from("GPU-a"));
        let stand = stand.expect("there");
        stand.cordon = Some(how);
        stand.switching = switching;
    };
    check(|c| mark(c, false), &[]);
    check(
        |c| mark(c, true),
        &["GPU-a", "changes from vgpu to exclusive"],
    );
}

#[test]
fn the_sums_on_a_card_stay_within_what_it_may_promise() {
    let others = |grants: &[Grant]| vec![other("u2", grants)];
    check(|c| c.others = others(&[grant("GPU-a", 7000, 70)]), &[]);
    check(
        |c| c.others = others(&[grant("GPU-a", 7001, 0)]),
        &[
            "CardInsufficientMemory",
            "3000 MiB",
            "7001 MiB of 10000 MiB",
        ],
    );
    check(
        |c| c.others = others(&[grant("GPU-a", 1, 71)]),
        &["CardInsufficientCore"],
    );
    check(
        |c| c.others = others(&[grant("GPU-a", 1, 100)]),
        &["CardInsufficientCore"],
    );
    check(|c| c.others = others(&[grant("GPU-b", 10_000, 100)]), &[]);
    check(
        |c| {
            c.inventory.gpus[0].seats = 1;
            c.others = others(&[grant("GPU-a", 1, 1)]);
        },
        &["CardTimeSlicingExhausted", "1 of 1 seats"],
    );
}

#[test]
fn init_containers_share_with_the_containers_after_them() {
    check(
        |c| {
            let mut both = allocation(&[("main", &[grant("GPU-a", 9000, 30)])]);
            let share = vec![grant("GPU-a", 9000, 30)];
            both.init.insert("first".to_owned(), share);
            let mut pod = pod("u1").with(&both);
            pod.containers.insert(0, container("first", Stage::Init));
            c.pod = Some(pod);
            c.holders.push(entry("first", 1));
        },
        &[],
    );
}

#[test]
fn pods_of_hami_that_still_run_here_count() {
    let holding = |memory: u64| {
        let used = Use::of(aliquot_core::Mib(memory), aliquot_core::Percent(0));
        ("hamis".into(), Held::Uses([("GPU-a".into(), used)].into()))
    };
    let room = inventory(&["GPU-a"]).gpus[0].scaled.0 - 3000;
    check(|case| case.hamis = vec![holding(room)], &[]);
    check(
        |case| case.hamis = vec![holding(room + 1)],
        &["GPU-a", "CardInsufficientMemory"],
    );
    check(
        |case| case.hamis = vec![("hamis".into(), Held::Unreadable)],
        &[
            "uid hamis",
            "hami.io/vgpu-devices-allocated",
            "delete that pod",
        ],
    );
}

#[test]
fn pods_whose_stored_share_is_damaged_were_not_counted() {
    let holding = |memory: u64| {
        let used = Use::of(Mib(memory), Percent(0));
        ("u2".into(), Held::Uses([("GPU-a".into(), used)].into()))
    };
    check(|case| case.damaged = vec![holding(7000)], &[]);
    check(
        |case| case.damaged = vec![holding(7001)],
        &["GPU-a", "CardInsufficientMemory"],
    );
    check(
        |case| case.damaged = vec![("u2".into(), Held::Unreadable)],
        &["uid u2", "delete that pod"],
    );
}

#[test]
fn written_memory_was_accepted_on_a_card_that_became_timeslice_after_the_binding() {
    let shared = |case: &mut Case, mode, given: Grant| {
        case.inventory.gpus[0].mode = mode;
        case.pod = Some(self::given(&[given]));
    };
    let turns = ["GPU-a", "3000 MiB", "30 % compute", "timeslice"];
    let share = || grant("GPU-a", 3000, 30);
    check(|c| shared(c, Mode::Timeslice, share()), &turns);
    check(
        |c| shared(c, Mode::Timeslice, grant("GPU-a", 0, 30)),
        &["timeslice"],
    );
    check(
        |c| shared(c, Mode::Timeslice, grant("GPU-a", 3000, 0)),
        &["timeslice"],
    );
    check(|c| shared(c, Mode::Timeslice, grant("GPU-a", 0, 0)), &[]);
    check(|c| shared(c, Mode::Exclusive, share()), &[]);
    check(|c| shared(c, Mode::Mps, share()), &[]);
    // A turn names no amount: by amounts it would be without a limit.
    for mode in [Mode::Vgpu, Mode::Mps] {
        check(
            |c| shared(c, mode, grant("GPU-a", 0, 0)),
            &["a turn of GPU-a", "by amounts now"],
        );
    }
}

//! Filter and prioritize on small clusters of one-card nodes.

use std::sync::Arc;

use crate::decide::{Question, SoftNote, cpu_only_ranks, fitting, ranks, refusal_text, shortlist};
use crate::fit::Policies;
use crate::ledger::{Held, Hold};
use crate::memo::Memo;
use crate::node::{Compute, Published};
use crate::quota::{Amount, Limit, Limited, Most, Quota};
use crate::request::{Ask, Memory};
use crate::tests::{ask, demand, gpu, inventory};
use crate::{Demand, Ledger, Mib, Percent, Seats, Stage, usage::Use};

/// Nodes `n0`, `n1`, … with one card of 1000 MiB each, so much of it taken.
fn ledger(taken: &[u64]) -> Ledger {
    let mut ledger = Ledger::default();
    for (number, &memory) in taken.iter().enumerate() {
        let published = Published {
            inventory: Some(Arc::new(inventory(vec![gpu(0, 1000, 9)]))),
            ..Published::default()
        };
        let name = format!("n{number}").into();
        ledger.publish(&name, Some(published));
        if memory > 0 {
            let pod = format!("taken-{number}").into();
            let reserved = ledger.reserve(
                &pod,
                &"team".into(),
                &name,
                &asks(memory),
                &Policies::default(),
            );
            reserved.unwrap();
        }
    }
    ledger
}

fn asks(memory: u64) -> Demand {
    demand(&[(Stage::App, Some(ask(1, memory, 0)))])
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("n{n}")).collect()
}

/// Asks twice, the second time with a memo that knows the shape.
fn filter(ledger: &Ledger, memory: u64, notes: &[SoftNote], names: &[&str], most: usize) -> String {
    let question = Question {
        cluster: ledger.cluster(),
        demand: &asks(memory),
        policies: &Policies::default(),
        notes,
        own: None,
        headroom: None,
    };
    let mut memo = Memo::default();
    let shown = |memo: &mut Memo| match fitting(&question, memo, names) {
        Ok(fits) => shortlist(fits, most).join(" "),
        Err(refusal) => refusal_text(names.len(), &refusal),
    };
    let first = shown(&mut memo);
    assert_eq!(first, shown(&mut memo));
    first
}

fn check(taken: &[u64], memory: u64, most: usize, expected: &str) {
    let names = names(taken.len());
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let shown = filter(&ledger(taken), memory, &[], &names, most);
    assert_eq!(shown, expected, "{taken:?}");
}

#[test]
fn filter_answers_the_best_nodes_first_and_no_more_than_the_shortlist() {
    check(&[0, 500, 300], 100, 64, "n1 n2 n0");
    check(&[0, 500, 300], 100, 2, "n1 n2");
    check(&[0, 950, 300], 100, 64, "n2 n0");
    check(&[0, 0, 0], 100, 2, "n0 n1");
}

#[test]
fn a_refusal_has_counts_and_a_length_that_does_not_grow() {
    check(
        &[950, 950],
        100,
        64,
        "0/2 nodes can serve the GPU request: 2 CardInsufficientMemory",
    );
    assert_eq!(
        filter(&ledger(&[]), 1, &[], &["elsewhere"], 64),
        "0/1 nodes can serve the GPU request: 1 NodeNotRegistered"
    );
}

#[test]
fn prioritize_gives_one_ten_and_falls_with_the_place() {
    let ledger = ledger(&[0, 500, 300, 1000]);
    let ranks = |names: &[&str]| {
        let question = Question {
            cluster: ledger.cluster(),
            demand: &asks(100),
            policies: &Policies::default(),
            notes: &[],
            own: None,
            headroom: None,
        };
        let ranks = ranks(&question, &mut Memo::default(), names);
        ranks.into_iter().map(|(_, rank)| rank).collect::<Vec<_>>()
    };
    assert_eq!(ranks(&["n0", "n1", "n2", "n3"]), [0, 10, 4, 0]);
    assert_eq!(ranks(&["n0"]), [10]);
    assert_eq!(ranks(&["n3"]), [0]);
    assert_eq!(ranks(&[]), [0; 0]);
}

#[test]
fn a_node_that_others_are_about_to_fill_comes_last_and_stays_feasible() {
    let ledger = ledger(&[0, 500, 300]);
    let all = ["n0", "n1", "n2"];
    let note = |memory| SoftNote {
        slot: 1,
        uses: vec![(0, Use::of(Mib(memory), Percent(0)))],
        instances: vec![],
        seats: Seats::default(),
    };
    assert_eq!(filter(&ledger, 100, &[note(300)], &all, 64), "n1 n2 n0");
    assert_eq!(filter(&ledger, 100, &[note(450)], &all, 64), "n2 n0 n1");
    let two = [note(200), note(250)];
    assert_eq!(filter(&ledger, 100, &two, &all, 64), "n2 n0 n1");
    assert_eq!(filter(&ledger, 100, &two, &["n1"], 64), "n1");
}

#[test]
fn a_verdict_is_forgotten_when_its_node_changes() {
    let mut ledger = ledger(&[0, 500]);
    let mut memo = Memo::default();
    let mut best = |ledger: &Ledger| {
        let question = Question {
            cluster: ledger.cluster(),
            demand: &asks(400),
            policies: &Policies::default(),
            notes: &[],
            own: None,
            headroom: None,
        };
        let fits = fitting(&question, &mut memo, &["n0", "n1"]).unwrap();
        shortlist(fits, 9).join(" ")
    };
    assert_eq!(best(&ledger), "n1 n0");
    ledger
        .reserve(
            &"p".into(),
            &"team".into(),
            &"n1".into(),
            &asks(200),
            &Policies::default(),
        )
        .unwrap();
    assert_eq!(best(&ledger), "n0");
    ledger.release(&"p".into());
    assert_eq!(best(&ledger), "n1 n0");
    ledger.publish(&"n0".into(), None);
    assert_eq!(best(&ledger), "n1");
}

#[test]
fn pods_without_gpu_are_kept_off_nodes_with_free_gpu() {
    let ledger = ledger(&[0, 1000, 500]);
    let ranks = cpu_only_ranks(ledger.cluster(), &["n0", "n1", "n2", "no-gpu"]);
    assert_eq!(ranks, [0, 4, 2, 10]);
}

#[test]
fn a_hold_keeps_a_share_from_all_but_its_pod_until_that_is_booked() {
    let mut ledger = ledger(&[600]);
    let (holder, other) = ("holder".into(), "other".into());
    let fits = |ledger: &Ledger, pod: &crate::PodUid| {
        let own = ledger.own(pod);
        let question = Question {
            cluster: ledger.cluster(),
            demand: &asks(400),
            policies: &Policies::default(),
            notes: &[],
            own: own.as_ref(),
            headroom: None,
        };
        let mut memo = Memo::default();
        fitting(&question, &mut memo, &["n0"]).is_ok()
    };
    let used = Use::of(Mib(400), Percent(0));
    let hold = Hold {
        node: "n0".into(),
        held: Held::Uses([("GPU-0".into(), used)].into()),
        seats: asks(400).seats(),
        written: true,
    };
    let version = ledger.cluster().version(0);
    ledger.hold(&holder, hold);
    assert_ne!(
        ledger.cluster().version(0),
        version,
        "a memo would not notice"
    );
    assert!(fits(&ledger, &holder) && !fits(&ledger, &other));
    let policies = Policies::default();
    let asked = asks(400);
    let mut reserve = |pod| {
        ledger
            .reserve(pod, &"team".into(), &"n0".into(), &asked, &policies)
            .is_ok()
    };
    assert!(!reserve(&other) && reserve(&holder));
    let card = |ledger: &Ledger| ledger.cluster().at(0).unwrap().cards[0].sums;
    assert_eq!(card(&ledger).used.memory, Mib(1000), "counted once");
    ledger.cancel(&holder);
    assert_eq!(card(&ledger).used.memory, Mib(1000), "kept again");
    ledger.unhold(&holder);
    assert!(fits(&ledger, &other));
}

/// Nodes `n0` and `n1` with a card of 1000 and one of 4000 MiB, and a quota of
/// 1500 MiB, of which 400 are used elsewhere.
#[test]
fn a_node_counts_against_the_quota_with_the_card_it_would_give() {
    let mut ledger = ledger(&[0]);
    let large = Published {
        inventory: Some(Arc::new(inventory(vec![gpu(0, 4000, 9)]))),
        ..Published::default()
    };
    ledger.publish(&"n1".into(), Some(large));
    let limit = Limit {
        on: Limited::Memory,
        key: "limits.nvidia.com/gpumem".into(),
        most: Most::Whole(1500),
    };
    let quota = Quota {
        name: "q".into(),
        limits: vec![limit],
    };
    ledger.set_quota(&"team".into(), "q", Some(quota));
    let held = Held::Uses([("GPU-x".into(), Use::of(Mib(400), Percent(0)))].into());
    ledger.confirm(
        &"x".into(),
        &"team".into(),
        &"elsewhere".into(),
        held,
        Compute::default(),
    );
    let headroom = ledger.headroom("team");
    let mut memo = Memo::default();
    let mut answer = |headroom, percent| {
        let ask = Ask::of(1, Memory::Share(Percent(percent)), Percent(0));
        let question = Question {
            cluster: ledger.cluster(),
            demand: &demand(&[(Stage::App, Some(ask))]),
            policies: &Policies::default(),
            notes: &[],
            own: None,
            headroom,
        };
        match fitting(&question, &mut memo, &["n0", "n1", "n2"]) {
            Ok(fits) => shortlist(fits, 9).join(" "),
            Err(refusal) => refusal_text(3, &refusal),
        }
    };
    assert_eq!(answer(None, 100), "n0 n1");
    assert_eq!(answer(headroom.as_ref(), 100), "n0");
    assert_eq!(answer(headroom.as_ref(), 25), "n0 n1");
    // The memo knows the shape and no namespace.
    assert_eq!(answer(None, 100), "n0 n1");
    let mut fuller = headroom.clone().unwrap();
    fuller.take(Amount {
        memory: Mib(200),
        cores: Percent(0),
    });
    assert_eq!(
        answer(Some(&fuller), 100),
        "0/3 nodes can serve the GPU request: 1 NodeNotRegistered, 2 ResourceQuotaNotFit \
         (namespace team: limits.nvidia.com/gpumem used 600, asked 1000, limit 1500 of quota q)"
    );
}

#[test]
fn a_note_for_a_card_that_is_gone_stopped_the_scheduler() {
    let note = SoftNote {
        slot: 0,
        uses: vec![(1, Use::of(Mib(900), Percent(0)))],
        instances: vec![],
        seats: Seats::default(),
    };
    assert_eq!(filter(&ledger(&[0]), 500, &[note], &["n0"], 9), "n0");
}

//! Looks of every kind, and what they mean.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_region::host::{Holder, Unreadable};

use super::*;
use crate::attribute::{Beside, Said};
use crate::seats::Seats;
use crate::settings::OnUnmanaged;
use crate::testing::{on_card, process, seat};

const MIB: u64 = 1 << 20;

pub(super) fn rules(unmanaged: OnUnmanaged) -> Rules {
    Rules {
        unmanaged,
        spared: BTreeSet::new(),
        tolerance: 10,
        fresh: true,
    }
}

/// What the slots of these processes say of one device.
fn report(slots: &[(Option<u32>, u64)]) -> Report {
    let holder = |(slot, (pid, used)): (usize, &(Option<u32>, u64))| Holder {
        slot,
        pid: *pid,
        used: vec![*used],
        contexts: vec![0],
    };
    let holders: Vec<Holder> = slots.iter().enumerate().map(holder).collect();
    let total = slots.iter().map(|(_, used)| used).sum();
    Report {
        holders,
        totals: vec![total],
        peaks: vec![total],
        ..Report::default()
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "what stands beside it may be an error"
)]
pub(super) fn counters(slots: &[(Option<u32>, u64)]) -> Counters {
    Ok((report(slots), report(slots)))
}

/// One container of pod u1 and one of u2 on a card, each with a limit of 100.
pub(super) fn look(counters: [Counters; 2], on_cards: &[(u32, &str, u64)]) -> Look {
    let seats = vec![
        seat("s0", "u1", "main", &["GPU-a"]),
        seat("s1", "u2", "main", &["GPU-a"]),
    ];
    let on = on_cards
        .iter()
        .map(|(pid, pod, bytes)| on_card("GPU-a", process(*pid, Some(pod), pod), *bytes));
    Look {
        seats: Arc::new(Seats {
            all: seats,
            ..Seats::default()
        }),
        limits: vec![vec![100], vec![100]],
        counters: counters.into_iter().map(Some).collect(),
        on_cards: on.collect(),
        beside: Beside {
            containers: ["u1", "u2"]
                .map(|pod| ((pod.into(), pod.to_owned()), "main".to_owned()))
                .into(),
            pods: [("u9".into(), Said::default())].into(),
            ..Beside::default()
        },
        ..Look::default()
    }
}

pub(super) fn after(looks: &[Look], rules: &Rules) -> Vec<Outcome> {
    let mut judge = Judge::default();
    looks.iter().map(|look| judge.after(look, rules)).collect()
}

pub(super) fn thrice(look: impl Fn() -> Look, rules: &Rules) -> Vec<Outcome> {
    after(&[look(), look(), look()], rules)
}

#[test]
fn each_share_has_its_own_figures() {
    let both = || {
        let counters = [
            counters(&[(Some(1), 40)]),
            counters(&[(Some(2), 20), (Some(3), 10)]),
        ];
        look(
            counters,
            &[(1001, "u1", 50), (1002, "u2", 22), (1003, "u2", 10)],
        )
    };
    let outcomes = thrice(both, &rules(OnUnmanaged::Kill));
    let last = &outcomes[2];
    let figures = |at: usize| {
        let found = last.uses[at][0];
        let counted = (found.measured, found.tracked, found.overhead);
        (counted, found.processes, found.limit)
    };
    assert_eq!(figures(0), ((50, 40, 10), 1, 100));
    assert_eq!(figures(1), ((32, 30, 2), 2, 100));
    assert_eq!(last.charges, [[Some(10)], [Some(2)]]);
    let lists = [vec![(1, 0, 50)], vec![(2, 0, 22), (3, 0, 10)]];
    assert_eq!(last.lists, lists.map(Some));
    assert!(
        outcomes
            .iter()
            .all(|one| one.deeds.is_empty() && one.strays.is_empty())
    );
}

#[test]
fn a_process_without_a_slot_is_charged_at_once_and_told_at_the_second_look() {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        look(counters, &[(1001, "u1", 40), (1009, "u1", 30)])
    };
    let outcomes = thrice(one, &rules(OnUnmanaged::Kill));
    assert_eq!(outcomes[0].charges[0], [Some(30)]);
    assert_eq!(outcomes[0].deeds, []);
    let [Deed::TellStray(told, 1009), Deed::EndStray(life, place, _)] = &outcomes[1].deeds[..]
    else {
        panic!("{:?}", outcomes[1].deeds)
    };
    assert_eq!((told.reason, told.bytes), (Reason::NoLibrary, 30));
    assert_eq!((life.pid, place.pod.clone()), (1009, Some("u1".into())));
    assert_eq!(outcomes[1].strays.len(), 1);
    assert_eq!(
        outcomes[1].uses[1][0].measured, 0,
        "the neighbour has nothing of it"
    );
}

#[test]
fn who_shares_the_last_slot_or_is_going_avoids_nothing() {
    let shared = || {
        look(
            [counters(&[(None, 40)]), counters(&[])],
            &[(1009, "u1", 40)],
        )
    };
    let going = || {
        let mut one = look([counters(&[]), counters(&[])], &[(1009, "u1", 40)]);
        one.on_cards[0].process.going = true;
        one
    };
    for outcomes in [
        thrice(shared, &rules(OnUnmanaged::Kill)),
        thrice(going, &rules(OnUnmanaged::Kill)),
    ] {
        assert!(outcomes.iter().all(|one| one.strays.is_empty()));
    }
}

#[test]
fn one_that_goes_was_told_as_the_hosts_where_the_kernel_says_no_place() {
    let told = |going: bool| {
        let one = || {
            let mut one = look([counters(&[]), counters(&[])], &[]);
            let mut process = process(1009, None, "");
            process.going = going;
            one.on_cards.push(on_card("GPU-a", process, 40));
            one
        };
        thrice(one, &rules(OnUnmanaged::Report))[2].strays.len()
    };
    assert_eq!((told(true), told(false)), (0, 1));
}

#[test]
fn a_spoiled_file_is_named_and_changes_no_other_figure() {
    let spoils: [fn() -> Unreadable; 3] = [
        || Unreadable::Kind,
        || Unreadable::Size(1 << 40),
        || Unreadable::Layout,
    ];
    for spoil in spoils {
        let one = || {
            let counters = [Err(spoil()), counters(&[(Some(2), 20)])];
            look(counters, &[(1001, "u1", 40), (1002, "u2", 20)])
        };
        let outcomes = thrice(one, &rules(OnUnmanaged::Report));
        let last = &outcomes[2];
        assert_eq!(last.spoiled.len(), 1);
        assert_eq!(last.uses[0][0].measured, 40, "by the driver");
        assert_eq!(last.charges, [[Some(40)], [Some(0)]]);
        assert_eq!(
            (last.uses[1][0].measured, last.uses[1][0].tracked),
            (20, 20)
        );
        let told: Vec<_> = last.strays.iter().map(|one| one.pod.clone()).collect();
        assert_eq!(told, [Some("u1".into())]);
    }
}

#[test]
fn a_file_that_went_with_its_container_is_no_fault() {
    let gone = || Unreadable::Step {
        step: "opened",
        source: std::io::ErrorKind::NotFound.into(),
    };
    let one = || look([Err(gone()), counters(&[])], &[(1001, "u1", 40)]);
    let outcomes = thrice(one, &rules(OnUnmanaged::Kill));
    assert!(
        outcomes
            .iter()
            .all(|one| one.spoiled.is_empty() && one.deeds.is_empty())
    );
}

#[test]
fn a_forged_pid_in_a_counters_file_never_gets_anyone_killed() {
    // u1 writes the ids of u2's processes into its file, with what would pass its limit.
    let forged = || {
        let counters = [
            counters(&[(Some(2), 10 * MIB), (Some(1002), 10 * MIB), (Some(1), 40)]),
            counters(&[(Some(2), 90)]),
        ];
        look(counters, &[(1001, "u1", 40), (1002, "u2", 90)])
    };
    let outcomes = thrice(forged, &rules(OnUnmanaged::Kill));
    assert!(
        outcomes.iter().all(|one| one.deeds.is_empty()),
        "{outcomes:?}"
    );
    // Above its limit by the driver, only its own process goes.
    let above = || {
        let mut one = forged();
        one.on_cards[0].bytes = 500;
        one
    };
    let outcomes = thrice(above, &rules(OnUnmanaged::Kill));
    let killed: Vec<_> = outcomes.iter().flat_map(|one| &one.deeds).collect();
    let [Deed::EndGrower(life, place, 0, 0, 500)] = &killed[..] else {
        panic!("{killed:?}")
    };
    assert_eq!((life.pid, place.pod.clone()), (1001, Some("u1".into())));
}

#[test]
fn a_card_that_cannot_be_read_changes_no_charge() {
    let one = || {
        look(
            [counters(&[(Some(1), 40)]), counters(&[])],
            &[(1001, "u1", 60)],
        )
    };
    let mut blind = one();
    blind.blind.insert("GPU-a".to_owned());
    blind.on_cards.clear();
    let outcomes = after(
        &[one(), one(), one(), blind, one()],
        &rules(OnUnmanaged::Kill),
    );
    let charges: Vec<_> = outcomes.iter().map(|one| one.charges[0][0]).collect();
    assert_eq!(charges, [Some(0), Some(0), Some(20), None, Some(20)]);
    let shown = |one: &Outcome| (one.uses[0][0].blind, one.lists[0].is_none());
    let blind: Vec<_> = outcomes.iter().map(shown).collect();
    let sees = (false, false);
    assert_eq!(
        blind,
        [sees, sees, sees, (true, true), sees],
        "figures of 0 were shown"
    );
}

#[test]
fn pods_are_spared_where_their_namespace_is() {
    let mut rules = rules(OnUnmanaged::Kill);
    rules.spared.insert("u9".into());
    let one = || look([counters(&[]), counters(&[])], &[(1009, "u9", 1)]);
    let outcomes = thrice(one, &rules);
    assert!(matches!(outcomes[1].deeds[..], [Deed::TellStray(..)]));
    let outcomes = thrice(one, &self::rules(OnUnmanaged::Evict));
    assert!(matches!(outcomes[1].deeds[..], [_, Deed::Evict(..)]));
}

#[test]
fn the_processes_of_a_pod_that_was_not_heard_of_were_ended() {
    let deeds = |heard: bool, pod: &str| {
        let one = || {
            let mut one = look([counters(&[]), counters(&[])], &[(1009, pod, 1)]);
            one.beside.pods.clear();
            if heard {
                one.beside.pods.insert(pod.into(), Said::default());
            }
            one
        };
        let outcomes = thrice(one, &rules(OnUnmanaged::Kill));
        let all = outcomes.into_iter().flat_map(|one| one.deeds);
        all.filter(|deed| matches!(deed, Deed::EndStray(..)))
            .count()
    };
    assert_eq!((deeds(false, "u9"), deeds(true, "u9")), (0, 1));
    // One with a share is ours, whatever the list says: it avoids the library.
    assert_eq!(deeds(false, "u1"), 1);
}

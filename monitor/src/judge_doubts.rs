//! Looks in which the host does not know all: nobody pays for that.

use aliquot_region::host::Unreadable;
use rustix::io::Errno;

use super::tests::{after, counters, look, rules, thrice};
use super::*;
use crate::attribute::Said;
use crate::settings::OnUnmanaged;

/// The container of u1 with an overhead of 20 for three looks, then three looks at what `change`
/// made of that.
fn then(change: impl Fn(&mut Look)) -> Vec<Outcome> {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        let mut look = look(counters, &[(1001, "u1", 60)]);
        look.charged = vec![vec![20], vec![0]];
        look
    };
    let mut looks = [one(), one(), one(), one(), one(), one()];
    looks[3..].iter_mut().for_each(change);
    after(&looks, &rules(OnUnmanaged::Kill))
}

fn charges(outcomes: &[Outcome]) -> Vec<Option<u64>> {
    outcomes.iter().map(|one| one.charges[0][0]).collect()
}

const KNOWN: [Option<u64>; 3] = [Some(20); 3];

#[test]
fn while_a_process_was_unknown_its_container_was_charged_nothing() {
    let away = then(|look| look.beside.containers.clear());
    assert_eq!(charges(&away), [KNOWN, [None; 3]].concat());
    let of =
        |outcome: &Outcome, at: usize| (outcome.uses[at][0].blind, outcome.uses[at][0].overhead);
    assert_eq!(of(&away[5], 0), (true, 20));
    assert_eq!(
        of(&away[5], 1),
        (false, 0),
        "the neighbour's process is not in doubt"
    );
    assert!(away.iter().all(|one| one.deeds.is_empty()));
}

#[test]
fn what_is_known_of_a_container_above_its_limit_ends_its_grower_beside_an_unknown_process() {
    let above = then(|look| {
        look.on_cards[0].bytes = 500;
        let new = crate::testing::process(1005, Some("u1"), "new");
        look.on_cards.push(crate::testing::on_card("GPU-a", new, 1));
    });
    let killed = above.iter().flat_map(|one| &one.deeds);
    let killed: Vec<_> = killed
        .filter(|deed| matches!(deed, Deed::EndGrower(..)))
        .collect();
    assert_eq!(killed.len(), 1, "{killed:?}");
}

#[test]
fn a_counters_file_that_the_host_could_not_read_made_honest_processes_loose_and_charged_twice() {
    let found = |error: Errno| {
        then(|look| {
            look.counters[0] = Some(Err(Unreadable::Step {
                step: "opened",
                source: error.into(),
            }));
        })
    };
    for error in [
        Errno::NFILE,
        Errno::MFILE,
        Errno::NOMEM,
        Errno::IO,
        Errno::NOLCK,
        Errno::NOENT,
    ] {
        let found = found(error);
        assert_eq!(charges(&found), [KNOWN, [None; 3]].concat(), "{error}");
        let clean = |one: &Outcome| one.deeds.is_empty() && one.spoiled.is_empty();
        assert!(found.iter().all(clean), "{error}");
    }
    for error in [Errno::LOOP, Errno::AGAIN] {
        let found = found(error);
        assert_eq!(charges(&found)[3], Some(60), "{error}");
        let mut deeds = found[4].deeds.iter();
        assert!(deeds.any(|deed| matches!(deed, Deed::EndStray(..))));
        assert_eq!(found[4].spoiled.len(), 1);
    }
}

#[test]
fn a_process_of_a_sandbox_in_no_container_was_unknown_for_ever_and_told_nowhere() {
    let told = |id: Option<&str>, known: bool, fresh: bool| {
        let rules = Rules {
            fresh,
            ..rules(OnUnmanaged::Kill)
        };
        let one = || {
            let mut look = look([counters(&[]), counters(&[])], &[(1009, "u1", 30)]);
            look.on_cards[0].process.place.container = id.map(str::to_owned);
            if known {
                look.beside.pods.insert("u1".into(), Said::default());
            }
            look
        };
        let looks: Vec<Look> = (0..30).map(|_| one()).collect();
        let outcomes = after(&looks, &rules);
        let deeds = outcomes.iter().enumerate();
        let deeds = deeds.flat_map(|(at, one)| one.deeds.iter().map(move |deed| (at + 1, deed)));
        let deeds: Vec<_> = deeds.collect();
        let first = deeds.first().map(|(at, deed)| {
            let Deed::TellStray(stray, 1009) = deed else {
                panic!("{deed:?}")
            };
            assert_eq!(stray.reason, Reason::NoContainer);
            *at
        });
        assert!(deeds.len() < 2, "told once and never ended: {deeds:?}");
        first
    };
    assert_eq!(told(None, true, true), Some(2), "in the cgroup of its pod");
    assert_eq!(told(Some("sandbox"), true, true), Some(21));
    assert_eq!(
        told(Some("sandbox"), true, false),
        None,
        "without the API server"
    );
    assert_eq!(told(None, false, true), None, "its pod is not known");
}

#[test]
fn a_share_that_is_lost_is_told_and_costs_nobody_its_life() {
    let one = || {
        let mut look = look([counters(&[]), counters(&[])], &[(1009, "u7", 30)]);
        let allocated = Said {
            allocated: true,
            ..Said::default()
        };
        look.beside.pods.insert("u7".into(), allocated);
        look
    };
    for policy in [OnUnmanaged::Kill, OnUnmanaged::Evict] {
        let deeds: Vec<Deed> = thrice(one, &rules(policy))
            .into_iter()
            .flat_map(|one| one.deeds)
            .collect();
        let [Deed::TellStray(stray, 1009)] = &deeds[..] else {
            panic!("{deeds:?}")
        };
        assert_eq!(stray.reason, Reason::LostShare);
    }
}

//! Samples with incomplete data: nobody is charged or killed for it.

use aliquot_region::host::CountersReadError;
use rustix::io::Errno;

use super::tests::{counters, evaluate_all, evaluate_thrice, rules, sample};
use super::*;
use crate::attribution::PodInfo;
use crate::settings::OnUnmanaged;

/// The container of u1 with an overhead of 20 for three samples, then three samples changed by
/// `change`.
fn then(change: impl Fn(&mut NodeSample)) -> Vec<Evaluation> {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        let mut sample = sample(counters, &[(1001, "u1", 60)]);
        sample.charged = vec![vec![20], vec![0]];
        sample
    };
    let mut samples = [one(), one(), one(), one(), one(), one()];
    samples[3..].iter_mut().for_each(change);
    evaluate_all(&samples, &rules(OnUnmanaged::Kill))
}

fn charges(evaluations: &[Evaluation]) -> Vec<Option<u64>> {
    evaluations.iter().map(|one| one.charges[0][0]).collect()
}

const KNOWN: [Option<u64>; 3] = [Some(20); 3];

#[test]
fn keeps_charge_while_a_process_is_unknown() {
    let away = then(|sample| sample.context.container_names.clear());
    assert_eq!(charges(&away), [KNOWN, [None; 3]].concat());
    let of = |evaluation: &Evaluation, at: usize| {
        (
            evaluation.uses[at][0].blind,
            evaluation.uses[at][0].overhead,
        )
    };
    assert_eq!(of(&away[5], 0), (true, 20));
    assert_eq!(
        of(&away[5], 1),
        (false, 0),
        "the neighbour's process is not in doubt"
    );
    assert!(away.iter().all(|one| one.actions.is_empty()));
}

#[test]
fn kills_grower_above_limit_beside_unknown_process() {
    let above = then(|sample| {
        sample.processes[0].bytes = 500;
        let new = crate::testing::process(1005, Some("u1"), "new");
        sample
            .processes
            .push(crate::testing::process_sample("GPU-a", new, 1));
    });
    let killed = above.iter().flat_map(|one| &one.actions);
    let killed: Vec<_> = killed
        .filter(|action| matches!(action, Action::KillOverLimit(..)))
        .collect();
    assert_eq!(killed.len(), 1, "{killed:?}");
}

#[test]
fn keeps_charge_when_host_cannot_read_counters() {
    let found = |error: Errno| {
        then(|sample| {
            sample.counters[0] = Some(Err(CountersReadError::Io {
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
        let clean = |one: &Evaluation| one.actions.is_empty() && one.corrupt_counters.is_empty();
        assert!(found.iter().all(clean), "{error}");
    }
    for error in [Errno::LOOP, Errno::AGAIN] {
        let found = found(error);
        assert_eq!(charges(&found)[3], Some(60), "{error}");
        let mut actions = found[4].actions.iter();
        assert!(actions.any(|action| matches!(action, Action::KillUnmanaged(..))));
        assert_eq!(found[4].corrupt_counters.len(), 1);
    }
}

#[test]
fn reports_process_in_no_container_after_a_while() {
    let reported = |id: Option<&str>, known: bool, fresh: bool| {
        let rules = Rules {
            fresh,
            ..rules(OnUnmanaged::Kill)
        };
        let one = || {
            let mut sample = sample([counters(&[]), counters(&[])], &[(1009, "u1", 30)]);
            sample.processes[0].process.location.container = id.map(str::to_owned);
            if known {
                sample.context.pods.insert("u1".into(), PodInfo::default());
            }
            sample
        };
        let samples: Vec<NodeSample> = (0..30).map(|_| one()).collect();
        let evaluations = evaluate_all(&samples, &rules);
        let actions = evaluations.iter().enumerate();
        let actions =
            actions.flat_map(|(at, one)| one.actions.iter().map(move |action| (at + 1, action)));
        let actions: Vec<_> = actions.collect();
        let first = actions.first().map(|(at, action)| {
            let Action::ReportUnmanaged(process, 1009) = action else {
                panic!("{action:?}")
            };
            assert_eq!(process.reason, UnmanagedReason::NoContainer);
            *at
        });
        assert!(
            actions.len() < 2,
            "reported once and never killed: {actions:?}"
        );
        first
    };
    assert_eq!(
        reported(None, true, true),
        Some(2),
        "in the cgroup of its pod"
    );
    assert_eq!(reported(Some("sandbox"), true, true), Some(21));
    assert_eq!(
        reported(Some("sandbox"), true, false),
        None,
        "without the API server"
    );
    assert_eq!(reported(None, false, true), None, "its pod is not known");
}

#[test]
fn only_reports_processes_of_lost_share() {
    let one = || {
        let mut sample = sample([counters(&[]), counters(&[])], &[(1009, "u7", 30)]);
        let allocated = PodInfo {
            allocated: true,
            ..PodInfo::default()
        };
        sample.context.pods.insert("u7".into(), allocated);
        sample
    };
    for policy in [OnUnmanaged::Kill, OnUnmanaged::Evict] {
        let actions: Vec<Action> = evaluate_thrice(one, &rules(policy))
            .into_iter()
            .flat_map(|one| one.actions)
            .collect();
        let [Action::ReportUnmanaged(process, 1009)] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(process.reason, UnmanagedReason::LostShare);
    }
}

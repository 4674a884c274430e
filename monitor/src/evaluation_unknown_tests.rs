//! Samples with incomplete data: nobody is charged or killed for it.

use aliquot_region::host::CountersReadError;
use rustix::io::Errno;

use super::tests::{FAR_ABOVE, RULES, counters, evaluate_all, evaluate_lasting, sample, uncounted};
use super::*;
use crate::testing;

const GIB: u64 = 1 << 30;

/// The container of u1 with an overhead of 20 for three samples, then three samples changed by
/// `change`.
fn then(change: impl Fn(&mut NodeSample)) -> Vec<Evaluation> {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        let mut sample = sample(counters, &[(1001, "u1", 60)]);
        sample.pages[0][0].overhead = 20;
        sample
    };
    let mut samples = [one(), one(), one(), one(), one(), one()];
    samples[3..].iter_mut().for_each(change);
    evaluate_all(&samples, &RULES)
}

fn charges(evaluations: &[Evaluation]) -> Vec<Option<u64>> {
    evaluations.iter().map(|one| one.charges[0][0]).collect()
}

const KNOWN: [Option<u64>; 3] = [Some(20); 3];

#[test]
fn keeps_charge_while_a_process_is_unknown() {
    let away = then(|sample| sample.context.container_names.clear());
    assert_eq!(charges(&away), [KNOWN, [None; 3]].concat());
    let of = |container: usize| {
        let found = away[5].uses[container][0];
        (found.blind, found.overhead)
    };
    assert_eq!(of(0), (true, 20));
    assert_eq!(of(1), (false, 0), "the neighbour's process is not in doubt");
    assert!(away.iter().all(|one| one.actions.is_empty()));
}

#[test]
fn kills_above_limit_beside_unknown_process_but_not_by_unread_counters() {
    let above = |counters, beside: bool| {
        let mut sample = sample([counters, self::counters(&[])], &[(1001, "u1", FAR_ABOVE)]);
        if beside {
            let new = testing::process(1005, Some("u1"), "new");
            sample
                .processes
                .push(testing::process_sample("GPU-a", new, 1));
        }
        sample
    };
    let unread = || {
        Err(CountersReadError::Io {
            step: "opened",
            source: Errno::MFILE.into(),
        })
    };
    let actions = |sample: &dyn Fn() -> NodeSample| {
        let all = evaluate_lasting(sample, &RULES);
        all.into_iter()
            .flat_map(|one| one.actions)
            .collect::<Vec<_>>()
    };
    let killed = actions(&|| above(counters(&[(Some(1), 40)]), true));
    let [Action::AboveLimit { kill, .. }] = &killed[..] else {
        panic!("{killed:?}")
    };
    assert!(kill.is_some());
    assert_eq!(actions(&|| above(unread(), false)), []);
}

#[test]
fn keeps_charge_when_host_cannot_read_counters() {
    use Errno as E;
    let found = |error: Errno| {
        then(|sample| {
            sample.counters[0] = Some(Err(CountersReadError::Io {
                step: "opened",
                source: error.into(),
            }));
        })
    };
    // The last is that of a file that was removed with its container.
    for error in [E::NFILE, E::MFILE, E::NOMEM, E::IO, E::NOLCK, E::NOENT] {
        let found = found(error);
        assert_eq!(charges(&found), [KNOWN, [None; 3]].concat(), "{error}");
        let clean = |one: &Evaluation| one.actions.is_empty() && one.corrupt_counters.is_empty();
        assert!(found.iter().all(clean), "{error}");
        assert!(
            found[5].uses[0][0].unread && !found[2].uses[0][0].unread,
            "{error}"
        );
    }
    for error in [Errno::LOOP, Errno::AGAIN] {
        let found = found(error);
        assert_eq!(charges(&found)[3], Some(60), "{error}");
        let mut actions = found[4].actions.iter();
        assert!(actions.any(|action| matches!(action, Action::ReportUnmanaged(..))));
        assert_eq!(found[4].corrupt_counters.len(), 1);
    }
}

#[test]
fn reports_process_in_no_container_after_a_while() {
    for (what, id, known, fresh, expected) in [
        ("in the cgroup of its pod", None, true, true, Some(2)),
        ("in a sandbox", Some("sandbox"), true, true, Some(21)),
        ("without the API server", Some("sandbox"), true, false, None),
        ("its pod is not known", None, false, true, None),
    ] {
        let rules = Rules { fresh, ..RULES };
        let one = || {
            let mut sample = uncounted("u1", 30);
            sample.processes[0].process.location.container = id.map(str::to_owned);
            if known {
                let pod = testing::pod("u1", &[]);
                sample.context.pods.insert("u1".into(), pod.into());
            }
            sample
        };
        let samples: Vec<NodeSample> = (0..30).map(|_| one()).collect();
        let mut reported = None;
        for (at, evaluation) in (1..).zip(evaluate_all(&samples, &rules)) {
            for action in evaluation.actions {
                let Action::ReportUnmanaged(process, 1009) = action else {
                    panic!("{what}: {action:?}")
                };
                assert_eq!(process.reason, UnmanagedReason::NoContainer);
                assert_eq!(reported.replace(at), None, "{what}: reported twice");
            }
        }
        assert_eq!(reported, expected, "{what}");
    }
}

#[test]
fn charges_nothing_on_bytes_that_are_not_available() {
    // The container of u1 with an overhead of 20 by its first process, and another one.
    let charge = |second: Option<u64>, counted: u64| {
        let one = || {
            let of_u1 = counters(&[(Some(1), 40), (Some(2), counted)]);
            let processes = [(1001, "u1", 60), (1002, "u1", 0)];
            let mut sample = sample([of_u1, counters(&[])], &processes);
            sample.processes[1].bytes = second;
            sample
        };
        let evaluations = evaluate_lasting(one, &RULES);
        assert!(evaluations.iter().all(|one| one.actions.is_empty()));
        let last = &evaluations[22];
        let processes = last.process_lists[0].clone().expect("all are known");
        assert_eq!(processes[1], (2, 0, second));
        (last.charges[0][0], last.uses[0][0].unavailable)
    };
    assert_eq!(charge(Some(30), 30), (Some(20), 0));
    assert_eq!(charge(None, 30), (Some(20), 1));
    assert_eq!(charge(None, 50), (Some(20), 1));
    // One that bypasses the limiter is reported, and neither charged nor killed for what it may use.
    let unknown = || {
        let mut sample = uncounted("u1", 0);
        sample.processes[0].bytes = None;
        sample
    };
    let evaluations = evaluate_lasting(unknown, &RULES);
    let last = &evaluations[22];
    assert_eq!(last.charges[0], [Some(0)]);
    assert_eq!(last.unmanaged[0].bytes, None);
    let mut actions = evaluations.iter().flat_map(|one| &one.actions);
    assert!(actions.all(|action| matches!(action, Action::ReportUnmanaged(..))));
}

#[test]
fn forged_managed_memory_hides_nobody() {
    // u1 has 8 GiB, of which 1 is counted; the limits are 3 GiB.
    let reported = |managed: u64, of_neighbour: u64| {
        let one = || {
            let slots = [(1, GIB, managed), (2, of_neighbour, of_neighbour)];
            let both = slots.map(|(pid, used, managed)| {
                let mut counters = counters(&[(Some(pid), used)]);
                if let Ok((before, after)) = &mut counters {
                    for report in [before, after] {
                        report.processes[0].devices[0].managed = managed;
                    }
                }
                counters
            });
            let mut sample = sample(both, &[(1001, "u1", 8 * GIB), (1002, "u2", 0)]);
            for pages in &mut sample.pages {
                pages[0].limit = 3 * GIB;
            }
            sample.in_use = [("GPU-a".to_owned(), 8 * GIB)].into();
            sample
        };
        let evaluations = evaluate_lasting(one, &RULES);
        let all = evaluations.iter().flat_map(|one| &one.actions);
        let of_first = all.filter(|one| matches!(one, Action::AboveLimit { at: 0, .. }));
        of_first.count()
    };
    assert_eq!(reported(0, 0), 1);
    assert_eq!(reported(1 << 40, 0), 1, "by itself");
    assert_eq!(reported(0, 1 << 40), 1, "by its neighbour");
}

#[test]
fn believes_shared_memory_only_as_driver_shows_it() {
    // Two processes of u1 say that they have the same 2 GiB; the limit is 3 GiB.
    let found = |in_use: u64, second: Option<u64>| {
        let one = || {
            let both = [(Some(1), 2 * GIB), (Some(2), 2 * GIB)];
            let mut of_u1 = counters(&both);
            if let Ok((before, after)) = &mut of_u1 {
                for report in [before, after] {
                    report.processes[1].devices[0].imported = 2 * GIB;
                    report.devices[0].overlap.duplicates = 2 * GIB;
                }
            }
            let processes = [(1001, "u1", 2 * GIB), (1002, "u1", 0)];
            let mut sample = sample([of_u1, counters(&[])], &processes);
            sample.processes[1].bytes = second;
            sample.pages[0][0].limit = 3 * GIB;
            sample.in_use = [("GPU-a".to_owned(), in_use)].into();
            sample
        };
        let evaluations = evaluate_lasting(one, &RULES);
        let reported = evaluations.iter().flat_map(|one| &one.actions);
        let reported = reported.filter(|one| matches!(one, Action::AboveLimit { .. }));
        let last = evaluations.last().expect("a sample");
        assert_eq!(last.uses[0][0].tracked, 2 * GIB);
        (last.charges[0].clone(), reported.count())
    };
    let honest = (vec![Some(0)], 0);
    assert_eq!(found(2 * GIB, Some(2 * GIB)), honest, "reported of both");
    assert_eq!(found(2 * GIB, Some(0)), honest, "reported of its creator");
    assert_eq!(found(2 * GIB, None), honest);
    // They have 4 GiB.
    assert_eq!(found(4 * GIB, Some(2 * GIB)), (vec![Some(0)], 1));
}

//! Evaluations of samples of every kind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aliquot_region::host::{CountersReadError, ProcessUsage};

use super::*;
use crate::managed_containers::ManagedContainers;
use crate::node_sample::{Counters, NodeContext};
use crate::pods::PodInfo;
use crate::settings::OnUnmanaged;
use crate::testing::{container, process, process_sample};

const MIB: u64 = 1 << 20;
/// More than any limit here, beyond what the OOM killer tolerates.
pub(super) const FAR_ABOVE: u64 = 1 << 30;

pub(super) fn rules(unmanaged: OnUnmanaged) -> Rules {
    Rules {
        unmanaged,
        exempt: BTreeSet::new(),
        tolerance: 10,
        fresh: true,
    }
}

/// A counters file with these process slots for one device.
fn report(slots: &[(Option<u32>, u64)]) -> CountersSnapshot {
    let process_usage = |(slot, (pid, used)): (usize, &(Option<u32>, u64))| ProcessUsage {
        slot,
        pid: *pid,
        used: vec![*used],
        contexts: vec![0],
        managed: vec![0],
        refused: vec![0],
    };
    let usages: Vec<ProcessUsage> = slots.iter().enumerate().map(process_usage).collect();
    let total = slots.iter().map(|(_, used)| used).sum();
    CountersSnapshot {
        processes: usages,
        totals: vec![total],
        peaks: vec![total],
        ..CountersSnapshot::default()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "other entries may be errors")]
pub(super) fn counters(slots: &[(Option<u32>, u64)]) -> Counters {
    Ok((report(slots), report(slots)))
}

/// One container of pod u1 and one of u2 on a GPU, each with a limit of 100.
pub(super) fn sample(counters: [Counters; 2], processes: &[(u32, &str, u64)]) -> NodeSample {
    let containers = vec![
        container("s0", "u1", "main", &["GPU-a"]),
        container("s1", "u2", "main", &["GPU-a"]),
    ];
    let on = processes
        .iter()
        .map(|(pid, pod, bytes)| process_sample("GPU-a", process(*pid, Some(pod), pod), *bytes));
    NodeSample {
        containers: Arc::new(ManagedContainers {
            all: containers,
            ..ManagedContainers::default()
        }),
        limits: vec![vec![100], vec![100]],
        counters: counters.into_iter().map(Some).collect(),
        processes: on.collect(),
        context: NodeContext {
            container_names: ["u1", "u2"]
                .map(|pod| ((pod.into(), pod.to_owned()), "main".to_owned()))
                .into(),
            pods: [("u9".into(), PodInfo::default())].into(),
            ..NodeContext::default()
        },
        ..NodeSample::default()
    }
}

pub(super) fn evaluate_all(samples: &[NodeSample], rules: &Rules) -> Vec<Evaluation> {
    let mut evaluator = Evaluator::default();
    samples
        .iter()
        .map(|sample| evaluator.evaluate(sample, rules))
        .collect()
}

/// The same sample twice a second for eleven seconds.
pub(super) fn evaluate_lasting(sample: impl Fn() -> NodeSample, rules: &Rules) -> Vec<Evaluation> {
    let samples = (0..=22).map(|number| NodeSample {
        taken_at: Duration::from_millis(500) * number,
        ..sample()
    });
    evaluate_all(&samples.collect::<Vec<_>>(), rules)
}

pub(super) fn evaluate_thrice(sample: impl Fn() -> NodeSample, rules: &Rules) -> Vec<Evaluation> {
    evaluate_all(&[sample(), sample(), sample()], rules)
}

#[test]
fn computes_use_of_each_container() {
    let both = || {
        let counters = [
            counters(&[(Some(1), 40)]),
            counters(&[(Some(2), 20), (Some(3), 10)]),
        ];
        sample(
            counters,
            &[(1001, "u1", 50), (1002, "u2", 22), (1003, "u2", 10)],
        )
    };
    let evaluations = evaluate_thrice(both, &rules(OnUnmanaged::Kill));
    let last = &evaluations[2];
    let figures = |at: usize| {
        let found = last.uses[at][0];
        let counted = (found.measured, found.tracked, found.overhead);
        (counted, found.processes, found.limit)
    };
    assert_eq!(figures(0), ((50, 40, 10), 1, 100));
    assert_eq!(figures(1), ((32, 30, 2), 2, 100));
    assert_eq!(last.charges, [[Some(10)], [Some(2)]]);
    let process_lists = [
        vec![(1, 0, Some(50))],
        vec![(2, 0, Some(22)), (3, 0, Some(10))],
    ];
    assert_eq!(last.process_lists, process_lists.map(Some));
    assert!(
        evaluations
            .iter()
            .all(|one| one.actions.is_empty() && one.unmanaged.is_empty())
    );
}

#[test]
fn charges_process_without_slot_and_reports_it_next_sample() {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        sample(counters, &[(1001, "u1", 40), (1009, "u1", 30)])
    };
    let evaluations = evaluate_thrice(one, &rules(OnUnmanaged::Kill));
    assert_eq!(evaluations[0].charges[0], [Some(30)]);
    assert_eq!(evaluations[0].actions, []);
    let [
        Action::ReportUnmanaged(reported, 1009),
        Action::KillUnmanaged(identity, location, _),
    ] = &evaluations[1].actions[..]
    else {
        panic!("{:?}", evaluations[1].actions)
    };
    assert_eq!(
        (reported.reason, reported.bytes),
        (UnmanagedReason::NoLimiter, Some(30))
    );
    assert_eq!(
        (identity.pid, location.pod.clone()),
        (1009, Some("u1".into()))
    );
    assert_eq!(evaluations[1].unmanaged.len(), 1);
    assert_eq!(
        evaluations[1].uses[1][0].measured, 0,
        "the neighbour has nothing of it"
    );
}

#[test]
fn accepts_shared_last_slot_and_exiting_process() {
    let shared = || {
        sample(
            [counters(&[(None, 40)]), counters(&[])],
            &[(1009, "u1", 40)],
        )
    };
    let exiting = || {
        let mut one = sample([counters(&[]), counters(&[])], &[(1009, "u1", 40)]);
        one.processes[0].process.exiting = true;
        one
    };
    for evaluations in [
        evaluate_thrice(shared, &rules(OnUnmanaged::Kill)),
        evaluate_thrice(exiting, &rules(OnUnmanaged::Kill)),
    ] {
        assert!(evaluations.iter().all(|one| one.unmanaged.is_empty()));
    }
}

#[test]
fn ignores_exiting_process_without_cgroup() {
    let reported = |exiting: bool| {
        let one = || {
            let mut one = sample([counters(&[]), counters(&[])], &[]);
            let mut process = process(1009, None, "");
            process.exiting = exiting;
            one.processes.push(process_sample("GPU-a", process, 40));
            one
        };
        evaluate_thrice(one, &rules(OnUnmanaged::Report))[2]
            .unmanaged
            .len()
    };
    assert_eq!((reported(true), reported(false)), (0, 1));
}

#[test]
fn names_corrupt_counters_without_affecting_others() {
    let corruptions: [fn() -> CountersReadError; 3] = [
        || CountersReadError::NotAFile,
        || CountersReadError::Size(1 << 40),
        || CountersReadError::Layout,
    ];
    for corrupt in corruptions {
        let one = || {
            let counters = [Err(corrupt()), counters(&[(Some(2), 20)])];
            sample(counters, &[(1001, "u1", 40), (1002, "u2", 20)])
        };
        let evaluations = evaluate_thrice(one, &rules(OnUnmanaged::Report));
        let last = &evaluations[2];
        assert_eq!(last.corrupt_counters.len(), 1);
        assert_eq!(last.uses[0][0].measured, 40, "by the driver");
        assert_eq!(last.charges, [[Some(40)], [Some(0)]]);
        assert_eq!(
            (last.uses[1][0].measured, last.uses[1][0].tracked),
            (20, 20)
        );
        let reported: Vec<_> = last.unmanaged.iter().map(|one| one.pod.clone()).collect();
        assert_eq!(reported, [Some("u1".into())]);
    }
}

#[test]
fn ignores_counters_file_removed_with_container() {
    let gone = || CountersReadError::Io {
        step: "opened",
        source: std::io::ErrorKind::NotFound.into(),
    };
    let one = || sample([Err(gone()), counters(&[])], &[(1001, "u1", 40)]);
    let evaluations = evaluate_thrice(one, &rules(OnUnmanaged::Kill));
    assert!(
        evaluations
            .iter()
            .all(|one| one.corrupt_counters.is_empty() && one.actions.is_empty())
    );
}

#[test]
fn kills_nobody_for_forged_pid_in_counters_file() {
    // u1 writes the ids of u2's processes into its file, with sizes above its limit.
    let forged = || {
        let counters = [
            counters(&[(Some(2), 10 * MIB), (Some(1002), 10 * MIB), (Some(1), 40)]),
            counters(&[(Some(2), 90)]),
        ];
        sample(counters, &[(1001, "u1", 40), (1002, "u2", 90)])
    };
    let evaluations = evaluate_thrice(forged, &rules(OnUnmanaged::Kill));
    assert!(
        evaluations.iter().all(|one| one.actions.is_empty()),
        "{evaluations:?}"
    );
    // Above its limit by the driver, only its own process is killed.
    let above = || {
        let mut one = forged();
        one.processes[0].bytes = Some(FAR_ABOVE);
        one
    };
    let evaluations = evaluate_lasting(above, &rules(OnUnmanaged::Kill));
    let killed: Vec<_> = evaluations.iter().flat_map(|one| &one.actions).collect();
    let [Action::KillOverLimit(identity, location, 0, 0, _)] = &killed[..] else {
        panic!("{killed:?}")
    };
    assert_eq!(
        (identity.pid, location.pod.clone()),
        (1001, Some("u1".into()))
    );
}

#[test]
fn keeps_charges_of_unreadable_gpu() {
    let one = || {
        sample(
            [counters(&[(Some(1), 40)]), counters(&[])],
            &[(1001, "u1", 60)],
        )
    };
    let mut blind = one();
    blind.blind.insert("GPU-a".to_owned());
    blind.processes.clear();
    let evaluations = evaluate_all(
        &[one(), one(), one(), blind, one()],
        &rules(OnUnmanaged::Kill),
    );
    let charges: Vec<_> = evaluations.iter().map(|one| one.charges[0][0]).collect();
    assert_eq!(charges, [Some(0), Some(0), Some(20), None, Some(20)]);
    let shown = |one: &Evaluation| (one.uses[0][0].blind, one.process_lists[0].is_none());
    let blind: Vec<_> = evaluations.iter().map(shown).collect();
    let sees = (false, false);
    assert_eq!(
        blind,
        [sees, sees, sees, (true, true), sees],
        "figures of 0 were shown"
    );
}

#[test]
fn only_reports_processes_in_exempt_namespaces() {
    let mut rules = rules(OnUnmanaged::Kill);
    rules.exempt.insert("u9".into());
    let one = || sample([counters(&[]), counters(&[])], &[(1009, "u9", 1)]);
    let evaluations = evaluate_thrice(one, &rules);
    assert!(matches!(
        evaluations[1].actions[..],
        [Action::ReportUnmanaged(..)]
    ));
    let evaluations = evaluate_thrice(one, &self::rules(OnUnmanaged::Evict));
    assert!(matches!(evaluations[1].actions[..], [_, Action::Evict(..)]));
}

#[test]
fn kills_no_process_of_unknown_pod() {
    let actions = |known: bool, pod: &str| {
        let one = || {
            let mut one = sample([counters(&[]), counters(&[])], &[(1009, pod, 1)]);
            one.context.pods.clear();
            if known {
                one.context.pods.insert(pod.into(), PodInfo::default());
            }
            one
        };
        let evaluations = evaluate_thrice(one, &rules(OnUnmanaged::Kill));
        let all = evaluations.into_iter().flat_map(|one| one.actions);
        all.filter(|action| matches!(action, Action::KillUnmanaged(..)))
            .count()
    };
    assert_eq!((actions(false, "u9"), actions(true, "u9")), (0, 1));
    // A process of a container with a share is killed even if its pod is unknown: it bypasses the limiter.
    assert_eq!(actions(false, "u1"), 1);
}

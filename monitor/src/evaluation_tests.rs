//! Evaluations of samples of every kind.

use std::time::Duration;

use aliquot_region::host::{CountersReadError, DeviceCounters, ProcessUsage, SlotUsage};

use super::*;
use crate::node_sample::{Counters, NodeContext};
use crate::testing::{container, node_sample, page, pod, process, process_sample};

const MIB: u64 = 1 << 20;
/// More than any limit here, beyond what the OOM killer tolerates.
pub(super) const FAR_ABOVE: u64 = 1 << 30;

pub(super) const RULES: Rules = Rules {
    tolerance: 10,
    fresh: true,
};

/// A counters file with these process slots for one device.
fn report(slots: &[(Option<u32>, u64)]) -> CountersSnapshot {
    let total = slots.iter().map(|(_, used)| used).sum();
    let mut report = CountersSnapshot {
        devices: vec![DeviceCounters {
            total,
            peak: total,
            ..DeviceCounters::default()
        }],
        ..CountersSnapshot::default()
    };
    for (slot, &(pid, used)) in slots.iter().enumerate() {
        report.processes.push(ProcessUsage {
            slot,
            pid,
            devices: vec![SlotUsage {
                used,
                ..SlotUsage::default()
            }],
        });
    }
    report
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
        pages: vec![vec![page(100)]; 2],
        counters: counters.into_iter().map(Some).collect(),
        processes: on.collect(),
        context: NodeContext {
            container_names: ["u1", "u2"]
                .map(|pod| ((pod.into(), pod.to_owned()), "main".to_owned()))
                .into(),
            pods: [("u9".into(), pod("u9", &[]).into())].into(),
            ..NodeContext::default()
        },
        ..node_sample(containers)
    }
}

pub(super) fn evaluate_all(samples: &[NodeSample], rules: &Rules) -> Vec<Evaluation> {
    let mut evaluator = Evaluator::default();
    let each = samples.iter();
    each.map(|one| evaluator.evaluate(one, rules)).collect()
}

/// The same sample twice a second for eleven seconds.
pub(super) fn evaluate_lasting(sample: impl Fn() -> NodeSample, rules: &Rules) -> Vec<Evaluation> {
    let samples = (0..=22).map(|number| NodeSample {
        taken_at: Duration::from_millis(500) * number,
        ..sample()
    });
    evaluate_all(&samples.collect::<Vec<_>>(), rules)
}

/// A process of this pod that no slot counts.
pub(super) fn uncounted(pod: &str, bytes: u64) -> NodeSample {
    sample([counters(&[]), counters(&[])], &[(1009, pod, bytes)])
}

fn evaluate_thrice(sample: impl Fn() -> NodeSample, rules: &Rules) -> Vec<Evaluation> {
    evaluate_all(&[sample(), sample(), sample()], rules)
}

#[test]
fn computes_use_of_each_container() {
    let both = || {
        let of_u2 = counters(&[(Some(2), 20), (Some(3), 10)]);
        let processes = [(1001, "u1", 50), (1002, "u2", 22), (1003, "u2", 10)];
        sample([counters(&[(Some(1), 40)]), of_u2], &processes)
    };
    let evaluations = evaluate_thrice(both, &RULES);
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
    let clean = |one: &Evaluation| one.actions.is_empty() && one.unmanaged.is_empty();
    assert!(evaluations.iter().all(clean));
}

#[test]
fn charges_process_without_slot_and_reports_it_next_sample() {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        sample(counters, &[(1001, "u1", 40), (1009, "u1", 30)])
    };
    let evaluations = evaluate_thrice(one, &RULES);
    let (first, second) = (&evaluations[0], &evaluations[1]);
    assert_eq!(first.charges[0], [Some(30)]);
    assert_eq!(first.actions, []);
    let expected = [UnmanagedProcess {
        gpu: "GPU-a".to_owned(),
        pod: Some("u1".into()),
        reason: UnmanagedReason::NoLimiter,
        bytes: Some(30),
    }];
    let reported = Action::ReportUnmanaged(expected[0].clone(), 1009);
    assert_eq!(second.actions, [reported]);
    assert_eq!(evaluations[2].actions, [], "reported once");
    assert!(first.unmanaged.is_empty());
    for later in &evaluations[1..] {
        assert_eq!(later.unmanaged, expected);
    }
    assert_eq!(
        second.uses[1][0].measured, 0,
        "the neighbour has nothing of it"
    );
}

#[test]
fn reports_process_once_though_gpu_was_briefly_unreadable() {
    let one = || uncounted("u1", 30);
    let mut blind = one();
    blind.blind.insert("GPU-a".to_owned());
    blind.processes.clear();
    let evaluations = evaluate_all(&[one(), one(), blind, one(), one()], &RULES);
    let reports: Vec<usize> = evaluations.iter().map(|one| one.actions.len()).collect();
    assert_eq!(reports, [0, 1, 0, 0, 0]);
}

#[test]
fn counts_as_held_outside_what_is_part_of_no_share() {
    use UnmanagedReason::{Host, LostShare, NoContainer, NoLimiter, NoShare};
    let process = |reason| UnmanagedProcess {
        gpu: "GPU-a".to_owned(),
        pod: None,
        reason,
        bytes: Some(30),
    };
    let all = [Host, LostShare, NoContainer, NoLimiter, NoShare];
    let evaluation = Evaluation {
        unmanaged: all.map(process).into(),
        ..Evaluation::default()
    };
    let held = BTreeMap::from([("GPU-a", 60)]);
    assert_eq!(evaluation.unmanaged_memory(), held);
}

#[test]
fn accepts_exiting_process() {
    let exiting = |pod: Option<&str>, exiting: bool| {
        let mut one = uncounted("u1", 40);
        one.processes[0].process = process(1009, pod, "u1");
        one.processes[0].process.exiting = exiting;
        one
    };
    let reported = |sample: &dyn Fn() -> NodeSample| {
        let evaluations = evaluate_thrice(sample, &RULES);
        evaluations[2].unmanaged.len()
    };
    assert_eq!(reported(&|| exiting(Some("u1"), true)), 0);
    // It has no cgroup any more.
    assert_eq!(reported(&|| exiting(None, true)), 0);
    assert_eq!(reported(&|| exiting(None, false)), 1);
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
        let evaluations = evaluate_thrice(one, &RULES);
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
fn kills_nobody_for_forged_pid_in_counters_file() {
    // u1 writes the ids of u2's processes into its file, with sizes above its limit.
    let forged = || {
        let counters = [
            counters(&[(Some(2), 10 * MIB), (Some(1002), 10 * MIB), (Some(1), 40)]),
            counters(&[(Some(2), 90)]),
        ];
        sample(counters, &[(1001, "u1", 40), (1002, "u2", 90)])
    };
    let evaluations = evaluate_thrice(forged, &RULES);
    assert!(evaluations.iter().all(|one| one.actions.is_empty()));
    // Above its limit by the driver, only its own process is killed.
    let above = || {
        let mut one = forged();
        one.processes[0].bytes = Some(FAR_ABOVE);
        one
    };
    let evaluations = evaluate_lasting(above, &RULES);
    let killed: Vec<_> = evaluations.iter().flat_map(|one| &one.actions).collect();
    let [Action::AboveLimit { at: 0, kill, .. }] = &killed[..] else {
        panic!("{killed:?}")
    };
    assert_eq!(kill.as_ref(), Some(&above().processes[0].process));
}

#[test]
fn keeps_charges_of_unreadable_gpu() {
    let one = || {
        let counters = [counters(&[(Some(1), 40)]), counters(&[])];
        sample(counters, &[(1001, "u1", 60)])
    };
    let mut blind = one();
    blind.blind.insert("GPU-a".to_owned());
    blind.processes.clear();
    let samples = [one(), one(), one(), blind, one()];
    let evaluations = evaluate_all(&samples, &RULES);
    let charges: Vec<_> = evaluations.iter().map(|one| one.charges[0][0]).collect();
    assert_eq!(charges, [Some(0), Some(0), Some(20), None, Some(20)]);
    let shown = |one: &Evaluation| (one.uses[0][0].blind, one.process_lists[0].is_none());
    let blind: Vec<_> = evaluations.iter().map(shown).collect();
    let sees = (false, false);
    let expected = [sees, sees, sees, (true, true), sees];
    assert_eq!(blind, expected, "figures of 0 were shown");
}

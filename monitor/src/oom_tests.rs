//! Verdicts of the OOM killer about honest and dishonest processes, sampled twice a second.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const RULE: OomRule = OomRule {
    limit: 4096 * MIB,
    tolerance: 512 * MIB,
    imported: 0,
    kill: true,
};
/// Samples until an excess has lasted for ten seconds.
const LASTING: u64 = 21;

fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity {
        pid,
        start: u64::from(pid),
    }
}

/// A process without the limiter, in MiB.
fn bypassing(pid: u32, mib: u64) -> ProcessMemory {
    ProcessMemory {
        identity: identity(pid),
        bytes: Some(mib * MIB),
        counted: None,
        exiting: false,
    }
}

/// A process of which the limiter counts so many MiB.
fn counted(pid: u32, mib: u64, counted: u64) -> ProcessMemory {
    let counted = SlotUsage {
        used: counted * MIB,
        ..SlotUsage::default()
    };
    ProcessMemory {
        counted: Some(counted),
        ..bypassing(pid, mib)
    }
}

/// The same with refusals of the limiter.
fn refused(refused: u32, process: ProcessMemory) -> ProcessMemory {
    let counted = process
        .counted
        .map(|counted| SlotUsage { refused, ..counted });
    ProcessMemory { counted, ..process }
}

/// The same with MiB of managed memory in the count.
fn managed(mib: u64, process: ProcessMemory) -> ProcessMemory {
    let counted = process.counted.map(|counted| SlotUsage {
        managed: mib * MIB,
        ..counted
    });
    ProcessMemory { counted, ..process }
}

fn unknown(process: ProcessMemory) -> ProcessMemory {
    ProcessMemory {
        bytes: None,
        ..process
    }
}

/// The verdicts about 60 samples, each with the number of its sample, from 1.
fn verdicts(
    rule: OomRule,
    processes: impl Fn(u64) -> Vec<ProcessMemory>,
) -> Vec<(u64, OomVerdict)> {
    let mut watch = OomWatch::default();
    let samples = (1..=60_u32).map(|sample| {
        let now = Duration::from_millis(500) * sample;
        let sample = u64::from(sample);
        (sample, watch.update(&processes(sample), rule, now))
    });
    samples
        .filter_map(|(sample, verdict)| Some((sample, verdict?)))
        .collect()
}

/// The processes that are killed, and in which sample.
fn killed(processes: impl Fn(u64) -> Vec<ProcessMemory>) -> Vec<(u64, u32)> {
    let found = verdicts(RULE, processes).into_iter();
    let killed = found.map(|(sample, verdict)| (sample, verdict.kill.expect("a process").pid));
    killed.collect()
}

fn first_killed(processes: impl Fn(u64) -> Vec<ProcessMemory>) -> Option<(u64, u32)> {
    killed(processes).first().copied()
}

#[test]
fn kills_process_that_grew_after_refusal() {
    let grows = |refusals: u32, mib: u64| {
        first_killed(move |sample| {
            let more = if sample > 5 { mib } else { 0 };
            vec![refused(refusals, counted(1, 4000 + more, 4000))]
        })
    };
    assert_eq!(grows(1, 700), Some((7, 1)), "in the second sample");
    assert_eq!(grows(0, 700), None, "it was never refused memory");
    assert_eq!(grows(1, 500), None, "the driver may need so much itself");
    assert_eq!(grows(1, 600), None, "it is within the limit");
    // What it has beyond the count since before the refusal is judged by its size only.
    let large = |sample: u64| {
        let refusals = u32::from(sample > 5);
        vec![refused(refusals, counted(1, 4700, 4000))]
    };
    assert_eq!(first_killed(large), None);
    // Refused again in every sample, and larger each time.
    let again = |sample: u64| {
        let refusals = u32::try_from(sample).expect("small");
        vec![refused(refusals, counted(1, 4100 + 200 * sample, 4000))]
    };
    assert!(first_killed(again).is_some_and(|(sample, _)| sample < 10));
}

#[test]
fn kills_for_large_excess_that_lasts_ten_seconds() {
    let alone = |mib: u64| first_killed(move |_| vec![bypassing(1, mib)]);
    assert_eq!(alone(4096 + 512), None, "as far as the chart tolerates");
    assert_eq!(alone(4096 + 513), Some((LASTING, 1)));
    let tenth = OomRule {
        limit: 40_960 * MIB,
        ..RULE
    };
    let verdict = |mib: u64| verdicts(tenth, move |_| vec![bypassing(1, mib)]).len();
    assert_eq!((verdict(45_056), verdict(45_057) > 0), (0, true));
    // It begins anew after each sample that is not far above the limit.
    let now_and_then = |sample: u64| {
        let is_less = sample.is_multiple_of(20);
        vec![bypassing(1, if is_less { 4500 } else { 9000 })]
    };
    assert_eq!(first_killed(now_and_then), None);
    let unlimited = OomRule { limit: 0, ..RULE };
    assert_eq!(verdicts(unlimited, |_| vec![bypassing(1, 9000)]), []);
}

#[test]
fn kills_uncounted_process_that_grew_last() {
    let grown = |sample: u64, before: u64, after: u64| if sample > 1 { after } else { before };
    let honest = |sample| {
        let size = grown(sample, 500, 3500);
        counted(1, size, size)
    };
    let check = |what: &str, kills: (u64, u32), processes: &dyn Fn(u64) -> [ProcessMemory; 2]| {
        let found = first_killed(|sample| processes(sample).to_vec());
        assert_eq!(found, Some(kills), "{what}");
    };
    check("not the honest one, which is larger", (LASTING, 2), &|_| {
        [counted(1, 3500, 3500), bypassing(2, 2048)]
    });
    check(
        "nor the honest one that grew last",
        (LASTING + 1, 2),
        &|sample| [honest(sample), bypassing(2, 2048)],
    );
    check("the one that grew", (LASTING, 1), &|sample| {
        [bypassing(1, grown(sample, 3000, 5000)), bypassing(2, 2000)]
    });
    check("of equals the youngest", (LASTING, 2), &|_| {
        [bypassing(1, 3000), bypassing(2, 3000)]
    });
    check("with a forged limit", (LASTING, 2), &|_| {
        [counted(1, 1000, 1000), counted(2, 9000, 9000)]
    });
}

#[test]
fn small_processes_that_grow_last_save_large_one_only_once() {
    let found = killed(|sample| {
        // It grows after the large one, and there is another one when it was killed.
        let number = u32::try_from(sample / (LASTING + 1)).expect("small");
        let small = (sample > 1).then(|| bypassing(10 + number, 10));
        let large = (sample <= 2 * LASTING).then(|| bypassing(1, 6000));
        small.into_iter().chain(large).collect()
    });
    assert_eq!(found, [(LASTING, 10), (2 * LASTING, 1)]);
}

#[test]
fn kills_with_each_sample_while_processes_are_replaced() {
    let mut watch = OomWatch::default();
    let mut pids: Vec<u32> = (1..=30).collect();
    let mut kills = Vec::new();
    for sample in 1..=60_u32 {
        let processes: Vec<_> = pids.iter().map(|pid| bypassing(*pid, 500)).collect();
        let now = Duration::from_millis(500) * sample;
        if let Some(verdict) = watch.update(&processes, RULE, now) {
            let victim = verdict.kill.expect("a process").pid;
            kills.push(u64::from(sample));
            pids.retain(|pid| *pid != victim);
            pids.push(100 + sample);
        }
    }
    let expected: Vec<u64> = [LASTING].into_iter().chain(2 * LASTING..=60).collect();
    assert_eq!(kills, expected);
}

#[test]
fn limits_tolerance_by_size_of_each_process() {
    let small = |number: u32, mib: u64| {
        first_killed(move |_| {
            let small = (2..2 + number).map(|pid| counted(pid, 320 + mib, 320));
            small.chain([counted(1, 1500, 1500)]).collect()
        })
    };
    assert_eq!(small(8, 400), None, "each may have so much of its own");
    assert_eq!(small(8, 512 + 200), Some((LASTING, 9)));
    let forged = |_| (1..=20).map(|pid| counted(pid, 500, 0)).collect();
    assert_eq!(first_killed(forged), Some((LASTING, 20)), "all together");
    // No tolerance for those that bypass the limiter.
    let found = first_killed(|_| (1..=12).map(|pid| bypassing(pid, 400)).collect());
    assert_eq!(found, Some((LASTING, 12)));
}

#[test]
fn counts_managed_memory_that_driver_leaves_out() {
    let honest = |_| vec![managed(3500, counted(1, 700, 4000))];
    assert_eq!(first_killed(honest), None);
    let full = |_| vec![managed(3500, counted(1, 4300, 4000))];
    assert_eq!(first_killed(full), None, "where the driver has it in");
    let besides = |_| vec![managed(3500, counted(1, 700, 4000)), bypassing(2, 2048)];
    assert_eq!(first_killed(besides), Some((LASTING, 2)));
}

#[test]
fn tolerates_imported_memory_that_is_reported_twice() {
    let rule = OomRule {
        imported: 2000 * MIB,
        ..RULE
    };
    let found = |mib: u64| {
        verdicts(rule, move |_| {
            vec![counted(1, 3000, 3000), counted(2, 1000 + mib, 1000)]
        })
    };
    assert_eq!(found(2000), []);
    assert_eq!(found(2000 + 512 + 608), []);
    assert_eq!(found(2000 + 512 + 609)[0].0, LASTING);
}

#[test]
fn reports_each_excess_and_reminds_of_it_without_oom_killer() {
    let rule = OomRule {
        kill: false,
        ..RULE
    };
    let found = verdicts(rule, |sample| {
        let mib = if sample == 25 { 1000 } else { 6000 };
        vec![bypassing(1, mib)]
    });
    let report = OomVerdict {
        used: 6000 * MIB,
        kill: None,
    };
    assert_eq!(found, [(LASTING, report), (25 + LASTING, report)]);
    let mut watch = OomWatch::default();
    let reports = (1..=1300_u32).filter(|sample| {
        let now = Duration::from_millis(500) * *sample;
        watch.update(&[bypassing(1, 6000)], rule, now) == Some(report)
    });
    assert_eq!(reports.collect::<Vec<_>>(), [21, 621, 1221]);
}

#[test]
fn kills_no_other_process_while_first_releases_memory() {
    // The second grows while the first, which was killed, still exists.
    let found = killed(|sample| {
        let grown = sample.saturating_sub(LASTING);
        vec![bypassing(1, 6000), bypassing(2, 10 + grown)]
    });
    let again = LASTING + KILL_RETRY;
    assert_eq!(found[..2], [(LASTING, 1), (again, 1)]);
    assert!(found.iter().all(|(_, pid)| *pid == 1), "{found:?}");
    // The first ends.
    let found = killed(|sample| {
        let both = [bypassing(1, 6000), bypassing(2, 6000)];
        both.into_iter()
            .filter(|one| one.identity.pid == 1 || sample <= LASTING)
            .collect()
    });
    assert_eq!(found[..2], [(LASTING, 2), (2 * LASTING, 1)]);
}

/// An honest process: what the limiter counts, of that managed memory, what the driver needs beyond,
/// whether the driver leaves managed memory out, refusals, whether its size is known; in MiB.
type Honest = (u64, u64, u64, bool, u32, bool);

fn honest(
    pid: u32,
    (count, of_managed, beyond, without, refusals, is_known): Honest,
) -> ProcessMemory {
    let of_managed = of_managed.min(count);
    let left_out = if without { of_managed } else { 0 };
    let process = counted(pid, count + beyond - left_out, count);
    let process = refused(refusals, managed(of_managed, process));
    if is_known { process } else { unknown(process) }
}

fn any_honest() -> impl Strategy<Value = Honest> {
    (
        0_u64..=1024,
        0_u64..=1024,
        0_u64..=512,
        any::<bool>(),
        0_u32..5,
        any::<bool>(),
    )
}

proptest! {
    /// Whatever honest processes do within their limit, and however the driver reports it.
    #[test]
    fn never_kills_honest_processes(
        samples in proptest::collection::vec(
            proptest::collection::vec(any_honest(), 1..=4),
            1..60,
        )
    ) {
        let mut watch = OomWatch::default();
        for (sample, processes) in (1_u32..).zip(&samples) {
            let processes: Vec<ProcessMemory> =
                (1_u32..).zip(processes).map(|(pid, one)| honest(pid, *one)).collect();
            let verdict = watch.update(&processes, RULE, Duration::from_secs(1) * sample);
            prop_assert_eq!(verdict, None);
        }
    }

    /// A program without the limiter that takes 2 GiB more than the limit, beside honest ones.
    #[test]
    fn kills_bypassing_process_within_twelve_seconds(
        all in proptest::collection::vec(any_honest(), 0..=4)
    ) {
        let mut watch = OomWatch::default();
        let mut processes: Vec<ProcessMemory> =
            (1_u32..).zip(&all).map(|(pid, one)| honest(pid, *one)).collect();
        processes.push(bypassing(9, 4096 + 2048));
        let killed = (1_u32..=24).find_map(|sample| {
            let verdict = watch.update(&processes, RULE, Duration::from_millis(500) * sample)?;
            verdict.kill.map(|identity| identity.pid)
        });
        prop_assert_eq!(killed, Some(9));
    }
}

//! What is learnt about kernels from samples, pure and mixed with time of others.

use super::*;

fn alone(took: u64) -> LaunchSample {
    LaunchSample {
        took,
        sharing: Sharing::ALONE,
        overlapped: false,
        disturbed: false,
        delayed: 0,
    }
}

/// Beside so many other processes.
fn beside(others: u32, took: u64) -> LaunchSample {
    LaunchSample {
        sharing: Sharing::new([running(1, 1, others); 2]),
        ..alone(took)
    }
}

fn running(own: u32, streams: u64, others: u32) -> Running {
    Running {
        own,
        streams,
        others: others * ONE_PROCESS,
        ..Running::default()
    }
}

#[test]
fn limits_unmeasured_launches_of_unknown_kernel() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    let state = || (kernel.cost(), kernel.is_at_unmeasured_limit());
    assert_eq!(state(), (UNKNOWN_COST, false));
    kernel.begin_measurement();
    kernel.begin_measurement();
    assert!(kernel.is_at_unmeasured_limit());
    kernel.end_measurement();
    assert_eq!(kernel.learn(alone(5_000)), Some(5_000));
    assert_eq!(state(), (5_000, false));
}

#[test]
fn remembers_kernels_that_share_full_set() {
    let costs = Costs::default();
    // Eight keys of one set, launched in turn.
    let keys = (0..8).map(|i| (7 << 40) | (2 * i + 1));
    let keys: Vec<u64> = keys.collect();
    for round in 0..10 {
        for key in &keys {
            let kernel = costs.kernel(*key);
            assert!(round < 3 || kernel.is_known(), "{round} {key}");
            kernel.learn(alone(1000));
        }
    }
    // Newer kernels replace those of yesterday.
    let today: Vec<u64> = (0..4).map(|i| (7 << 40) | (2 * i + 101)).collect();
    for round in 0..400 {
        for key in &today {
            let kernel = costs.kernel(*key);
            assert!(round < 300 || kernel.cost() == key % 1000, "{round} {key}");
            kernel.learn(alone(key % 1000));
        }
    }
}

#[test]
fn divides_time_by_processes_and_own_streams() {
    const MS: u64 = 1_000_000;
    let check = |running: [Running; 2], took: u64, expected: u64| {
        let costs = Costs::default();
        let sample = LaunchSample {
            sharing: Sharing::new(running),
            ..alone(took * MS)
        };
        let kernel = costs.kernel(key([1, 2, 3]));
        // Known not to be small.
        kernel.learn(alone(expected * MS));
        assert_eq!(kernel.learn(sample), Some(expected * MS), "{running:?}");
    };
    check([running(1, 1, 0); 2], 12, 12);
    check([running(1, 1, 3); 2], 12, 3);
    check([running(4, 1, 0); 2], 12, 3);
    check([running(1, 2, 1); 2], 12, 3);
    check([running(1, 1, 0), running(3, 1, 0)], 12, 6);
    // Others came after a quarter of a long launch.
    let began = Running {
        written: 1000 * MS,
        ..running(1, 1, 0)
    };
    let ended = Running {
        written: 1380 * MS,
        // One that works takes half.
        others_time: 190 * MS,
        ..running(1, 1, 1)
    };
    check([began, ended], 400, 200);
    // The second of four processes of the container that began at once.
    let first = Costs::default().kernel(key([1, 2, 3])).learn(LaunchSample {
        sharing: Sharing::new([running(1, 0, 0), running(3, 1, 0)]),
        ..alone(200 * MS)
    });
    assert_eq!(first, Some(50 * MS));
    // Forged: no more than a device serves.
    let forged = Running {
        others_time: u64::MAX,
        ..running(1, 1, 0)
    };
    check([running(1, 1, 0), forged], 650, 10);
}

#[test]
fn long_launches_of_mixed_kernel_are_charged_their_own_time() {
    for others in [0, 1, 3] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        // Every other launch takes a microsecond, in a time slice of its own, or 200 ms.
        for i in 0..500_u64 {
            let (own, processes) = [(1_000, 1), (200_000_000, u64::from(others + 1))]
                [usize::from(i.is_multiple_of(2))];
            let charged = kernel.learn(beside(others, own * processes));
            assert_eq!(charged, Some(own), "{i}");
        }
    }
}

#[test]
fn leaves_out_time_slices_of_others() {
    for others in [1, 9] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        // Every third one is interrupted.
        for i in 0..400_u64 {
            let turn = u64::from(i % 3 == 2) * u64::from(others) * 2_200_000;
            kernel.learn(beside(others, 700_000 + turn));
        }
        assert!((700_000..720_000).contains(&kernel.cost()), "{kernel:?}");
    }
}

#[test]
fn leaves_out_time_of_other_threads() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    let overlapped = |took| LaunchSample {
        overlapped: true,
        ..alone(took)
    };
    for i in 0..400 {
        kernel.learn(overlapped(200_000 * (1 + i % 4)));
    }
    assert!((200_000..220_000).contains(&kernel.cost()), "{kernel:?}");
    // It became longer.
    for _ in 0..1_500 {
        kernel.learn(overlapped(900_000));
    }
    assert!(kernel.cost() > 800_000, "{kernel:?}");
}

#[test]
fn learns_only_upper_bound_from_disturbed_launch() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    let late = |took| LaunchSample {
        disturbed: true,
        ..alone(took)
    };
    assert_eq!(kernel.learn(late(9_000)), None);
    assert!(!kernel.is_known());
    kernel.learn(alone(1_000));
    assert_eq!(kernel.learn(late(9_000)), None);
    assert_eq!(kernel.learn(late(900)), Some(950), "the mean");
    let taken = (0..60).filter_map(|_| kernel.learn(late(2_000))).count();
    assert!(
        (1..=3).contains(&taken),
        "where nothing better comes: {taken}"
    );
}

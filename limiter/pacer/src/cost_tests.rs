//! What is learnt about kernels from samples, pure and mixed with time of others.

use proptest::prelude::*;

use super::*;

fn alone(took: u64) -> LaunchSample {
    LaunchSample {
        took,
        sharing: 1,
        exclusive: false,
        overlapped: false,
        disturbed: false,
        delayed: 0,
    }
}

fn exclusive(took: u64) -> LaunchSample {
    LaunchSample {
        exclusive: true,
        ..alone(took)
    }
}

fn overlapped(took: u64) -> LaunchSample {
    LaunchSample {
        overlapped: true,
        ..alone(took)
    }
}

fn beside(sharing: u32, took: u64) -> LaunchSample {
    LaunchSample {
        sharing,
        ..alone(took)
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
fn follows_measured_durations() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    for took in [90, 110, 90, 110, 90, 110, 90, 110] {
        kernel.learn(alone(took * 1000));
    }
    assert!((98_000..102_000).contains(&kernel.cost()), "{kernel:?}");
    for _ in 0..100 {
        kernel.learn(alone(300_000));
    }
    assert!((295_000..=300_000).contains(&kernel.cost()), "{kernel:?}");
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
fn excludes_time_of_other_tenants_from_cost() {
    for sample in [|took| beside(3, took), overlapped] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        for i in 0..400 {
            // Every other launch waits for slices of 2 ms of others.
            kernel.learn(sample(1_000_000 + i % 2 * (i % 5) * 2_000_000));
        }
        let cost = kernel.cost();
        assert!((1_000_000..1_080_000).contains(&cost), "{kernel:?}");
    }
}

#[test]
fn undisturbed_launches_decide_cost_beside_others() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    // In step with another tenant, every launch takes 44 ms.
    for _ in 0..100 {
        kernel.learn(beside(2, 44_000_000));
    }
    assert!(kernel.cost() > 30_000_000, "{kernel:?}");
    assert_eq!(kernel.learn(exclusive(20_000_000)), Some(20_000_000));
    for _ in 0..100 {
        assert_eq!(kernel.learn(beside(2, 44_000_000)), Some(20_000_000));
    }
    assert_eq!(kernel.cost(), 20_000_000);
    // One that took longer than time slices explain.
    let long = kernel.learn(beside(2, 200_000_000));
    assert!(long > Some(80_000_000), "{long:?}");
}

#[test]
fn exclusive_launch_replaces_one_that_seemed_alone() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    kernel.learn(alone(3_400_000));
    assert_eq!(kernel.learn(exclusive(1_000_000)), Some(1_000_000));
    assert_eq!(kernel.cost(), 1_000_000);
    assert_eq!(kernel.learn(alone(3_400_000)), None, "another one started");
    assert_eq!(kernel.cost(), 1_000_000);
    for _ in 0..100 {
        kernel.learn(alone(1_400_000));
    }
    assert!(kernel.cost() > 1_100_000, "it became longer: {kernel:?}");
}

#[test]
fn charges_long_launches_of_mixed_kernel_beside_other_tenants() {
    for sharing in [2, 4] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        // One launch in a hundred takes a microsecond; the others take 200 ms and share the device
        // with other tenants.
        let (mut charged, mut own) = (0, 0);
        for i in 0..500 {
            let took = if i % 100 == 0 { 1_000 } else { 200_000_000 };
            let sample = beside(sharing, took * u64::from(sharing));
            charged += kernel.learn(sample).unwrap_or_default();
            own += took;
        }
        assert!(charged > own / 10 * 9, "{charged} of {own}: {kernel:?}");
    }
}

#[test]
fn excludes_wait_for_throttled_device_from_cost() {
    for sharing in [1, 2] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let (mut charged, mut own) = (0, 0);
        for i in 0..100 {
            // A millisecond of work; every other launch waits 50 ms for its counterpart on another
            // device.
            let delayed = i % 2 * 50_000_000;
            let sample = LaunchSample {
                delayed,
                ..beside(sharing, 1_000_000 + delayed)
            };
            charged += kernel.learn(sample).unwrap_or_default();
            own += 1_000_000;
        }
        assert!(charged < own / 10 * 12, "{charged} of {own}: {kernel:?}");
        // What exceeds that wait is its own time.
        let long = LaunchSample {
            delayed: 5_000_000,
            ..beside(sharing, 200_000_000)
        };
        assert!(kernel.learn(long) >= Some(90_000_000), "{kernel:?}");
    }
}

#[test]
fn keeps_samples_within_kernels_own_spread() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    let mut random = fastrand::Rng::with_seed(7);
    let (mut sum, mut taken) = (0.0, 0.0);
    for i in 0..4000 {
        // Lognormal about 1 ms, sigma 0.3.
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "about a million"
        )]
        let took = (1e6 * (0.3 * normal).exp()) as u64;
        kernel.learn(overlapped(took));
        if i > 100 {
            #[expect(clippy::cast_precision_loss, reason = "about a million")]
            let cost = kernel.cost() as f64;
            sum += cost;
            taken += 1.0;
        }
    }
    let mean = sum / taken / 1e6;
    assert!((1.0..1.08).contains(&mean), "{mean}, of 1.046");
}

#[test]
fn accepts_longer_duration_after_many_samples() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    for _ in 0..100 {
        kernel.learn(overlapped(1_000));
    }
    assert_eq!(kernel.learn(overlapped(50_000)), None);
    for _ in 0..1_500 {
        kernel.learn(overlapped(50_000));
    }
    assert!(kernel.cost() > 40_000, "{kernel:?}");
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
    assert_eq!(kernel.learn(late(900)), Some(900));
    let taken = (0..60).filter_map(|_| kernel.learn(late(2_000))).count();
    assert!(
        (1..=3).contains(&taken),
        "where nothing better comes: {taken}"
    );
}

proptest! {
    #[test]
    fn keeps_cost_within_measured_range(
        samples in prop::collection::vec((1_u64..1 << 40, 1_u32..10, any::<bool>(), any::<bool>()), 1..100),
    ) {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let (mut lowest, mut most) = (u64::MAX, 0);
        for (took, sharing, overlapped, disturbed) in samples {
            (lowest, most) = (lowest.min(took), most.max(took));
            let found = kernel.learn(LaunchSample { took, sharing, exclusive: false, overlapped, disturbed, delayed: 0 });
            prop_assert!(found.is_none_or(|found| found <= took));
        }
        if kernel.is_known() {
            prop_assert!((lowest..=most).contains(&kernel.cost()), "{:?}", kernel);
        }
    }
}

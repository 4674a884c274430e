//! What is learnt of kernels from samples, pure and mixed with others' time.

use proptest::prelude::*;

use super::*;

fn alone(took: u64) -> Sample {
    Sample {
        took,
        sharing: 1,
        overlapped: false,
        disturbed: false,
        held: 0,
    }
}

#[test]
fn an_unknown_kernel_is_charged_a_guess_and_few_of_it_may_be_under_way() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    assert_eq!((kernel.cost(), kernel.is_blind()), (UNKNOWN, false));
    kernel.begin();
    kernel.begin();
    assert!(kernel.is_blind());
    kernel.end();
    assert_eq!(kernel.learn(alone(5_000)), Some(5_000));
    assert_eq!((kernel.cost(), kernel.is_blind()), (5_000, false));
}

#[test]
fn the_mean_follows_what_is_measured() {
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
fn five_kernels_that_met_in_four_places_were_unknown_at_every_launch() {
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
    // Those of today get the places of those of yesterday.
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
fn time_of_others_is_not_taken_for_the_kernels_own() {
    for (sharing, overlapped) in [(3, false), (1, true)] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        for i in 0..400 {
            // Every other launch waits for slices of 2 ms of others.
            let sample = Sample {
                sharing,
                overlapped,
                ..alone(1_000_000 + i % 2 * (i % 5) * 2_000_000)
            };
            kernel.learn(sample);
        }
        let cost = kernel.cost();
        assert!((1_000_000..1_080_000).contains(&cost), "{kernel:?}");
    }
}

#[test]
fn a_kernel_with_short_and_long_launches_was_charged_the_short_ones_beside_others() {
    for sharing in [2, 4] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        // One launch in a hundred of a microsecond; the others take 200 ms and have the card in
        // turns with others.
        let (mut charged, mut own) = (0, 0);
        for i in 0..500 {
            let took = if i % 100 == 0 { 1_000 } else { 200_000_000 };
            let sample = Sample {
                sharing,
                ..alone(took * u64::from(sharing))
            };
            charged += kernel.learn(sample).unwrap_or_default();
            own += took;
        }
        assert!(charged > own / 10 * 9, "{charged} of {own}: {kernel:?}");
    }
}

#[test]
fn a_wait_for_another_card_that_we_held_up_was_charged_like_work() {
    for sharing in [1, 2] {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let (mut charged, mut own) = (0, 0);
        for i in 0..100 {
            // A millisecond of work; each other launch waits 50 ms for its like on another card.
            let held = i % 2 * 50_000_000;
            let sample = Sample {
                sharing,
                held,
                ..alone(1_000_000 + held)
            };
            charged += kernel.learn(sample).unwrap_or_default();
            own += 1_000_000;
        }
        assert!(charged < own / 10 * 12, "{charged} of {own}: {kernel:?}");
        // What it took longer than by that wait is its own.
        let long = Sample {
            sharing,
            held: 5_000_000,
            ..alone(200_000_000)
        };
        assert!(kernel.learn(long) >= Some(90_000_000), "{kernel:?}");
    }
}

#[test]
fn times_that_spread_by_themselves_are_not_cut_off() {
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
        kernel.learn(Sample {
            overlapped: true,
            ..alone(took)
        });
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
fn a_kernel_that_takes_longer_than_ever_is_believed_in_the_end() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    let mixed = |took| Sample {
        overlapped: true,
        ..alone(took)
    };
    for _ in 0..100 {
        kernel.learn(mixed(1_000));
    }
    assert_eq!(kernel.learn(mixed(50_000)), None);
    for _ in 0..1_500 {
        kernel.learn(mixed(50_000));
    }
    assert!(kernel.cost() > 40_000, "{kernel:?}");
}

#[test]
fn a_launch_that_was_held_up_teaches_nothing_but_that_it_took_less() {
    let costs = Costs::default();
    let kernel = costs.kernel(key([1, 2, 3]));
    let late = |took| Sample {
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

#[test]
fn a_full_table_forgets_a_kernel_and_not_the_rest() {
    let costs = Costs::default();
    for function in 0..20_000 {
        let kernel = costs.kernel(key([function, 1, 1]));
        kernel.learn(alone(7_000));
        assert_eq!(costs.kernel(key([function, 1, 1])).cost(), 7_000);
    }
    let newest = 19_900..20_000;
    let known = newest.filter(|one| costs.kernel(key([*one, 1, 1])).is_known());
    assert!(known.count() > 80);
}

proptest! {
    #[test]
    fn a_cost_is_never_outside_what_was_measured(
        samples in prop::collection::vec((1_u64..1 << 40, 1_u32..10, any::<bool>(), any::<bool>()), 1..100),
    ) {
        let costs = Costs::default();
        let kernel = costs.kernel(key([1, 2, 3]));
        let (mut lowest, mut most) = (u64::MAX, 0);
        for (took, sharing, overlapped, disturbed) in samples {
            (lowest, most) = (lowest.min(took), most.max(took));
            let found = kernel.learn(Sample { took, sharing, overlapped, disturbed, held: 0 });
            prop_assert!(found.is_none_or(|found| found <= took));
        }
        if kernel.is_known() {
            prop_assert!((lowest..=most).contains(&kernel.cost()), "{:?}", kernel);
        }
    }
}

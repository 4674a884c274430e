//! Decisions about lent memory, on a GPU of 10 GiB whose shares request 2 GiB and may use 8.

use proptest::prelude::*;

use super::*;
use crate::evaluation::ContainerUse;
use crate::node_sample::DevicePage;
use crate::testing::{GRACE, container, node_sample, page, share};

const MIB: u64 = 1 << 20;

fn lending() -> Lending {
    Lending::new(Grace {
        default: GRACE,
        by_namespace: BTreeMap::new(),
    })
}

/// The decision `seconds` after the start.
fn decide(lending: &mut Lending, shares: &[LentShare], free: u64, seconds: u64) -> GpuLending {
    lending.decide("GPU-a", shares, free * MIB, Duration::from_secs(seconds))
}

#[test]
fn calls_back_at_once_and_ends_largest_borrowers_after_grace() {
    let mut lending = lending();
    let shares = [
        share(0, 1000, 900),
        share(1, 2600, 0),
        share(2, 4000, 0),
        share(3, 2400, 0),
    ];
    let begun = decide(&mut lending, &shares, 0, 1);
    assert!(begun.begins && begun.called_back && begun.end.is_empty());
    assert_eq!(begun.max_wait_ms, 15_000);
    let waits = decide(&mut lending, &shares, 0, 10);
    assert!(!waits.begins && waits.called_back && waits.end.is_empty());
    assert_eq!(decide(&mut lending, &shares, 0, 11).end, [2]);
    // Its memory is about to become free.
    assert_eq!(decide(&mut lending, &shares, 0, 12).end, [0; 0]);
    // It is free and used up, and more is lacking.
    let shares = shares.map(|share| LentShare {
        used: if share.at.0 == 2 { 0 } else { share.used },
        ..share
    });
    assert_eq!(decide(&mut lending, &shares, 0, 13).end, [1, 3]);
}

#[test]
fn ends_as_many_borrowers_at_once_as_it_takes() {
    // What the driver takes beyond a share or beyond the count, and a share whose limits page cannot be
    // read.
    let plain = LentShare {
        limit: 2000 * MIB,
        ..share(1, 2400, 0)
    };
    let unknown = LentShare {
        request: 0,
        limit: 0,
        ..share(2, 5000, 0)
    };
    let grown = LentShare {
        tolerated: 500 * MIB,
        ..share(1, 2500, 0)
    };
    for (others, expected) in [
        (
            [share(1, 2600, 0), share(2, 3000, 0), share(3, 2300, 0)],
            &[2, 1][..],
        ),
        ([plain, unknown.clone(), share(3, 2100, 0)], &[3]),
        ([grown, unknown, share(3, 2100, 0)], &[3]),
    ] {
        let mut lending = lending();
        let shares = [[share(0, 0, 1500)].as_slice(), &others].concat();
        decide(&mut lending, &shares, 0, 0);
        assert_eq!(decide(&mut lending, &shares, 0, 10).end, expected);
    }
}

#[test]
fn lends_again_when_nothing_was_lacking_for_two_seconds() {
    let mut lending = lending();
    let full = [share(0, 0, 500), share(1, 3000, 0)];
    let fits = [share(0, 500, 0), share(1, 3000, 0)];
    assert!(decide(&mut lending, &full, 0, 0).called_back);
    assert!(decide(&mut lending, &fits, 0, 1).called_back);
    assert!(!decide(&mut lending, &fits, 0, 2).called_back);
    assert!(decide(&mut lending, &full, 0, 3).begins);
}

#[test]
fn notifies_yielding_borrower_once() {
    let mut lending = lending();
    let yielding = LentShare {
        yields: true,
        ..share(1, 3000, 0)
    };
    let shares = [share(0, 0, 500), yielding, share(2, 4000, 0)];
    assert_eq!(decide(&mut lending, &shares, 0, 0).notify, [1]);
    assert_eq!(decide(&mut lending, &shares, 0, 1).notify, [0; 0]);
}

#[test]
fn calls_nothing_back_for_forged_or_excessive_requests() {
    // Above its request, or nothing is lent.
    for shares in [
        [share(0, 2000, 900), share(1, 3000, 0)],
        [share(0, 1000, 900), share(1, 2000, 0)],
    ] {
        let decision = decide(&mut lending(), &shares, 0, 0);
        assert!(!decision.called_back, "{shares:?}");
    }
    // The GPU is not full.
    let shares = [share(0, 1000, 900), share(1, 3000, 0)];
    assert!(!decide(&mut lending(), &shares, 1500, 0).called_back);
    // What it reports ends no more than what it may still get.
    let mut one = lending();
    let shares = [share(0, 1900, 50_000), share(1, 2200, 0), share(2, 2300, 0)];
    decide(&mut one, &shares, 0, 0);
    assert_eq!(decide(&mut one, &shares, 0, 10).end, [2]);
}

/// The largest borrower is ended first, and its excess is awaited before another is.
#[test]
fn forged_counts_neither_hide_nor_invent_more_than_the_limit() {
    let containers = ["u0", "u1"].map(|pod| container(pod, pod, "main", &["GPU-a"]));
    let sample = NodeSample {
        pages: vec![vec![page(2000 * MIB)]; 2],
        ..node_sample(containers.into())
    };
    let excesses = |used: ContainerUse| {
        let used = ContainerUse {
            limit: 8000 * MIB,
            ..used
        };
        let evaluation = Evaluation {
            uses: vec![vec![used]; 2],
            ..Evaluation::default()
        };
        let decided = lending().evaluate(&sample, &evaluation, 512 * MIB, |_| Some(0));
        let shares = decided[0].0.iter();
        shares.map(LentShare::excess).collect::<Vec<u64>>()
    };
    // The driver does not report the sizes of its processes.
    let invented = ContainerUse {
        tracked: u64::MAX,
        unavailable: 1,
        ..ContainerUse::default()
    };
    assert_eq!(excesses(invented), [6000 * MIB; 2]);
    let hidden = ContainerUse {
        measured: 20_000 * MIB,
        processes: 100,
        ..ContainerUse::default()
    };
    assert_eq!(excesses(hidden), [10_000 * MIB; 2]);
}

#[test]
fn reports_share_whose_memory_is_held_outside_every_share() {
    let check = |guaranteed: u64, held: u64, free: &[u64], expected: &[usize]| {
        let page = DevicePage {
            guaranteed: guaranteed * MIB,
            ..page(2000 * MIB)
        };
        let sample = NodeSample {
            pages: vec![vec![page]],
            ..NodeSample::default()
        };
        let (mut lending, shares) = (lending(), [share(0, 500, 0)]);
        let begun = free.iter().map(|free| {
            let begun = lending.find_short(&sample, &shares, free * MIB, held * MIB);
            begun.len()
        });
        assert_eq!(begun.collect::<Vec<_>>(), expected, "{guaranteed} {held}");
    };
    // Once, until it is over.
    let free = [1500, 600, 700, 1499, 600, 1500, 600];
    check(2000, 60_000, &free, &[0, 1, 0, 0, 0, 0, 1]);
    // A display holds a little.
    check(2000, 100, &[600], &[0]);
    // Host memory backs the share.
    check(1000, 60_000, &[600], &[0]);
}

proptest! {
    #[test]
    fn ends_only_borrowers_above_their_request_after_their_grace(
        steps in prop::collection::vec(
            (prop::collection::vec((0_u64..4000, 0_u64..3000), 4), 0_u64..2000),
            1..60,
        ),
    ) {
        let mut lending = lending();
        let mut begun = None;
        for (second, (uses, free)) in (0_u64..).zip(steps) {
            let shares: Vec<LentShare> = uses
                .iter()
                .enumerate()
                .map(|(number, (used, lacking))| share(number, *used, *lacking))
                .collect();
            let decision = decide(&mut lending, &shares, free, second);
            if decision.begins {
                begun = Some(second);
            }
            for index in &decision.end {
                prop_assert!(shares[*index].excess() > 0);
                prop_assert!(begun.is_some_and(|begun| second - begun >= GRACE.as_secs()));
                let due: u64 = shares.iter().map(LentShare::due).sum();
                prop_assert!(due + SLACK > free * MIB);
            }
            prop_assert!(decision.end.is_empty() || decision.called_back);
        }
    }
}

//! Cards in turns, through MPS, whole, and shared by the limiter.

use super::*;

#[test]
fn ts_8_a_pod_that_wants_a_whole_card_never_lands_on_one_in_turns() {
    let one_name = || {
        vec![
            shared(0, Mode::Timeslice, 2, GPU),
            shared(1, Mode::Exclusive, 1, GPU),
        ]
    };
    let whole: &[(&str, u32)] = &[("gpu", 1), ("cores", 100)];
    check(
        one_name(),
        &[
            (app(whole), "c0 GPU-1:40000/100"),
            (
                app(whole),
                "1 CardModeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
            (app(ONE), "c0 GPU-0:0/0"),
            (app(ONE), "c0 GPU-0:0/0"),
            (
                app(ONE),
                "1 CardTimeSlicingExhausted, 1 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
    // Amounts that were written hold, unless the pod wishes for turns.
    let written: &[(&str, u32)] = &[("gpu", 1), ("mem", 3000)];
    let exclusive = ("aliquot.dev/vgpu-mode", "exclusive");
    let turns = ("aliquot.dev/vgpu-mode", "timeslice");
    check(
        one_name(),
        &[
            (wishing(ONE, exclusive), "c0 GPU-1:40000/100"),
            (
                app(written),
                "1 CardModeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
            (wishing(written, turns), "c0 GPU-0:0/0"),
            (
                wishing(ONE, exclusive),
                "1 CardTypeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
    // Two names: each has its own.
    let two = vec![
        shared(0, Mode::Timeslice, 10, SHARED),
        shared(1, Mode::Exclusive, 1, GPU),
    ];
    check(
        two,
        &[
            (app(&[(SHARED, 1)]), "c0 GPU-0:0/0"),
            (app(ONE), "c0 GPU-1:40000/100"),
            (
                app(ONE),
                "1 CardTypeMismatch, 1 ExclusiveDeviceAllocateConflict",
            ),
        ],
    );
}

#[test]
fn ts_15_two_turns_are_two_cards_or_seats_of_one_and_with_strict_refused() {
    let cards = |strict| {
        let card = |index| Gpu {
            strict,
            ..shared(index, Mode::Timeslice, 2, SHARED)
        };
        vec![card(0), card(1)]
    };
    let two: &[(&str, u32)] = &[(SHARED, 2)];
    let same = wishing(two, ("aliquot.dev/seats", "same"));
    check(
        cards(false),
        &[
            (app(two), "c0 GPU-0:0/0+GPU-1:0/0"),
            (same.clone(), "2 CardTimeSlicingExhausted"),
            (app(&[(SHARED, 3)]), "1 NodeInsufficientDevice"),
        ],
    );
    check(cards(false), &[(same.clone(), "c0 GPU-0:0/0x2")]);
    check(
        cards(true),
        &[(app(two), "2 CardStrict"), (same, "2 CardStrict")],
    );
}

#[test]
fn mps_9_two_shares_are_twice_the_amounts_on_one_card_and_two_cards_are_refused_at_once() {
    let two: &[(&str, u32)] = &[(SHARED, 2)];
    let cards = || vec![mps(0, false), mps(1, false)];
    check(
        cards(),
        &[
            (
                wishing(two, ("aliquot.dev/seats", "same")),
                "c0 GPU-0:20000/50x2",
            ),
            (
                wishing(two, ("aliquot.dev/seats", "distinct")),
                "2 CardModeMismatch",
            ),
        ],
    );
}

#[test]
fn a_container_with_a_share_of_mps_and_another_gpu_was_refused_on_its_node_only() {
    let cards = || vec![mps(0, false), shared(1, Mode::Exclusive, 1, GPU)];
    let both: &[(&str, u32)] = &[("gpu", 1), (SHARED, 1)];
    check(
        cards(),
        &[(app(both), "1 CardTypeMismatch, 1 CardModeMismatch")],
    );
    // In containers of their own.
    let each = pod(
        &[(Stage::App, &[("gpu", 1)]), (Stage::App, &[(SHARED, 1)])],
        &[],
    );
    check(cards(), &[(each, "c0 GPU-1:40000/100, c1 GPU-0:10000/25")]);
}

#[test]
fn mps_8_with_strict_more_than_one_share_is_refused() {
    let two: &[(&str, u32)] = &[(SHARED, 2)];
    check(
        vec![mps(0, true)],
        &[(app(&[(SHARED, 1)]), "c0 GPU-0:10000/25")],
    );
    let cards = || vec![mps(0, true), mps(1, true)];
    check(cards(), &[(app(two), "2 CardStrict")]);
}

#[test]
fn shares_of_mps_are_what_was_written_and_equal_parts_of_the_rest() {
    let amounts: &[(&str, u32)] = &[(SHARED, 1), ("mem", 25_000), ("cores", 30)];
    check(
        vec![mps(0, false)],
        &[
            (app(&[(SHARED, 1)]), "c0 GPU-0:10000/25"),
            (app(amounts), "c0 GPU-0:25000/30"),
            (app(&[(SHARED, 1)]), "1 CardInsufficientMemory"),
            (app(&[(SHARED, 1), ("mem", 4_000)]), "c0 GPU-0:4000/25"),
            (
                app(&[(SHARED, 1), ("mem", 1), ("cores", 21)]),
                "1 CardInsufficientCore",
            ),
        ],
    );
}

#[test]
fn a_share_goes_to_a_shared_card_before_it_takes_a_whole_one() {
    let cards = vec![shared(0, Mode::Exclusive, 1, GPU), gpu(1, 40_000, 1)];
    check(
        cards,
        &[
            (app(ONE), "c0 GPU-1:5000/0"),
            (app(ONE), "c0 GPU-0:40000/100"),
        ],
    );
}

//! A call that the driver keeps, because the card must come further first, keeps no other thread
//! from its own: that may be what the card waits for.

use aliquot_limiter_tests::scene::{container, machine};
use aliquot_limiter_tests::{WAYS, client, lines};

/// Runs a client of which the first call of `held` waits until another thread says so.
#[track_caller]
fn check(held: &str, script: &[(&str, &str)]) {
    for way in WAYS {
        let (room, machine) = machine();
        let container = container(&machine, way, 3000);
        let file = room.path().join("wait");
        std::fs::write(&file, "").expect("a file");
        let client = client();
        // Where threads wait for each other it has no end.
        let mut words = vec!["timeout", "--signal=KILL", "200", "python3", &client];
        words.extend(script.iter().map(|(command, _)| *command));
        let mut command = container.command(&words);
        command.env("GPUSIM_HELD", format!("{held}={}", file.display()));
        let output = command.output().expect("a client");
        let each = script.iter();
        let expected: Vec<String> = each
            .map(|(one, answer)| format!("{one}: {answer}"))
            .collect();
        assert_eq!(lines(&output), expected, "{way:?}: {output:?}");
    }
}

#[test]
fn a_launch_that_waited_for_the_card_kept_all_threads_from_graphs_and_from_asking_what_is_free() {
    check(
        "cuGraphLaunch",
        &[
            ("init", "0"),
            ("graph,-100", "0"),
            ("beside,launch", "0"),
            // What it may take is charged meanwhile.
            ("info", "0 2420 3000"),
            ("graph,-50", "0"),
            ("launch", "0"),
            ("info", "0 2370 3000"),
            ("together", "0"),
            ("info", "0 2420 3000"),
        ],
    );
}

#[test]
fn an_allocation_that_waited_for_the_card_kept_all_threads_from_pools() {
    check(
        "cuMemAllocAsync",
        &[
            ("init", "0"),
            ("beside,ordered,100", "0"),
            // With the step in which a pool may grow.
            ("info", "0 2388 3000"),
            ("ordered,50", "0"),
            ("info", "0 2338 3000"),
            ("unordered", "0"),
            ("together", "0"),
            ("info", "0 2392 3000"),
        ],
    );
}

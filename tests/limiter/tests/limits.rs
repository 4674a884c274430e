//! The memory limit holds, in both ways in, by the simulator's own count.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use aliquot_limiter_tests::scene::{CONTEXT, FIRST, MIB, check, container, device, machine};
use aliquot_limiter_tests::{Container, WAYS, Way};
use aliquot_region::limits::{Container as Rules, UNCONTROLLED};

#[test]
fn without_the_library_nothing_is_limited() {
    let (_room, machine) = machine();
    let container = Container::new(
        &machine,
        Way::Bare,
        Rules::default(),
        &[device(FIRST, 3000)],
    )
    .unwrap();
    let answers = container.client(&["init", "count", "alloc,3000"]).unwrap();
    assert_eq!(answers, ["init: 0", "count: 0 2", "alloc,3000: 0"]);
}

#[test]
fn what_is_called_free_can_be_allocated_and_no_more() {
    check(
        3000,
        &[
            ("init", "0"),
            ("info", "0 2520 3000"),
            ("total", "0 3000"),
            ("alloc,2520", "0"),
            ("info", "0 0 3000"),
            ("alloc,1", "2"),
            ("bytes,1", "2"),
            ("free", "0"),
            ("alloc,2521", "2"),
            ("alloc,2520", "0"),
        ],
    );
}

#[test]
fn every_percent_of_a_card_holds() {
    // 1, 2, 37 and 99 % of 80 GiB.
    for (mib, free) in [(819, 338), (1638, 1158), (30_310, 29_830), (81_100, 80_620)] {
        let whole = format!("0 {free} {mib}");
        let all = format!("alloc,{free}");
        check(
            mib,
            &[
                ("init", "0"),
                ("info", &whole),
                (&all, "0"),
                ("alloc,2", "2"),
            ],
        );
    }
}

#[test]
fn a_share_smaller_than_a_context_gives_no_context() {
    check(400, &[("init", "2")]);
}

#[test]
fn a_program_that_asks_by_cu_get_proc_address_is_limited_too() {
    check(
        3000,
        &[
            ("init", "0"),
            ("alloc,2000,address", "0"),
            ("alloc,1000,address", "2"),
            ("info", "0 520 3000"),
        ],
    );
}

#[test]
fn what_a_host_measured_of_memory_stays_charged_when_it_died() {
    let (_room, machine) = machine();
    let devices = [device(FIRST, 3000)];
    let container = Container::new(&machine, Way::Replacement, Rules::default(), &devices).unwrap();
    let path = container.directory().join("limits");
    let page = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    // Heartbeat and overhead, as the documented layout says.
    for (at, value) in [(24, 1), (64 + 64, 500 * MIB)] {
        page.write_all_at(&value.to_le_bytes(), at).unwrap();
    }
    let said = container.client(&["init", "info", "alloc,2022", "alloc,2020"]);
    let expected = [
        "init: 0",
        "info: 0 2020 3000",
        "alloc,2022: 2",
        "alloc,2020: 0",
    ];
    assert_eq!(said.unwrap(), expected);
}

#[test]
fn a_killed_process_frees_what_it_had() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container =
            Container::new(&machine, way, Rules::default(), &[device(FIRST, 3000)]).unwrap();
        let running = container.start(&["init", "alloc,2000"]).unwrap();
        assert_eq!(running.answers, ["init: 0", "alloc,2000: 0"]);
        let beside = container.client(&["init", "info", "alloc,42"]).unwrap();
        assert_eq!(beside[1..], ["info: 0 40 3000", "alloc,42: 2"], "{way:?}");
        running.kill().unwrap();
        let after = container.client(&["init", "info", "alloc,2520"]).unwrap();
        assert_eq!(
            after[1..],
            ["info: 0 2520 3000", "alloc,2520: 0"],
            "{way:?}"
        );
    }
}

#[test]
fn memory_of_a_killed_process_was_given_away_while_its_children_held_it() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let mut running = container.start(&["init", "alloc,2000", "linger"]).unwrap();
        running.strike().unwrap();
        let after = container.client(&["init", "info", "alloc,42"]).unwrap();
        assert_eq!(after[1..], ["info: 0 40 3000", "alloc,42: 2"], "{way:?}");
        // With its input the child ends.
        drop(running);
        let deadline = Instant::now() + Duration::from_mins(1);
        let whole = ["init: 0", "info: 0 2520 3000"];
        while container.client(&["init", "info"]).unwrap() != whole {
            assert!(Instant::now() < deadline, "{way:?}: never given back");
        }
    }
}

#[test]
fn where_a_fork_cannot_be_seen_nothing_was_allocated_and_nothing_said_why() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let output = container
            .client_command(&["nowipe", "init", "count"])
            .output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let why = said.matches("no GPU memory can be given").count();
        assert_eq!(why, 1, "{way:?} {said}");
        let answers = aliquot_limiter_tests::lines(&output);
        assert_eq!(answers[..2], ["nowipe: 0", "init: 800"], "{way:?}");
    }
}

#[test]
fn processes_that_allocate_at_random_stay_below_the_limit_together_and_end_at_nothing() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container =
            Container::new(&machine, way, Rules::default(), &[device(FIRST, 2200)]).unwrap();
        let commands = ["patient", "hold", "churn,4000", "emptied", "info"];
        let mut churning: Vec<_> = (0..4)
            .map(|_| {
                let mut client = container.client_command(&commands);
                client.stdin(std::process::Stdio::piped());
                client.stdout(std::process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        // All begin together: the first would have ended before the last has started.
        let deadline = Instant::now() + Duration::from_mins(1);
        while machine.holders(FIRST).unwrap().len() < churning.len() {
            assert!(Instant::now() < deadline, "{way:?}: they do not start");
        }
        for client in &mut churning {
            drop(client.stdin.take());
        }
        let (mut most, mut met) = (0, 0);
        for mut client in churning {
            while client.try_wait().unwrap().is_none() {
                let holders = machine.holders(FIRST).unwrap();
                most = holders
                    .iter()
                    .map(|holder| holder.used)
                    .sum::<u64>()
                    .max(most);
            }
            let output = client.wait_with_output().unwrap();
            assert!(output.status.success(), "{way:?}");
            let answers = aliquot_limiter_tests::lines(&output);
            let refused: u64 = answers[2].rsplit(' ').next().unwrap().parse().unwrap();
            met += refused;
        }
        assert!(met > 0, "{way:?}: the limit was never met");
        assert!(most <= 2200 * MIB, "{way:?}: {} MiB at once", most / MIB);
        assert!(
            most > 4 * CONTEXT * MIB,
            "{way:?}: they did not run together"
        );
        let watch = container.client(&["init", "info"]).unwrap();
        assert_eq!(watch[1], "info: 0 1720 2200", "{way:?}");
        assert_eq!(machine.holders(FIRST).unwrap(), [], "{way:?}");
    }
}

#[test]
fn a_container_that_was_allowed_to_is_not_limited() {
    let (_room, machine) = machine();
    let rules = Rules {
        flags: UNCONTROLLED,
        ..Rules::default()
    };
    let container =
        Container::new(&machine, Way::Replacement, rules, &[device(FIRST, 3000)]).unwrap();
    let answers = container.client(&["init", "alloc,30000"]).unwrap();
    assert_eq!(answers, ["init: 0", "alloc,30000: 0"]);
}

#[test]
fn without_a_limits_page_nothing_is_allocated_and_one_line_says_why() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container =
            Container::new(&machine, way, Rules::default(), &[device(FIRST, 3000)]).unwrap();
        std::fs::remove_file(container.directory().join("limits")).unwrap();
        let output = container
            .client_command(&["init", "alloc,1", "count"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            said.matches("no GPU memory can be given").count(),
            1,
            "{way:?} {said}"
        );
        let answers = aliquot_limiter_tests::lines(&output);
        assert_eq!(answers[0], "init: 800", "{way:?}");
    }
}

#[test]
fn nothing_that_a_tenant_does_to_its_process_lifts_the_limit() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container =
            Container::new(&machine, way, Rules::default(), &[device(FIRST, 3000)]).unwrap();
        let answers = container
            .client(&["init", "close", "alloc,2000", "alloc,1000", "info"])
            .unwrap();
        assert_eq!(
            answers[2..],
            ["alloc,2000: 0", "alloc,1000: 2", "info: 0 520 3000"],
            "{way:?}"
        );
        let mut forged = container.client_command(&["init", "alloc,2521", "fork,init"]);
        forged
            .env("CUDA_DEVICE_MEMORY_LIMIT_0", "90000m")
            .env("CUDA_DISABLE_CONTROL", "true")
            .env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine");
        let answers = aliquot_limiter_tests::lines(&forged.output().unwrap());
        assert_eq!(answers[..2], ["init: 0", "alloc,2521: 2"], "{way:?}");
    }
}

#[test]
fn kills_in_the_middle_of_allocations_leave_nothing_behind() {
    let (_room, machine) = machine();
    let devices = [device(FIRST, 2200)];
    let container = Container::new(&machine, Way::Replacement, Rules::default(), &devices).unwrap();
    let mut most = 0;
    for round in 0..12 {
        let mut churning: Vec<_> = (0..3)
            .map(|_| {
                let mut client = container.client_command(&["patient", "churn,1000000"]);
                client.stdout(std::process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        // Killed at different places of their work: after more and more looks at it.
        let mut looks = 0;
        while looks < 20 * round {
            let holders = machine.holders(FIRST).unwrap();
            looks += usize::from(holders.iter().any(|holder| holder.contexts > 0));
            most = holders
                .iter()
                .map(|holder| holder.used)
                .sum::<u64>()
                .max(most);
        }
        for client in &mut churning {
            client.kill().unwrap();
            client.wait().unwrap();
        }
    }
    assert!(most <= 2200 * MIB, "{} MiB at once", most / MIB);
    let answers = container
        .client(&["init", "info", "alloc,1720", "alloc,2"])
        .unwrap();
    assert_eq!(
        answers[1..],
        ["info: 0 1720 2200", "alloc,1720: 0", "alloc,2: 2"]
    );
}

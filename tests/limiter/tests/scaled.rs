//! `deviceMemoryScaling` above 1: what goes beyond a container's part of the card is managed memory.

use std::process::Stdio;
use std::time::Instant;

use aliquot_gpusim::SimulatedMachine;
use aliquot_limiter_tests::scene::{FIRST, MIB, device, machine};
use aliquot_limiter_tests::{Container, WAYS, Way, lines};
use aliquot_region::limits::{Container as Rules, Device, OVERSUBSCRIBE};

/// A container that was promised `mib` of a card, of which `part` is real.
fn scaled(machine: &SimulatedMachine, way: Way, mib: u64, part: u64) -> Container {
    let rules = Rules {
        flags: OVERSUBSCRIBE,
        ..Rules::default()
    };
    let device = Device {
        physical: part * MIB,
        ..device(FIRST, mib)
    };
    Container::new(machine, way, rules, &[device]).expect("a container")
}

#[test]
fn a_container_may_have_more_than_its_part_of_the_card() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = scaled(&machine, way, 6000, 3000);
        let script = [
            ("init", "0"),
            ("info", "0 5520 6000"),
            ("total", "0 6000"),
            // On the card, then beyond its part.
            ("alloc,2520", "0"),
            ("alloc,1000", "0"),
            ("pitch,1000,2048", "0"),
            ("info", "0 1998 6000"),
            ("alloc,1999", "2"),
            ("alloc,1998", "0"),
            ("alloc,1", "2"),
            ("free", "0"),
            ("free", "0"),
            ("free", "0"),
            ("info", "0 3000 6000"),
        ];
        let commands: Vec<&str> = script.iter().map(|(command, _)| *command).collect();
        let mut running = container.start(&commands).expect("the client");
        let expected: Vec<String> = script.iter().map(|(a, b)| format!("{a}: {b}")).collect();
        assert_eq!(running.answers, expected, "{way:?}");
        let holders = machine.holders(FIRST).expect("a card");
        assert!(
            holders.iter().all(|one| one.used <= 3000 * MIB),
            "{holders:?}"
        );
        running.end().expect("it ends well");
    }
}

#[test]
fn what_managed_memory_cannot_serve_fails_at_that_call_with_one_line() {
    let (_room, machine) = machine();
    for (command, code, name) in [
        ("physical,100", "2", "cuMemCreate"),
        ("array,4096,4096", "2", "an array"),
        ("ordered,100", "2", "a memory pool"),
        ("create", "2", "a context"),
        ("share", "801", "cuIpcGetMemHandle"),
    ] {
        let container = scaled(&machine, Way::Replacement, 6000, 3000);
        let mut client = container.client_command(&["init", "alloc,2500", "alloc,1000", command]);
        let output = client.output().expect("the client");
        let said = lines(&output);
        let expected = [
            "init: 0",
            "alloc,2500: 0",
            "alloc,1000: 0",
            &format!("{command}: {code}"),
        ];
        assert_eq!(said, expected);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(words.lines().count(), 1, "{words}");
        assert!(words.contains(name), "{words}");
    }
}

#[test]
fn two_tenants_of_a_cards_size_each_run_and_finish_on_one_card() {
    let all: u64 = 81_920;
    // Each uses 60,000 MiB, which the card has once.
    let words = [
        "init",
        "alloc,30000",
        "touch",
        "alloc,30000",
        "touch",
        "info",
        "free",
        "free",
    ];
    let run = |number: usize| {
        let (_room, machine) = machine();
        let begun = Instant::now();
        let tenants: Vec<Container> = (0..number)
            .map(|_| scaled(&machine, Way::Replacement, all, all / 2))
            .collect();
        let started: Vec<_> = tenants
            .iter()
            .map(|tenant| {
                let mut client = tenant.client_command(&words);
                client.stdout(Stdio::piped()).spawn().expect("a client")
            })
            .collect();
        for child in started {
            let output = child.wait_with_output().expect("it ends");
            let said = lines(&output);
            let left = all - 480 - 60_000;
            assert_eq!(said[5], format!("info: 0 {left} {all}"), "{said:?}");
            let mut codes = said.iter().filter(|line| !line.starts_with("info"));
            assert!(codes.all(|line| line.ends_with(": 0")), "{said:?}");
        }
        assert_eq!(machine.holders(FIRST).expect("a card"), []);
        begun.elapsed().as_secs_f64()
    };
    let (one, two) = (run(1), run(2));
    println!("one tenant {one:.1} s, two at once {two:.1} s (simulated)");
}

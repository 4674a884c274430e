//! `deviceMemoryScaling` above 1: what goes beyond a container's part of the card is managed memory.

use std::time::Duration;

use aliquot_gpusim::{Holder, SimulatedMachine};
use aliquot_limiter_tests::scene::{CONTEXT, FIRST, MIB, device, machine};
use aliquot_limiter_tests::{Container, Running, WAYS, Way, lines};
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
        // For RDMA, from its beginning and from within.
        ("rdma", "801", "cuMemGetHandleForAddressRange"),
        ("rdma,4194304", "801", "cuMemGetHandleForAddressRange"),
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
fn what_lies_on_the_card_can_be_shared_though_the_container_is_scaled() {
    let (_room, machine) = machine();
    let container = scaled(&machine, Way::Replacement, 6000, 3000);
    let said = container.client(&["init", "alloc,1000", "alloc,2500", "free", "rdma", "share"]);
    let said = said.expect("the client");
    assert_eq!(said[4..], ["rdma: 0", "share: 0"]);
}

#[test]
fn memory_that_went_with_its_context_left_its_address_among_those_beyond_the_card() {
    let (_room, machine) = machine();
    let container = scaled(&machine, Way::Replacement, 6000, 3000);
    let before = ["init", "alloc,2520", "alloc,1000", "reset"];
    let after = ["init", "alloc,1000", "share", "alloc,1000", "share"];
    let said = container.client(&[&before[..], &after[..]].concat());
    let said = said.expect("the client");
    assert_eq!((&*said[6], &*said[8]), ("share: 0", "share: 0"));
}

/// MiB of a card that two tenants of its size share, and what of it the driver keeps.
const SMALL: u64 = 4096;
const DRIVERS: u64 = 96;

/// A small card on which contexts take as much as on the others.
fn small() -> (tempfile::TempDir, SimulatedMachine) {
    let room = tempfile::tempdir().expect("a folder");
    let yaml = format!(
        "gpus: [{{model: Tesla T4, uuids: [{FIRST}], memoryMib: {SMALL}, reservedMib: {DRIVERS}, set: {{contextMib: {CONTEXT}}}}}]"
    );
    let state = room.path().join("state");
    let machine = SimulatedMachine::create(&state, &yaml).expect("a machine");
    (room, machine)
}

/// What tenants left of the card and of the host while all of them had all they wanted.
struct Left {
    /// Seconds of the card for each of them.
    busy: f64,
    /// MiB on the host, and the most that there ever were.
    host: [u64; 2],
}

/// So many tenants at once that are promised `mib` each, as a node does that promises `promised` of
/// its card. Each fills `used` of that and works on what lies beyond its part of the card.
fn run_together(number: usize, mib: u64, promised: u64, used: &[&str]) -> Left {
    let (_room, machine) = small();
    let part = mib * (SMALL - DRIVERS) / promised;
    let tenants: Vec<Container> = (0..number)
        .map(|_| scaled(&machine, Way::Replacement, mib, part))
        .collect();
    let mut running: Vec<Running> = std::thread::scope(|scope| {
        let started: Vec<_> = tenants
            .iter()
            .map(|tenant| scope.spawn(|| tenant.start(used).expect("a client")))
            .collect();
        let all = started.into_iter();
        all.map(|one| one.join().expect("it answers")).collect()
    });
    for one in &running {
        assert!(
            one.answers.iter().all(|line| line.ends_with(": 0")),
            "{:?}",
            one.answers
        );
    }
    let holders = machine.holders(FIRST).expect("a card");
    assert_eq!(holders.len(), number, "{holders:?}");
    let sum = |of: fn(&Holder) -> u64| holders.iter().map(of).sum::<u64>();
    let (held, busy) = (sum(|one| one.used), sum(|one| one.busy));
    assert!(held <= (SMALL - DRIVERS) * MIB, "{holders:?}");
    let found = Left {
        busy: Duration::from_nanos(busy).as_secs_f64()
            / f64::from(u32::try_from(number).expect("few")),
        host: [
            sum(|one| one.host),
            machine.host_peak(FIRST).expect("a card"),
        ]
        .map(|bytes| bytes / MIB),
    };
    for one in &mut running {
        one.end().expect("it ends well");
    }
    assert_eq!(machine.holders(FIRST).expect("a card"), []);
    found
}

#[test]
fn two_tenants_of_a_cards_size_each_run_and_finish_slower_and_within_the_hosts_reserve() {
    // Promised twice: a reserve as large as what containers can have of the card.
    let reserve = SMALL - DRIVERS;
    let promised = 2 * reserve;
    let words = ["init", "alloc,1400", "alloc,2100", "work,4"];
    let alone = run_together(1, SMALL - DRIVERS, promised, &words);
    let both = run_together(2, SMALL - DRIVERS, promised, &words);
    assert_eq!(alone.host, [0, 0], "one of them fits");
    // 2 x (480 + 1400 + 2100) on a card with 4000.
    let [now, most] = both.host;
    assert!(
        (3900..=reserve).contains(&now) && most <= reserve,
        "{now} {most}"
    );
    let slower = both.busy / alone.busy;
    println!(
        "two tenants of a card's size: each is {slower:.1} times slower than alone, {most} MiB on the host (simulated)"
    );
    assert!((2.0..5.0).contains(&slower), "{slower}");
}

#[test]
fn a_small_reserve_of_the_host_is_never_passed_and_what_is_beyond_it_is_refused() {
    // Scaling 2, and a reserve of 1000: 5000 are promised, of which each tenant has half.
    let (reserve, promised) = (1000, 5000);
    // Its part of the card is 2000: 480 + 1500, then 518 beyond.
    let words = ["init", "alloc,1500", "alloc,518", "work,3"];
    let both = run_together(2, 2500, promised, &words);
    let [now, most] = both.host;
    assert!(now > 900 && most <= reserve, "{now} {most}");
    let (_room, machine) = small();
    let container = scaled(&machine, Way::Replacement, 2500, 2000);
    let mut client = container.client_command(&["init", "alloc,1500", "alloc,518", "alloc,4"]);
    let output = client
        .env("LIBCUDA_LOG_LEVEL", "4")
        .output()
        .expect("the client");
    assert_eq!(lines(&output)[3], "alloc,4: 2");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = said.lines().filter(|line| line.contains("refused"));
    let refused: Vec<&str> = refused.collect();
    assert_eq!(refused.len(), 1, "{said}");
    assert!(
        refused[0].contains("2000 MiB of the card and 500 MiB of the host"),
        "{said}"
    );
}

#[test]
fn what_others_took_of_the_card_refused_a_scaled_container_what_it_was_promised() {
    let (_room, machine) = small();
    // Nobody reckoned with it.
    let stranger = Container::new(&machine, Way::Bare, Rules::default(), &[]).expect("a container");
    let there = stranger.start(&["init", "alloc,2000"]).expect("a client");
    assert_eq!(there.answers, ["init: 0", "alloc,2000: 0"]);
    let container = scaled(&machine, Way::Replacement, 4000, 2000);
    let said = container.client(&["init", "info", "alloc,1500", "alloc,2020", "info"]);
    let expected = [
        "init: 0",
        "info: 0 3520 4000",
        "alloc,1500: 0",
        "alloc,2020: 0",
        "info: 0 0 4000",
    ];
    assert_eq!(said.expect("the client"), expected);
}

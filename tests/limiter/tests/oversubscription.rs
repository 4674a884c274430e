//! `deviceMemoryScaling` above 1: what exceeds a container's part of the GPU is managed memory.

use std::time::Duration;

use aliquot_gpusim::{ProcessUsage, SimulatedMachine};
use aliquot_limiter_tests::scene::{CONTEXT, FIRST, MIB, container_of, device, machine, split};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, TestContainer, lines, start_all};
use aliquot_region::limits::{ContainerLimits, DeviceLimits, OVERSUBSCRIBE};

/// A container that was granted `mib` of a GPU, of which `part` is physical.
fn oversubscribed(
    machine: &SimulatedMachine,
    method: InjectionMethod,
    mib: u64,
    part: u64,
) -> TestContainer {
    let rules = ContainerLimits {
        flags: OVERSUBSCRIBE,
        ..ContainerLimits::default()
    };
    let device = DeviceLimits {
        physical: part * MIB,
        ..device(FIRST, mib)
    };
    TestContainer::new(machine, method, rules, &[device]).expect("a container")
}

#[test]
fn allows_more_than_part_of_device_when_oversubscribed() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let container = oversubscribed(&machine, method, 6000, 3000);
        // The first block is in GPU memory, the others are beyond its part.
        let (commands, expected) = split(
            "init: 0; info: 0 5520 6000; total: 0 6000; alloc,2520: 0; alloc,1000: 0; \
             pitch,1000,2048: 0; info: 0 1998 6000; alloc,1999: 2; alloc,1998: 0; alloc,1: 2; \
             free: 0; free: 0; free: 0; info: 0 3000 6000",
        );
        let mut running = container.start(&commands).expect("the client");
        assert_eq!(running.answers, expected, "{method:?}");
        let holders = machine.process_usage(FIRST).expect("a GPU");
        assert!(
            holders.iter().all(|one| one.used <= 3000 * MIB),
            "{holders:?}"
        );
        running.end().expect("it ends well");
    }
}

#[test]
fn refuses_calls_that_managed_memory_cannot_serve() {
    let (_temp, machine) = machine();
    for (command, code, name) in [
        ("physical,100", "2", "cuMemCreate"),
        ("array,4096,4096", "2", "an array"),
        ("ordered,100", "2", "a memory pool"),
        ("create", "2", "a context"),
        ("share", "801", "cuIpcGetMemHandle"),
        // For RDMA, from its start and from within.
        ("rdma", "801", "cuMemGetHandleForAddressRange"),
        ("rdma,4194304", "801", "cuMemGetHandleForAddressRange"),
    ] {
        let container = oversubscribed(&machine, InjectionMethod::Replacement, 6000, 3000);
        let script = format!("init: 0; alloc,2500: 0; alloc,1000: 0; {command}: {code}");
        let (commands, expected) = split(&script);
        let output = container.client_command(&commands).output();
        let output = output.expect("the client");
        assert_eq!(lines(&output), expected);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(words.lines().count(), 1, "{words}");
        assert!(words.contains(name), "{words}");
    }
}

#[test]
fn shares_device_memory_of_oversubscribed_container() {
    let (_temp, machine) = machine();
    let container = oversubscribed(&machine, InjectionMethod::Replacement, 6000, 3000);
    container.check("init: 0; alloc,1000: 0; alloc,2500: 0; free: 0; rdma: 0; share: 0");
}

#[test]
fn forgets_spilled_addresses_with_their_context() {
    let (_temp, machine) = machine();
    let container = oversubscribed(&machine, InjectionMethod::Replacement, 6000, 3000);
    container.check(
        "init: 0; alloc,2520: 0; alloc,1000: 0; reset: 0; init: 0; alloc,1000: 0; share: 0; \
         alloc,1000: 0; share: 0",
    );
}

/// MiB of a GPU that two tenants of its size share, and what the driver reserves of it.
const SMALL: u64 = 4096;
const DRIVER_RESERVED: u64 = 96;

/// A small GPU on which contexts are as large as on the others.
fn small_machine() -> (tempfile::TempDir, SimulatedMachine) {
    let temp = tempfile::tempdir().expect("a folder");
    let yaml = format!(
        "gpus: [{{model: Tesla T4, uuids: [{FIRST}], memoryMib: {SMALL}, reservedMib: {DRIVER_RESERVED}, set: {{contextMib: {CONTEXT}}}}}]"
    );
    let state = temp.path().join("state");
    let machine = SimulatedMachine::create(&state, &yaml).expect("a machine");
    (temp, machine)
}

/// What tenants used of the GPU and of the host while all of them had what they requested.
struct MeasuredUsage {
    /// GPU seconds for each of them.
    busy: f64,
    /// MiB on the host, now and at most.
    host: [u64; 2],
}

/// Runs `number` tenants at once with `mib` each, as on a node that grants `promised` of its GPU in
/// total. Each fills `used` of that and works on what exceeds its part of the GPU.
fn run_together(number: usize, mib: u64, promised: u64, used: &[&str]) -> MeasuredUsage {
    let (_temp, machine) = small_machine();
    let part = mib * (SMALL - DRIVER_RESERVED) / promised;
    let tenants: Vec<TestContainer> = (0..number)
        .map(|_| oversubscribed(&machine, InjectionMethod::Replacement, mib, part))
        .collect();
    let mut running = start_all(&tenants, used);
    for one in &running {
        assert!(
            one.answers.iter().all(|line| line.ends_with(": 0")),
            "{:?}",
            one.answers
        );
    }
    let holders = machine.process_usage(FIRST).expect("a GPU");
    assert_eq!(holders.len(), number, "{holders:?}");
    let sum = |of: fn(&ProcessUsage) -> u64| holders.iter().map(of).sum::<u64>();
    let (used_sum, busy) = (sum(|one| one.used), sum(|one| one.busy));
    assert!(used_sum <= (SMALL - DRIVER_RESERVED) * MIB, "{holders:?}");
    let found = MeasuredUsage {
        busy: Duration::from_nanos(busy).as_secs_f64()
            / f64::from(u32::try_from(number).expect("few")),
        host: [
            sum(|one| one.host),
            machine.host_peak(FIRST).expect("a GPU"),
        ]
        .map(|bytes| bytes / MIB),
    };
    for one in &mut running {
        one.end().expect("it ends well");
    }
    assert_eq!(machine.process_usage(FIRST).expect("a GPU"), []);
    found
}

#[test]
fn hami_7_runs_two_full_size_tenants_within_host_reserve() {
    // Granted twice: a reserve as large as what containers can have of the GPU.
    let reserve = SMALL - DRIVER_RESERVED;
    let promised = 2 * reserve;
    let words = ["init", "alloc,1400", "alloc,2100", "work,4"];
    let alone = run_together(1, SMALL - DRIVER_RESERVED, promised, &words);
    let both = run_together(2, SMALL - DRIVER_RESERVED, promised, &words);
    assert_eq!(alone.host, [0, 0], "one of them fits");
    // 2 x (480 + 1400 + 2100) on a GPU with 4000.
    let [now, most] = both.host;
    assert!(
        (3900..=reserve).contains(&now) && most <= reserve,
        "{now} {most}"
    );
    let slower = both.busy / alone.busy;
    println!(
        "two tenants of a GPU's size: each is {slower:.1} times slower than alone, {most} MiB on the host (simulated)"
    );
    assert!((2.0..5.0).contains(&slower), "{slower}");
}

#[test]
fn refuses_memory_beyond_small_host_reserve() {
    // Scaling 2, and a reserve of 1000: 5000 are granted, of which each tenant has half.
    let (reserve, promised) = (1000, 5000);
    // Its part of the GPU is 2000: 480 + 1500, then 518 beyond.
    let words = ["init", "alloc,1500", "alloc,518", "work,3"];
    let both = run_together(2, 2500, promised, &words);
    let [now, most] = both.host;
    assert!(now > 900 && most <= reserve, "{now} {most}");
    let (_temp, machine) = small_machine();
    let container = oversubscribed(&machine, InjectionMethod::Replacement, 2500, 2000);
    let mut client = container.client_command(&["init", "alloc,1500", "alloc,518", "alloc,4"]);
    let output = client
        .env("LIBCUDA_LOG_LEVEL", "4")
        .output()
        .expect("the client");
    assert_eq!(lines(&output)[3], "alloc,4: 2");
    let reply = String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = reply.lines().filter(|line| line.contains("refused"));
    let refused: Vec<&str> = refused.collect();
    assert_eq!(refused.len(), 1, "{reply}");
    assert!(
        refused[0].contains("2000 MiB of device memory and 500 MiB of host memory"),
        "{reply}"
    );
}

#[test]
fn spills_when_others_use_its_part_of_device() {
    let (_temp, machine) = small_machine();
    // Nobody counted it.
    let unmanaged = container_of(&machine, InjectionMethod::NoLimiter, &[]);
    let running = unmanaged.start(&["init", "alloc,2000"]).expect("a client");
    assert_eq!(running.answers, ["init: 0", "alloc,2000: 0"]);
    let container = oversubscribed(&machine, InjectionMethod::Replacement, 4000, 2000);
    container.check("init: 0; info: 0 3520 4000; alloc,1500: 0; alloc,2020: 0; info: 0 0 4000");
}

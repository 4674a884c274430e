//! The memory limit is kept under both injection methods, by the simulator's own count.

use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use aliquot_gpusim::STATE_VARIABLE;
use aliquot_limiter_tests::scene::{
    FIRST, MIB, check, check_in, container, device, each_method, machine, split,
};
use aliquot_limiter_tests::{InjectionMethod, TalkingProgram, TestContainer, built, lines};
use aliquot_region::limits::{ContainerLimits, UNCONTROLLED};

#[test]
fn allows_exactly_what_is_reported_free() {
    check(
        3000,
        "init: 0; info: 0 2520 3000; total: 0 3000; alloc,2520: 0; info: 0 0 3000; alloc,1: 2; \
         bytes,1: 2; free: 0; alloc,2521: 2; alloc,2520: 0",
    );
}

#[test]
fn refuses_context_larger_than_share() {
    check(400, "init: 2");
}

#[test]
fn limits_functions_from_cu_get_proc_address() {
    check(
        3000,
        "init: 0; alloc,2000,address: 0; alloc,1000,address: 2; info: 0 520 3000",
    );
}

/// For the driver, each client may have all that the container may.
#[test]
fn mps_4_mps_7_driver_limits_each_client_and_library_all_together() {
    let (_temp, machine) = machine();
    let control = built("nvidia-cuda-mps-control").expect("cargo build --workspace");
    let pipe = machine.state().with_file_name("mps");
    let started = Command::new(&control)
        .arg("-d")
        .env("PATH", control.parent().unwrap())
        .env(STATE_VARIABLE, machine.state())
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", &pipe)
        .env("CUDA_VISIBLE_DEVICES", "0")
        .status();
    assert!(started.unwrap().success());
    for (method, code) in [
        (InjectionMethod::NoLimiter, "0"),
        (InjectionMethod::Replacement, "2"),
        (InjectionMethod::Preload, "2"),
    ] {
        let container = container(&machine, method, 5000);
        let client = |commands: &[&str]| {
            let mut command = container.client_command(commands);
            command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
            command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=5000M");
            command
        };
        let mut first = client(&["init", "alloc,3000", "hold"]);
        let mut holder = TalkingProgram::start(&mut first).unwrap();
        for answer in ["init: 0", "alloc,3000: 0"] {
            assert_eq!(holder.read_line().unwrap(), answer, "{method:?}");
        }
        let processes = machine.process_usage(FIRST).unwrap();
        assert!(processes.iter().any(|one| one.mps), "{processes:?}");
        let mut second = client(&["init", "alloc,3000", "alloc,500"]);
        let answers = lines(&second.output().unwrap());
        let large = format!("alloc,3000: {code}");
        assert_eq!(answers, ["init: 0", &large, "alloc,500: 0"], "{method:?}");
        holder.end().unwrap();
    }
}

#[test]
fn keeps_measured_overhead_after_host_dies() {
    let (_temp, machine) = machine();
    let container = container(&machine, InjectionMethod::Replacement, 3000);
    let path = container.directory().join("limits");
    let page = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    // Heartbeat and overhead at their documented offsets.
    for (at, value) in [(24, 1), (64 + 64, 500 * MIB)] {
        page.write_all_at(&value.to_le_bytes(), at).unwrap();
    }
    container.check("init: 0; info: 0 2020 3000; alloc,2022: 2; alloc,2020: 0");
}

#[test]
fn keeps_charge_while_forked_child_of_killed_process_lives() {
    each_method(3000, |container, method| {
        let mut running = container.start(&["init", "alloc,2000", "linger"]).unwrap();
        running.kill_process().unwrap();
        container.check("init: 0; info: 0 40 3000; alloc,42: 2");
        // The child ends with its input.
        drop(running);
        let deadline = Instant::now() + Duration::from_mins(1);
        let whole = ["init: 0", "info: 0 2520 3000"];
        while container.client(&["init", "info"]).unwrap() != whole {
            assert!(Instant::now() < deadline, "{method:?}: never given back");
        }
    });
}

#[test]
fn gives_forked_child_own_slot_where_kernel_wipes_nothing() {
    each_method(3000, |container, method| {
        let (commands, mut expected) = split(
            "deny,madvise,2,18: 0; ninit: 0; nmemory: [0, 0] 0 3000; fork,init: 0; init: 0; \
             info: 0 2520 3000",
        );
        // The child's own answer. In its parent's slot its context would still be charged at the end.
        expected.insert(3, "init: 0");
        assert_eq!(container.client(&commands).unwrap(), expected, "{method:?}");
    });
}

#[test]
fn does_not_limit_uncontrolled_container() {
    let (_temp, machine) = machine();
    let rules = ContainerLimits {
        flags: UNCONTROLLED,
        ..ContainerLimits::default()
    };
    let (method, devices) = (InjectionMethod::Replacement, [device(FIRST, 3000)]);
    let container = TestContainer::new(&machine, method, rules, &devices).unwrap();
    container.check("init: 0; alloc,30000: 0");
}

#[test]
fn refuses_allocation_without_limits_page_with_one_line() {
    each_method(3000, |container, method| {
        std::fs::remove_file(container.directory().join("limits")).unwrap();
        let (commands, expected) =
            split("init: 800; alloc,1: 800; count: 0 0; ninit: 0; ncount: 0 0");
        let output = container.client_command(&commands).output().unwrap();
        let reply = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            reply.matches("no GPU memory can be allocated").count(),
            1,
            "{method:?} {reply}"
        );
        let bind = "mount --rbind /.aliquot ROOT/.aliquot\n";
        assert!(reply.contains(bind), "{method:?} {reply}");
        assert_eq!(lines(&output), expected, "{method:?}");
    });
}

#[test]
fn shows_share_as_used_up_where_kernel_refuses_locks() {
    each_method(3000, |container, _| {
        let neighbour = container.start(&["init", "alloc,1000"]);
        container.check(
            "begin: 0; ninit: 0; deny,fcntl,1,37: 0; init: 800; alloc,1: 800; count: 0 1; \
             total: 0 3000; ncount: 0 1; nmemory: [0, 0] 3000 3000; nprocesses: 0 0 []",
        );
        neighbour.unwrap().end().unwrap();
    });
}

#[test]
fn limits_memory_where_kernel_refuses_advice() {
    each_method(3000, |container, _| {
        container.check("deny,madvise: 0; init: 0; alloc,2521: 2; alloc,2520: 0; info: 0 0 3000");
    });
}

#[test]
fn keeps_limit_against_closed_files_and_environment() {
    each_method(3000, |container, _| {
        container.check("init: 0; close: 0; alloc,2000: 0; alloc,1000: 2; info: 0 520 3000");
    });
    let forged = [
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "90000m"),
        ("CUDA_DISABLE_CONTROL", "true"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine"),
    ];
    check_in(&forged, 3000, "init: 0; alloc,2521: 2");
}

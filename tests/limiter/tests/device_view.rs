//! What a container sees of its devices.

use aliquot_limiter_tests::scene::{
    FIRST, SECOND, check, container, container_of, device, each_method, machine, split,
};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, lines};

#[test]
fn shows_only_devices_of_container() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let container = container_of(&machine, method, &[device(SECOND, 3000)]);
        container.check(&format!(
            "init: 0; count: 0 1; total: 0 3000; ninit: 0; ncount: 0 1; \
             nmemory,0: [0, 0] 480 3000; nmemory,1: 2; nuuid,{FIRST}: 6; nuuid,{SECOND}: 0"
        ));
        assert_eq!(machine.process_usage(FIRST).unwrap(), []);
    }
}

#[test]
fn shows_other_devices_beside_lost_one_in_nvml() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        machine.set(FIRST, &[("health", "lost")]).unwrap();
        let check = |uuids: &[&str], expected: &[&str]| {
            let devices: Vec<_> = uuids.iter().map(|uuid| device(uuid, 3000)).collect();
            let container = container_of(&machine, method, &devices);
            let answers = container.client(&["ninit", "ncount", "nmemory,0", "nmemory,1"]);
            assert_eq!(answers.unwrap()[1..], *expected, "{method:?} {uuids:?}");
        };
        let second = "nmemory,1: [0, 0] 0 3000";
        check(&[FIRST, SECOND], &["ncount: 0 2", "nmemory,0: 15", second]);
        let whole = "nmemory,0: [0, 0] 0 3000";
        check(&[SECOND], &["ncount: 0 1", whole, "nmemory,1: 2"]);
    }
}

#[test]
fn reports_nothing_free_without_room_for_context() {
    each_method(3000, |container, _| {
        let beside = container.start(&["init", "alloc,2400"]).unwrap();
        assert_eq!(beside.answers, ["init: 0", "alloc,2400: 0"]);
        container.check("private: 0; info: 0 0 3000; alloc,2: 2");
    });
}

#[test]
fn shows_limit_in_nvml_without_cuda() {
    check(
        3000,
        "ninit: 0; ncount: 0 1; nmemory: [0, 0] 0 3000; nprocesses: 0 0 []",
    );
}

#[test]
fn lists_own_processes_in_nvml_by_container_pids() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let new = || container(&machine, method, 3000);
        let (container, neighbour) = (new(), new());
        // An idle process is in no sample of the driver.
        let words = ["init", "alloc,100", "busy,60000"];
        let other = neighbour.start(&words).unwrap();
        assert_eq!(other.answers, ["init: 0", "alloc,100: 0", "busy,60000: 0"]);
        container.check("init: 0; ninit: 0; nbusy: 0 0 1 0 1 [(1, 0), (1, 0)]");
        container.check("ninit: 0; nsamples: 0 6 0 6 0 [(0, 0), (0, 0)]");
        let second = container.start(&["init", "alloc,20"]).unwrap();
        container.check(
            "init: 0; alloc,100: 0; ninit: 0; nprocesses: 0 2 [580]; nmemory: [0, 0] 1080 3000; \
             info: 0 1920 3000",
        );
        drop(second);
    }
}

#[test]
fn lists_processes_in_the_driver_versions_layout() {
    for (version, kind) in [("535.54.03", "LongInfo"), ("535.98", "Info")] {
        let (_temp, machine) = machine();
        machine.unload().unwrap();
        machine.load(version).unwrap();
        let container = container(&machine, InjectionMethod::Preload, 3000);
        let second = container.start(&["init", "alloc,20"]).unwrap();
        container.check(&format!(
            "init: 0; alloc,100: 0; ninit: 0; nprocesses,0,{kind}: 0 2 [580]"
        ));
        drop(second);
    }
}

#[test]
fn shows_devices_after_query_before_cu_init() {
    each_method(3000, |container, method| {
        let (commands, expected) =
            split("early: 3 3; init: 0; retained,99: 101; count: 0 1; info: 0 2520 3000");
        let output = container.client_command(&commands).output();
        let output = output.expect("the client");
        assert_eq!(lines(&output), expected, "{method:?}");
        // The driver's answers, and no line of ours.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{method:?}");
    });
}

#[test]
fn takes_one_slot_when_nvml_is_reopened() {
    each_method(3000, |container, method| {
        let running = container.start(&["reopen,5"]).expect("the client");
        assert_eq!(running.answers, ["reopen,5: 0"], "{method:?}");
        let processes = container.counters_snapshot().expect("counters").processes;
        assert_eq!(processes.len(), 1, "{method:?} {processes:?}");
    });
}

#[test]
fn shows_parent_gpu_of_mig_instance_in_nvml() {
    let (_temp, machine) = machine();
    machine.set(FIRST, &[("mig", "on")]).expect("MIG");
    let bare = container(&machine, InjectionMethod::NoLimiter, 3000);
    let made = bare.client(&["ninit", "cut"]).expect("an instance");
    let instance = made[1].strip_prefix("cut: 0 ").expect("its uuid");
    assert!(instance.starts_with("MIG-"), "{made:?}");
    for method in INJECTION_METHODS {
        let container = container_of(&machine, method, &[device(instance, 3000)]);
        container.check(&format!(
            "ninit: 0; ncount: 0 1; ninstance: 0 {instance}; nuuid,{instance}: 0; \
             nuuid,{FIRST}: 0; nuuid,{SECOND}: 6"
        ));
    }
}

//! What a container sees of its devices.

use aliquot_limiter_tests::scene::{FIRST, SECOND, check, container, device, each_method, machine};
use aliquot_limiter_tests::{INJECTION_METHODS, InjectionMethod, TestContainer, lines};
use aliquot_region::limits::ContainerLimits;

#[test]
fn shows_only_devices_of_container() {
    for method in INJECTION_METHODS {
        let (_temp, machine) = machine();
        let container = TestContainer::new(
            &machine,
            method,
            ContainerLimits::default(),
            &[device(SECOND, 3000)],
        )
        .unwrap();
        let answers = container
            .client(&[
                "init",
                "count",
                "total",
                "ninit",
                "ncount",
                "nmemory,0",
                "nmemory,1",
                &format!("nuuid,{FIRST}"),
                &format!("nuuid,{SECOND}"),
            ])
            .unwrap();
        let answers: Vec<&str> = answers
            .iter()
            .map(|line| line.split_once(": ").unwrap().1)
            .collect();
        assert_eq!(
            answers,
            [
                "0",
                "0 1",
                "0 3000",
                "0",
                "0 1",
                "[0, 0] 480 3000",
                "2",
                "6",
                "0"
            ],
            "{method:?}"
        );
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
            let container =
                TestContainer::new(&machine, method, ContainerLimits::default(), &devices).unwrap();
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
    each_method(3000, |container, method| {
        let beside = container.start(&["init", "alloc,2400"]).unwrap();
        assert_eq!(beside.answers, ["init: 0", "alloc,2400: 0"]);
        let answers = container.client(&["private", "info", "alloc,2"]).unwrap();
        let expected = ["private: 0", "info: 0 0 3000", "alloc,2: 2"];
        assert_eq!(answers, expected, "{method:?}");
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
        let alone = container.client(&["init", "ninit", "nbusy"]).unwrap();
        assert_eq!(alone[2], "nbusy: 0 0 1 0 1 [(1, 0), (1, 0)]", "{method:?}");
        let none = container.client(&["ninit", "nsamples"]).unwrap();
        assert_eq!(
            none[1], "nsamples: 0 6 0 6 0 [(0, 0), (0, 0)]",
            "{method:?}"
        );
        let second = container.start(&["init", "alloc,20"]).unwrap();
        let answers = container
            .client(&[
                "init",
                "alloc,100",
                "ninit",
                "nprocesses",
                "nmemory",
                "info",
            ])
            .unwrap();
        assert_eq!(
            answers[3..],
            [
                "nprocesses: 0 2 [580]",
                "nmemory: [0, 0] 1080 3000",
                "info: 0 1920 3000"
            ],
            "{method:?}"
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
        let query = format!("nprocesses,0,{kind}");
        let answers = container.client(&["init", "alloc,100", "ninit", &query]);
        assert_eq!(answers.unwrap()[3], format!("{query}: 0 2 [580]"));
        drop(second);
    }
}

#[test]
fn shows_devices_after_query_before_cu_init() {
    each_method(3000, |container, method| {
        let mut client =
            container.client_command(&["early", "init", "retained,99", "count", "info"]);
        let output = client.output().expect("the client");
        let expected = [
            "early: 3 3",
            "init: 0",
            "retained,99: 101",
            "count: 0 1",
            "info: 0 2520 3000",
        ];
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
        let devices = [device(instance, 3000)];
        let container = TestContainer::new(&machine, method, ContainerLimits::default(), &devices)
            .expect("a container");
        let known = format!("nuuid,{instance}");
        let (parent, other) = (format!("nuuid,{FIRST}"), format!("nuuid,{SECOND}"));
        let answers = container.client(&["ninit", "ncount", "ninstance", &known, &parent, &other]);
        let expected = [
            "ninit: 0".to_owned(),
            "ncount: 0 1".to_owned(),
            format!("ninstance: 0 {instance}"),
            format!("{known}: 0"),
            format!("{parent}: 0"),
            format!("{other}: 6"),
        ];
        assert_eq!(answers.expect("answers"), expected, "{method:?}");
    }
}

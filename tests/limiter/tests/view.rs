//! What a container sees of its cards.

use aliquot_limiter_tests::scene::{FIRST, SECOND, check, container, device, machine};
use aliquot_limiter_tests::{Container, WAYS, Way, lines};
use aliquot_region::limits::Container as Rules;

#[test]
fn only_the_cards_of_the_seat_are_seen() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container =
            Container::new(&machine, way, Rules::default(), &[device(SECOND, 3000)]).unwrap();
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
            "{way:?}"
        );
        assert_eq!(machine.holders(FIRST).unwrap(), []);
    }
}

#[test]
fn one_lost_card_hid_all_others_from_nvml() {
    for way in WAYS {
        let (_room, machine) = machine();
        machine.set(FIRST, &[("health", "lost")]).unwrap();
        let check = |uuids: &[&str], expected: &[&str]| {
            let devices: Vec<_> = uuids.iter().map(|uuid| device(uuid, 3000)).collect();
            let container = Container::new(&machine, way, Rules::default(), &devices).unwrap();
            let said = container.client(&["ninit", "ncount", "nmemory,0", "nmemory,1"]);
            assert_eq!(said.unwrap()[1..], *expected, "{way:?} {uuids:?}");
        };
        let second = "nmemory,1: [0, 0] 0 3000";
        check(&[FIRST, SECOND], &["ncount: 0 2", "nmemory,0: 15", second]);
        let whole = "nmemory,0: [0, 0] 0 3000";
        check(&[SECOND], &["ncount: 0 1", whole, "nmemory,1: 2"]);
    }
}

#[test]
fn a_card_without_room_for_the_context_was_called_all_free() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let beside = container.start(&["init", "alloc,2400"]).unwrap();
        assert_eq!(beside.answers, ["init: 0", "alloc,2400: 0"]);
        let said = container.client(&["private", "info", "alloc,2"]).unwrap();
        let expected = ["private: 0", "info: 0 0 3000", "alloc,2: 2"];
        assert_eq!(said, expected, "{way:?}");
    }
}

#[test]
fn nvml_shows_the_limit_to_who_uses_no_cuda() {
    check(
        3000,
        &[
            ("ninit", "0"),
            ("ncount", "0 1"),
            ("nmemory", "[0, 0] 0 3000"),
            ("nprocesses", "0 0 []"),
        ],
    );
}

#[test]
fn nvml_lists_the_processes_of_the_container_by_their_own_ids() {
    for way in WAYS {
        let (_room, machine) = machine();
        let new =
            || Container::new(&machine, way, Rules::default(), &[device(FIRST, 3000)]).unwrap();
        let (container, neighbour) = (new(), new());
        // Who does nothing is in no sample of the driver's.
        let words = ["init", "alloc,100", "busy,60000"];
        let other = neighbour.start(&words).unwrap();
        assert_eq!(other.answers, ["init: 0", "alloc,100: 0", "busy,60000: 0"]);
        let alone = container.client(&["init", "ninit", "nbusy"]).unwrap();
        assert_eq!(alone[2], "nbusy: 0 0 1 0 1 [(1, 0), (1, 0)]", "{way:?}");
        let none = container.client(&["ninit", "nsamples"]).unwrap();
        assert_eq!(none[1], "nsamples: 0 6 0 6 0 [(0, 0), (0, 0)]", "{way:?}");
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
            "{way:?}"
        );
        drop(second);
    }
}

#[test]
fn clients_that_nobody_here_wrote_show_the_share() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpusim/clients.sh");
    for way in WAYS {
        let (_room, machine) = machine();
        let container =
            Container::new(&machine, way, Rules::default(), &[device(FIRST, 3000)]).unwrap();
        for client in ["nvitop", "pynvml"] {
            let mut command = container.command(&[script, client, "/driver"]);
            let home = std::env::var("HOME").unwrap_or_default();
            let output = command.env("HOME", home).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{way:?} {client} {output:?}");
            let share = if client == "nvitop" {
                "0B / 3000MiB"
            } else {
                "\"memory\": 3000, \"used\": 0"
            };
            assert!(said.contains(share), "{way:?} {client} {said}");
            assert!(!said.contains(SECOND), "{way:?} {client} {said}");
        }
    }
}

#[test]
fn a_question_before_cu_init_hid_every_device_for_good() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
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
        assert_eq!(lines(&output), expected, "{way:?}");
        // The driver's answers, and no line of ours.
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{way:?}");
    }
}

#[test]
fn each_time_that_nvml_was_opened_and_closed_took_a_slot() {
    for way in WAYS {
        let (_room, machine) = machine();
        let container = container(&machine, way, 3000);
        let running = container.start(&["reopen,5"]).expect("the client");
        assert_eq!(running.answers, ["reopen,5: 0"], "{way:?}");
        let held = container.report().expect("counters").holders;
        assert_eq!(held.len(), 1, "{way:?} {held:?}");
    }
}

#[test]
fn nvml_showed_no_card_to_who_has_a_share_of_an_instance() {
    let (_room, machine) = machine();
    machine.set(FIRST, &[("mig", "on")]).expect("MIG");
    let bare = container(&machine, Way::Bare, 3000);
    let made = bare.client(&["ninit", "cut"]).expect("an instance");
    let instance = made[1].strip_prefix("cut: 0 ").expect("its uuid");
    assert!(instance.starts_with("MIG-"), "{made:?}");
    for way in WAYS {
        let devices = [device(instance, 3000)];
        let container =
            Container::new(&machine, way, Rules::default(), &devices).expect("a container");
        let known = format!("nuuid,{instance}");
        let (parent, other) = (format!("nuuid,{FIRST}"), format!("nuuid,{SECOND}"));
        let said = container.client(&["ninit", "ncount", "ninstance", &known, &parent, &other]);
        let expected = [
            "ninit: 0".to_owned(),
            "ncount: 0 1".to_owned(),
            format!("ninstance: 0 {instance}"),
            format!("{known}: 0"),
            format!("{parent}: 0"),
            format!("{other}: 6"),
        ];
        assert_eq!(said.expect("answers"), expected, "{way:?}");
    }
}

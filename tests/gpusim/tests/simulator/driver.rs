//! The product's driver library over the simulated driver.

use std::time::{Duration, Instant};

use aliquot_core::Mib;
use aliquot_gpusim::place;
use aliquot_nvml::{Driver, Event, Health, Inventory, Mig, Nvml, NvmlError, Options};

use crate::common::{TWO_A100, on_machine};

const SOON: Duration = Duration::from_millis(20);
const PATIENTLY: Duration = Duration::from_secs(20);

fn options() -> Options {
    Options {
        library: place::library_path().unwrap().into(),
        ..Options::default()
    }
}

fn open() -> Nvml {
    Nvml::open(options()).unwrap()
}

fn health(driver: &Nvml) -> Vec<Health> {
    driver
        .health()
        .unwrap()
        .into_iter()
        .map(|card| card.health)
        .collect()
}

fn uuids(inventory: &Inventory) -> Vec<String> {
    inventory
        .cards
        .iter()
        .map(|card| card.uuid.clone())
        .collect()
}

fn xid(uuid: &str, code: u64, ignored: bool) -> Event {
    Event::Xid {
        uuid: uuid.to_owned(),
        code,
        ignored,
    }
}

#[test]
fn the_inventory_holds_every_fact_of_two_joined_a100s() {
    on_machine(
        "driver::the_inventory_holds_every_fact_of_two_joined_a100s",
        TWO_A100,
        |machine| {
            let shown = machine.show().unwrap();
            let inventory = open().inventory().unwrap();
            assert_eq!(inventory.driver_version, "580.82.07");
            assert_eq!(inventory.cuda_version, Some((13, 0)));
            assert_eq!(inventory.notes, []);
            assert_eq!(inventory.cards.len(), 2);
            let uuids = uuids(&inventory);
            for (place, card) in inventory.cards.iter().enumerate() {
                assert_eq!(card.uuid, shown["gpus"][place]["uuid"]);
                assert_eq!(usize::try_from(card.index).unwrap(), place);
                assert_eq!(card.minor, Some(card.index));
                assert_eq!(
                    card.pci_bus_id.as_deref(),
                    shown["gpus"][place]["pci"].as_str()
                );
                assert_eq!(card.model, "NVIDIA A100-SXM4-80GB");
                assert_eq!((card.memory, card.reserved), (Mib(81_920), Some(Mib(634))));
                assert_eq!(card.compute_capability, Some((8, 0)));
                assert_eq!(card.numa, Some(0));
                assert_eq!(
                    card.mig,
                    Mig {
                        capable: true,
                        enabled: false,
                        pending: false
                    }
                );
                let links: Vec<_> = card.links.iter().collect();
                assert_eq!(links, [(&uuids[1 - place], &1220)]);
            }
        },
    );
}

#[test]
fn cards_of_many_kinds_differ_in_mig_numa_and_links() {
    let yaml = "
gpus:
  - {model: NVIDIA H200, set: {mig: on}}
  - {count: 2, model: NVIDIA L40S, numa: 1}
  - {model: Tesla T4, numa: -1}
links:
  - {gpus: [1, 2], level: single, nvlinks: 4}
";
    on_machine(
        "driver::cards_of_many_kinds_differ_in_mig_numa_and_links",
        yaml,
        |_| {
            let inventory = open().inventory().unwrap();
            assert_eq!(inventory.notes, []);
            let uuids = uuids(&inventory);
            let cards = &inventory.cards;
            let mig = |on| Mig {
                capable: on,
                enabled: on,
                pending: on,
            };
            assert_eq!(
                cards.iter().map(|c| c.mig).collect::<Vec<_>>(),
                [true, false, false, false].map(mig)
            );
            assert_eq!(
                cards.iter().map(|c| c.numa).collect::<Vec<_>>(),
                [Some(0), Some(1), Some(1), None]
            );
            assert_eq!(cards[1].links[&uuids[2]], 450);
            assert_eq!(cards[2].links[&uuids[1]], 450);
            assert_eq!(cards[0].links[&uuids[1]], 10);
            assert_eq!(cards[3].memory, Mib(15_360));
        },
    );
}

#[test]
fn a_lost_card_takes_no_other_with_it_and_may_come_back() {
    on_machine(
        "driver::a_lost_card_takes_no_other_with_it_and_may_come_back",
        TWO_A100,
        |machine| {
            let driver = open();
            let whole = driver.inventory().unwrap();
            machine.set("0", &[("health", "lost")]).unwrap();

            let now = health(&driver);
            assert!(
                matches!(
                    &now[..],
                    [Health::Lost(_), Health::Ok] | [Health::Ok, Health::Lost(_)]
                ),
                "{now:?}"
            );
            let inventory = driver.inventory().unwrap();
            assert_eq!(uuids(&inventory), uuids(&whole), "remembered");
            assert_eq!(inventory.notes.len(), 1);
            assert_eq!(inventory.notes[0].card.as_deref(), Some("index 0"));

            let late = open().inventory().unwrap();
            assert_eq!(
                uuids(&late),
                uuids(&whole)[1..],
                "who never saw it lists the rest"
            );

            machine.set("0", &[("health", "ok")]).unwrap();
            assert_eq!(health(&driver), [Health::Ok, Health::Ok]);
        },
    );
}

#[test]
fn a_critical_error_makes_a_card_sick_until_the_driver_asks_for_nothing_more() {
    let name = "driver::a_critical_error_makes_a_card_sick_until_the_driver_asks_for_nothing_more";
    on_machine(name, TWO_A100, |machine| {
        let driver = open();
        let uuid = uuids(&driver.inventory().unwrap())[1].clone();
        assert_eq!(driver.wait_events(SOON).unwrap(), []);

        machine.xid("1", 31).unwrap();
        assert_eq!(
            driver.wait_events(PATIENTLY).unwrap(),
            [xid(&uuid, 31, true)]
        );
        assert_eq!(health(&driver), [Health::Ok, Health::Ok]);

        machine.xid("1", 48).unwrap();
        machine.xid("1", 13).unwrap();
        let told = driver.wait_events(PATIENTLY).unwrap();
        assert_eq!(told, [xid(&uuid, 48, false), xid(&uuid, 13, true)]);
        let sick = |health: &[Health]| health.iter().filter(|h| **h == Health::Xid(48)).count();
        assert_eq!(sick(&health(&driver)), 1);
        let restarted = health(&open());
        assert!(
            restarted.contains(&Health::RecoveryAsked(1)),
            "{restarted:?}"
        );

        machine.set("1", &[("health", "ok")]).unwrap();
        assert_eq!(health(&driver), [Health::Ok, Health::Ok]);
    });
}

#[test]
fn an_error_for_which_the_driver_asks_nothing_stays_until_the_card_was_away() {
    on_machine(
        "driver::an_error_for_which_the_driver_asks_nothing_stays_until_the_card_was_away",
        TWO_A100,
        |machine| {
            let driver = open();
            driver.wait_events(SOON).unwrap();
            machine.xid("0", 94).unwrap();
            assert_eq!(driver.wait_events(PATIENTLY).unwrap().len(), 1);
            for _ in 0..2 {
                assert!(health(&driver).contains(&Health::Xid(94)));
            }
            machine.set("0", &[("health", "lost")]).unwrap();
            assert!(!health(&driver).contains(&Health::Xid(94)));
            machine.set("0", &[("health", "ok")]).unwrap();
            assert_eq!(health(&driver), [Health::Ok, Health::Ok]);
        },
    );
}

#[test]
fn waiting_wakes_at_once_when_another_process_reports_an_error() {
    let name = "driver::waiting_wakes_at_once_when_another_process_reports_an_error";
    on_machine(name, TWO_A100, |machine| {
        let driver = open();
        driver.wait_events(SOON).unwrap();
        let mut reporter = std::process::Command::new(env!("CARGO_BIN_EXE_gpusim"))
            .args(["xid", "0", "79"])
            .env(aliquot_gpusim::STATE_VARIABLE, machine.state())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let told = driver.wait_events(PATIENTLY).unwrap();
        assert!(
            matches!(
                &told[..],
                [Event::Xid {
                    code: 79,
                    ignored: false,
                    ..
                }]
            ),
            "{told:?}"
        );
        assert!(began.elapsed() < PATIENTLY / 2);
        assert!(reporter.wait().unwrap().success());
    });
}

#[test]
fn a_card_lost_while_waiting_is_told_once_and_the_others_are_still_heard() {
    let name = "driver::a_card_lost_while_waiting_is_told_once_and_the_others_are_still_heard";
    on_machine(name, TWO_A100, |machine| {
        let driver = open();
        let uuids = uuids(&driver.inventory().unwrap());
        driver.wait_events(SOON).unwrap();
        let told = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| driver.wait_events(PATIENTLY).unwrap());
            machine.set("0", &[("health", "lost")]).unwrap();
            waiter.join().unwrap()
        });
        assert_eq!(
            told,
            [Event::Lost {
                uuid: uuids[0].clone()
            }]
        );
        assert_eq!(driver.wait_events(SOON).unwrap(), []);

        machine.xid("1", 63).unwrap();
        assert_eq!(
            driver.wait_events(PATIENTLY).unwrap(),
            [xid(&uuids[1], 63, false)]
        );

        machine.set("0", &[("health", "ok")]).unwrap();
        assert_eq!(driver.wait_events(SOON).unwrap(), []);
        machine.xid("0", 31).unwrap();
        assert_eq!(
            driver.wait_events(PATIENTLY).unwrap(),
            [xid(&uuids[0], 31, true)]
        );
    });
}

#[test]
fn waiting_with_every_card_lost_keeps_to_its_time() {
    on_machine(
        "driver::waiting_with_every_card_lost_keeps_to_its_time",
        TWO_A100,
        |machine| {
            let driver = open();
            driver.inventory().unwrap();
            machine.set("0", &[("health", "lost")]).unwrap();
            machine.set("1", &[("health", "lost")]).unwrap();
            let began = Instant::now();
            assert_eq!(driver.wait_events(SOON).unwrap(), []);
            assert!(began.elapsed() >= SOON);
        },
    );
}

#[test]
fn a_machine_without_cards_has_an_empty_inventory() {
    on_machine(
        "driver::a_machine_without_cards_has_an_empty_inventory",
        "gpus: []",
        |_| {
            let driver = open();
            assert_eq!(driver.inventory().unwrap().cards, []);
            assert_eq!(driver.health().unwrap(), []);
            assert_eq!(driver.wait_events(SOON).unwrap(), []);
        },
    );
}

#[test]
fn opening_fails_with_the_reason_where_no_driver_is_loaded() {
    let check = |options: Options, reason: &str| {
        let error = Nvml::open(options).err().unwrap();
        let NvmlError::Open { library, source } = &error else {
            panic!("{error}");
        };
        assert!(source.to_string().contains(reason), "{source}");
        assert!(error.to_string().contains(library), "{error}");
    };
    check(options(), "driver is not loaded");
    let library = "/nowhere/libnvidia-ml.so.1".into();
    check(
        Options {
            library,
            ..Options::default()
        },
        "a libloading error",
    );
}

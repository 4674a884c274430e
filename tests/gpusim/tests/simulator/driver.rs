//! The product's driver library over the simulated driver.

use std::time::{Duration, Instant};

use aliquot_core::Mib;
use aliquot_gpusim::place;
use aliquot_nvml::{
    Driver, DriverHealth, DriverInventory, GpuEvent, MigMode, Nvml, NvmlError, Options,
    UnfinishedRegistration,
};

use crate::common::{TWO_A100, on_machine};

const SOON: Duration = Duration::from_millis(20);
const PATIENTLY: Duration = Duration::from_secs(20);

pub(crate) fn options() -> Options {
    Options {
        library: place::library_path().unwrap().into(),
        // Errors of the GPU here.
        xids: "63=reset-gpu,94=reset-gpu".parse().unwrap(),
    }
}

/// The driver as the product opens it.
pub(crate) fn open() -> Nvml {
    Nvml::open(options()).unwrap()
}

fn health(driver: &Nvml) -> Vec<DriverHealth> {
    driver
        .health()
        .unwrap()
        .into_iter()
        .map(|gpu| gpu.health)
        .collect()
}

fn uuids(inventory: &DriverInventory) -> Vec<String> {
    inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
}

fn xid(uuid: &str, code: u64, ignored: bool) -> GpuEvent {
    GpuEvent::Xid {
        uuid: uuid.to_owned(),
        code,
        ignored,
    }
}

#[test]
fn inventory_lists_every_fact_of_two_linked_a100s() {
    on_machine(TWO_A100, |machine| {
        let shown = machine.show().unwrap();
        let inventory = open().inventory().unwrap();
        assert_eq!(inventory.driver_version, "580.82.07");
        assert_eq!(inventory.notes, []);
        assert_eq!(inventory.gpus.len(), 2);
        let uuids = uuids(&inventory);
        for (place, gpu) in inventory.gpus.iter().enumerate() {
            assert_eq!(gpu.uuid, shown["gpus"][place]["uuid"]);
            assert_eq!(usize::try_from(gpu.index).unwrap(), place);
            assert_eq!(gpu.minor, Some(gpu.index));
            assert_eq!(
                gpu.pci_bus_id.as_deref(),
                shown["gpus"][place]["pci"].as_str()
            );
            assert_eq!(gpu.model, "NVIDIA A100-SXM4-80GB");
            assert_eq!((gpu.memory, gpu.reserved), (Mib(81_920), Some(Mib(634))));
            assert_eq!(gpu.usable(), Mib(81_286));
            assert_eq!(gpu.compute_capability, Some((8, 0)));
            assert_eq!(gpu.numa, Some(0));
            assert_eq!(
                gpu.mig,
                MigMode {
                    capable: true,
                    enabled: false
                }
            );
            let links: Vec<_> = gpu.links.iter().collect();
            assert_eq!(links, [(&uuids[1 - place], &1220)]);
        }
    });
}

#[test]
fn inventory_lists_mig_numa_and_links_of_mixed_models() {
    let yaml = "
gpus:
  - {model: NVIDIA H200, set: {mig: on}}
  - {count: 2, model: NVIDIA L40S, numa: 1}
  - {model: Tesla T4, numa: -1}
links:
  - {gpus: [1, 2], nvlinks: 4}
";
    on_machine(yaml, |_| {
        let inventory = open().inventory().unwrap();
        assert_eq!(inventory.notes, []);
        let uuids = uuids(&inventory);
        let gpus = &inventory.gpus;
        let mig = |on| MigMode {
            capable: on,
            enabled: on,
        };
        assert_eq!(
            gpus.iter().map(|c| c.mig).collect::<Vec<_>>(),
            [true, false, false, false].map(mig)
        );
        assert_eq!(
            gpus.iter().map(|c| c.numa).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(1), None]
        );
        assert_eq!(gpus[1].links[&uuids[2]], 420);
        assert_eq!(gpus[2].links[&uuids[1]], 420);
        assert_eq!(gpus[0].links[&uuids[1]], 10);
        assert_eq!(gpus[3].memory, Mib(15_360));
    });
}

#[test]
fn lost_gpu_leaves_others_healthy_and_may_return() {
    on_machine(TWO_A100, |machine| {
        let driver = open();
        let whole = driver.inventory().unwrap();
        machine.set("0", &[("health", "lost")]).unwrap();

        let now = health(&driver);
        assert!(
            matches!(
                &now[..],
                [DriverHealth::Lost(_), DriverHealth::Ok]
                    | [DriverHealth::Ok, DriverHealth::Lost(_)]
            ),
            "{now:?}"
        );
        let inventory = driver.inventory().unwrap();
        assert_eq!(uuids(&inventory), uuids(&whole), "remembered");
        assert_eq!(inventory.notes.len(), 1);
        assert_eq!(inventory.notes[0].gpu, "index 0");

        let late = open().inventory().unwrap();
        assert_eq!(
            uuids(&late),
            uuids(&whole)[1..],
            "who never saw it lists the rest"
        );

        machine.set("0", &[("health", "ok")]).unwrap();
        assert_eq!(health(&driver), [DriverHealth::Ok, DriverHealth::Ok]);
    });
}

#[test]
fn critical_xid_makes_gpu_unhealthy_until_driver_clears_it() {
    on_machine(TWO_A100, |machine| {
        let driver = open();
        let uuid = uuids(&driver.inventory().unwrap())[1].clone();
        assert_eq!(driver.wait_events(SOON).unwrap(), []);

        machine.xid("1", 31).unwrap();
        assert_eq!(
            driver.wait_events(PATIENTLY).unwrap(),
            [xid(&uuid, 31, true)]
        );
        assert_eq!(health(&driver), [DriverHealth::Ok, DriverHealth::Ok]);

        machine.xid("1", 48).unwrap();
        machine.xid("1", 13).unwrap();
        let events = driver.wait_events(PATIENTLY).unwrap();
        assert_eq!(events, [xid(&uuid, 48, false), xid(&uuid, 13, true)]);
        let unhealthy = |health: &[DriverHealth]| {
            health
                .iter()
                .filter(|h| **h == DriverHealth::Xid(48))
                .count()
        };
        assert_eq!(unhealthy(&health(&driver)), 1);
        let restarted = health(&open());
        assert!(
            restarted.contains(&DriverHealth::RecoveryRequested(1)),
            "{restarted:?}"
        );

        machine.set("1", &[("health", "ok")]).unwrap();
        assert_eq!(health(&driver), [DriverHealth::Ok, DriverHealth::Ok]);
    });
}

#[test]
fn keeps_xid_without_recovery_action_until_gpu_is_lost() {
    on_machine(TWO_A100, |machine| {
        let driver = open();
        driver.wait_events(SOON).unwrap();
        machine.xid("0", 94).unwrap();
        assert_eq!(driver.wait_events(PATIENTLY).unwrap().len(), 1);
        for _ in 0..2 {
            assert!(health(&driver).contains(&DriverHealth::Xid(94)));
        }
        machine.set("0", &[("health", "lost")]).unwrap();
        assert!(!health(&driver).contains(&DriverHealth::Xid(94)));
        machine.set("0", &[("health", "ok")]).unwrap();
        assert_eq!(health(&driver), [DriverHealth::Ok, DriverHealth::Ok]);
    });
}

#[test]
fn gpu_is_unhealthy_until_its_fabric_is_ready() {
    let yaml = "
gpus:
  - {model: NVIDIA H200, uuids: [GPU-a], set: {fabric: notStarted, mig: on}}
  - {model: NVIDIA H200, uuids: [GPU-b]}
";
    on_machine(yaml, |machine| {
        let driver = open();
        driver.create_instance("GPU-a", "1g.18gb", 0).unwrap();
        let check = |own: DriverHealth| {
            assert_eq!(health(&driver), [own.clone(), own, DriverHealth::Ok]);
        };
        let not_ready = DriverHealth::FabricNotReady;
        check(not_ready(UnfinishedRegistration::NotStarted));
        for (state, registration) in [
            ("inProgress", UnfinishedRegistration::InProgress),
            ("failed", UnfinishedRegistration::Failed(23)),
        ] {
            machine.set("0", &[("fabric", state)]).unwrap();
            check(not_ready(registration));
        }
        machine.set("0", &[("fabric", "completed")]).unwrap();
        check(DriverHealth::Ok);
        // An error comes first.
        machine.set("0", &[("fabric", "inProgress")]).unwrap();
        machine.xid("0", 79).unwrap();
        check(DriverHealth::RecoveryRequested(2));
    });
}

#[test]
fn reports_lost_gpu_once_and_still_watches_the_others() {
    on_machine(TWO_A100, |machine| {
        let driver = open();
        let uuids = uuids(&driver.inventory().unwrap());
        driver.wait_events(SOON).unwrap();
        let events = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| driver.wait_events(PATIENTLY).unwrap());
            machine.set("0", &[("health", "lost")]).unwrap();
            waiter.join().unwrap()
        });
        assert_eq!(
            events,
            [GpuEvent::Lost {
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
fn waits_full_timeout_when_every_gpu_is_lost() {
    on_machine(TWO_A100, |machine| {
        let driver = open();
        driver.inventory().unwrap();
        machine.set("0", &[("health", "lost")]).unwrap();
        machine.set("1", &[("health", "lost")]).unwrap();
        let began = Instant::now();
        assert_eq!(driver.wait_events(SOON).unwrap(), []);
        assert!(began.elapsed() >= SOON);
    });
}

#[test]
fn machine_without_gpus_has_an_empty_inventory() {
    on_machine("gpus: []", |_| {
        let driver = open();
        assert_eq!(driver.inventory().unwrap().gpus, []);
        assert_eq!(driver.health().unwrap(), []);
        assert_eq!(driver.wait_events(SOON).unwrap(), []);
    });
}

#[test]
fn open_fails_with_the_reason_without_a_driver() {
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

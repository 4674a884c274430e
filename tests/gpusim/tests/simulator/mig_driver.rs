//! MIG through the product's driver library: geometry, creating and destroying instances, errors of
//! one instance.

use std::time::Duration;

use aliquot_core::mig::table;
use aliquot_gpusim::{SimulatedMachine, catalog};
use aliquot_nvml::{Driver, DriverHealth, GpuEvent, MigError, Nvml};

use crate::common::{name_of, run_test};
use crate::driver::open;

const PATIENTLY: Duration = Duration::from_secs(20);
const A100: &str = "gpus: [{model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a], set: {mig: on}}]";

fn check<F: FnOnce(&SimulatedMachine, &Nvml)>(yaml: &str, body: F) {
    run_test(&name_of::<F>(), yaml, &[], |machine| body(machine, &open()));
}

/// `profile@start` of each instance.
fn there(driver: &Nvml) -> String {
    let layout = driver.mig_layout("GPU-a").unwrap();
    let all = layout.instances.iter();
    let all: Vec<_> = all
        .map(|one| format!("{}@{}", one.profile, one.start))
        .collect();
    all.join(" ")
}

#[test]
fn reads_geometry_and_placements_of_every_model() {
    let models = catalog::MODELS.iter().filter(|model| model.mig);
    let models: Vec<_> = models
        .map(|model| format!("{{model: {}, set: {{mig: on}}}}", model.name))
        .collect();
    let yaml = format!("gpus: [{}]", models.join(", "));
    check(&yaml, |_, driver| {
        let inventory = driver.inventory().unwrap();
        assert_eq!(inventory.notes, []);
        assert_eq!(inventory.gpus.len(), models.len());
        for gpu in inventory.gpus {
            let read = gpu.layout.geometry.unwrap();
            let planned = table::geometry(&gpu.model).unwrap();
            for profile in planned.profiles() {
                let at = read.find(&profile.name).expect(&profile.name);
                let mut found = read.profiles()[at].clone();
                // The planning table has nominal memory; a driver reports a little less.
                assert!(
                    found.memory < profile.memory && found.memory.0 * 10 > profile.memory.0 * 8
                );
                found.memory = profile.memory;
                assert_eq!(found, *profile, "{}", gpu.model);
            }
        }
    });
}

#[test]
fn creates_lists_and_destroys_instances_by_placement() {
    check(A100, |_, driver| {
        for (profile, start) in [
            ("1g.5gb", 6),
            ("1g.5gb", 5),
            ("2g.10gb", 2),
            ("1g.5gb+me", 4),
        ] {
            let made = driver.create_instance("GPU-a", profile, start).unwrap();
            assert_eq!((made.profile.as_str(), made.start), (profile, start));
            assert!(made.device().unwrap().uuid.starts_with("MIG-"));
        }
        assert_eq!(there(driver), "2g.10gb@2 1g.5gb+me@4 1g.5gb@5 1g.5gb@6");
        let inventory = driver.inventory().unwrap();
        assert_eq!(
            inventory.gpus[0].layout,
            driver.mig_layout("GPU-a").unwrap()
        );
        driver.destroy_instance("GPU-a", 4).unwrap();
        assert_eq!(there(driver), "1g.5gb+me@4 1g.5gb@5 1g.5gb@6");
        driver.create_instance("GPU-a", "3g.20gb", 0).unwrap();
    });
}

#[test]
fn failed_creation_reports_reason_and_leaves_nothing() {
    check(A100, |machine, driver| {
        let refused = |profile: &str, start| {
            let error = driver.create_instance("GPU-a", profile, start).unwrap_err();
            error.to_string()
        };
        driver.create_instance("GPU-a", "4g.20gb", 0).unwrap();
        assert!(
            refused("1g.5gb", 3).contains("cannot create MIG instance 1g.5gb at memory slice 3")
        );
        assert!(refused("5g.1gb", 3).contains("it has 1g.5gb, "));
        assert!(
            refused("3g.20gb", 2).contains("cannot create MIG instance 3g.20gb at memory slice 2")
        );

        machine.set("0", &[("cutFaults", "1")]).unwrap();
        let error = driver.create_instance("GPU-a", "3g.20gb", 4).unwrap_err();
        assert!(
            matches!(error, MigError::Compute { left: None, .. }),
            "{error}"
        );
        assert_eq!(there(driver), "4g.20gb@0");
        driver.create_instance("GPU-a", "3g.20gb", 4).unwrap();
        assert!(driver.mig_layout("GPU-b").is_err());
    });
}

#[test]
fn xid_of_one_instance_leaves_gpu_and_others_healthy() {
    check(A100, |machine, driver| {
        let made = [0, 4].map(|start| driver.create_instance("GPU-a", "3g.20gb", start).unwrap());
        let uuids = made
            .each_ref()
            .map(|one| one.device().unwrap().uuid.clone());
        driver.inventory().unwrap();
        driver.wait_events(Duration::ZERO).unwrap();
        let with_health = |wanted: &DriverHealth| {
            let health = driver.health().unwrap().into_iter();
            let with_health = health.filter(|one| one.health == *wanted);
            with_health.map(|one| one.uuid).collect::<Vec<_>>()
        };
        machine.xid_of("0", 94, (made[1].id, 0)).unwrap();
        let events = driver.wait_events(PATIENTLY).unwrap();
        let ignored = false;
        let uuid = uuids[1].clone();
        assert_eq!(
            events,
            [GpuEvent::Xid {
                uuid,
                code: 94,
                ignored
            }]
        );
        assert_eq!(with_health(&DriverHealth::Xid(94)), [uuids[1].clone()]);
        assert_eq!(
            with_health(&DriverHealth::Ok),
            ["GPU-a".to_owned(), uuids[0].clone()]
        );

        // The owner clears the error.
        driver.clear_errors(&uuids[1]);
        assert_eq!(
            with_health(&DriverHealth::Ok).len(),
            3,
            "one instance was never cleared"
        );

        // An instance created since the GPU was read.
        driver.destroy_instance("GPU-a", made[0].id).unwrap();
        let new = driver.create_instance("GPU-a", "1g.5gb", 0).unwrap();
        let uuid = new.device().unwrap().uuid.clone();
        machine.xid_of("0", 94, (new.id, 0)).unwrap();
        let events = driver.wait_events(PATIENTLY).unwrap();
        assert_eq!(
            events,
            [GpuEvent::Xid {
                uuid: uuid.clone(),
                code: 94,
                ignored
            }]
        );
        assert!(with_health(&DriverHealth::Xid(94)).contains(&uuid));

        // An error of the GPU affects every instance.
        machine.xid("0", 79).unwrap();
        driver.wait_events(PATIENTLY).unwrap();
        assert_eq!(with_health(&DriverHealth::Xid(79)).len(), 3);
        driver.clear_errors("GPU-a");
        assert_eq!(with_health(&DriverHealth::Xid(79)).len(), 0);

        // An XID during the switch of MIG is reported after it.
        machine.xid("0", 94).unwrap();
        driver.set_mig("GPU-a", true).unwrap();
        assert_eq!(driver.wait_events(PATIENTLY).unwrap().len(), 1);
    });
}

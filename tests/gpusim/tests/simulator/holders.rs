//! Who has the driver open: it is unloaded, and a GPU reset, only when no other process has, and the
//! product's processes close it for that.

use std::time::Duration;

use aliquot_gpusim::{SimulatedMachine, place};
use aliquot_nvml::{
    Activation, ClosedReason, Driver as _, DriverAccess, Nvml, ReleasableNvml, Usage as _,
};

use crate::common::{Started, name_of, role, run_test, start_with, until};
use crate::driver::{open, options};

const A100: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a, GPU-b]}]";
const NEWER: &str = "590.44.01";
const PATIENCE: Duration = Duration::from_mins(1);

fn access(machine: &SimulatedMachine) -> DriverAccess {
    DriverAccess::new(machine.state().parent().unwrap())
}

/// The driver as the monitor has it.
fn releasable(machine: &SimulatedMachine) -> ReleasableNvml {
    let library = place::library_path().unwrap();
    ReleasableNvml::new(&library, None, access(machine))
}

/// A process that has the driver open and sees these GPUs, until it is killed: it closes the driver
/// on request if it `releases` it.
struct Client(Started);

impl Client {
    fn start(role: &str, visible: &str, machine: &SimulatedMachine) -> Self {
        let client = Self(start_with(role, &[("NVIDIA_VISIBLE_DEVICES", visible)]));
        until("it is open", || client.has_driver_open(machine));
        client
    }

    fn has_driver_open(&self, machine: &SimulatedMachine) -> bool {
        let holders = machine.holders().unwrap();
        holders.iter().any(|one| one.pid == self.0.id())
    }

    fn name(&self, machine: &SimulatedMachine) -> String {
        let holders = machine.holders().unwrap();
        let own = holders.iter().find(|one| one.pid == self.0.id());
        own.unwrap().to_string()
    }
}

/// Runs `body` as [`on_machine`](crate::common::on_machine) does, or this process's part as its
/// [`Client`].
fn check<F: FnOnce(&SimulatedMachine)>(body: F) {
    run_test(&name_of::<F>(), A100, &[], |machine| {
        access(machine).create().unwrap();
        let Some(role) = role() else {
            return body(machine);
        };
        let releasable = releasable(machine);
        loop {
            let open = releasable.open_or_release();
            assert!(role == "releases" || open.is_ok());
            if role == "releases" {
                std::thread::park_timeout(Duration::from_millis(10));
            } else {
                std::thread::park();
            }
        }
    });
}

#[test]
fn driver_unloads_only_while_nobody_has_it_open() {
    check(|machine| {
        let own = open();
        let client = Client::start("stays", "GPU-b", machine);
        let error = machine.unload().unwrap_err().to_string();
        let expected = format!("in use by another client: {}", client.name(machine));
        assert_eq!(error, expected);
        machine.load(NEWER).unwrap_err();
        drop(client);
        drop(own);

        machine.unload().unwrap();
        machine.unload().unwrap_err();
        assert!(machine.holders().unwrap().is_empty());
        let closed = Nvml::open(options());
        let error = closed.err().unwrap().to_string();
        assert!(error.contains("driver is not loaded"), "{error}");
        machine.load(NEWER).unwrap();
        assert_eq!(open().inventory().unwrap().driver_version, NEWER);
    });
}

#[test]
fn resets_only_gpus_that_no_other_process_has_open() {
    check(|machine| {
        let client = Client::start("stays", "GPU-b", machine);
        let driver = open();
        assert_eq!(driver.set_mig("GPU-a", true).unwrap(), Activation::Now);
        machine.reset("GPU-a").unwrap();
        assert_eq!(driver.set_mig("GPU-b", true).unwrap(), Activation::AtReset);
        let error = machine.reset("GPU-b").unwrap_err().to_string();
        assert!(error.contains(&client.name(machine)), "{error}");
        drop(client);
        machine.reset("GPU-b").unwrap();
        assert!(driver.mig_layout("GPU-b").unwrap().geometry.is_some());
    });
}

#[test]
fn monitor_closes_driver_for_a_change_of_mig_mode() {
    check(|machine| {
        let client = Client::start("releases", "all", machine);
        let driver = open();
        let alone = access(machine).request(PATIENCE).unwrap();
        assert!(alone.is_alone());
        assert_eq!(driver.set_mig("GPU-a", true).unwrap(), Activation::Now);
        let second = releasable(machine);
        let refused = second.open_or_release();
        assert!(
            matches!(refused, Err(ClosedReason::Requested)),
            "{refused:?}"
        );
        drop(alone);
        // It opens the driver again.
        until("it is open again", || client.has_driver_open(machine));
        second.open_or_release().unwrap();
        assert_eq!(second.gpus().unwrap().gpus.len(), 2);
    });
}

#[test]
fn monitor_opens_driver_that_is_loaded_after_its_start() {
    check(|machine| {
        machine.unload().unwrap();
        let monitor = releasable(machine);
        let reason = monitor.open_or_release().unwrap_err().to_string();
        assert!(reason.contains("driver is not loaded"), "{reason}");
        machine.load(NEWER).unwrap();
        until("it opens", || monitor.open_or_release().is_ok());
        assert_eq!(monitor.gpus().unwrap().driver_version, NEWER);
    });
}

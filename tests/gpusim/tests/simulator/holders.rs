//! Who has the driver open: it is unloaded, and a GPU reset, only when no other process has, and the
//! product's processes close it for that.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_nvml::{
    Activation, ClosedReason, Driver as _, DriverAccess, Nvml, Options, ReleasableNvml,
};

use crate::common::on_machine;

const A100: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a, GPU-b]}]";
const NEWER: &str = "590.44.01";
const PATIENCE: Duration = Duration::from_mins(1);
/// What the second process of a test does.
const ROLE: &str = "ALIQUOT_TEST_ROLE";

fn nvml() -> Nvml {
    Nvml::open(Options {
        library: place::library_path().unwrap().into(),
        ..Options::default()
    })
    .unwrap()
}

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
struct Client(Child);

impl Client {
    fn start(test: &str, role: &str, visible: &str, machine: &SimulatedMachine) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command
            .env(ROLE, role)
            .env(STATE_VARIABLE, machine.state())
            .env("NVIDIA_VISIBLE_DEVICES", visible);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let client = Self(child);
        wait(|| client.has_driver_open(machine));
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

impl Drop for Client {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn wait(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline);
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Runs `body` as [`on_machine`] does, or this process's part as its [`Client`].
fn check(name: &str, body: impl FnOnce(&str, &SimulatedMachine)) {
    let name = format!("holders::{name}");
    on_machine(&name, A100, |machine| {
        access(machine).create().unwrap();
        let Ok(role) = std::env::var(ROLE) else {
            return body(&name, machine);
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
    check(
        "driver_unloads_only_while_nobody_has_it_open",
        |name, machine| {
            let own = nvml();
            let client = Client::start(name, "stays", "GPU-b", machine);
            let error = machine.unload().unwrap_err().to_string();
            let expected = format!("in use by another client: {}", client.name(machine));
            assert_eq!(error, expected);
            machine.load(NEWER).unwrap_err();
            drop(client);
            drop(own);

            machine.unload().unwrap();
            machine.unload().unwrap_err();
            assert!(machine.holders().unwrap().is_empty());
            let closed = Nvml::open(Options {
                library: place::library_path().unwrap().into(),
                ..Options::default()
            });
            let error = closed.err().unwrap().to_string();
            assert!(error.contains("driver is not loaded"), "{error}");
            machine.load(NEWER).unwrap();
            assert_eq!(nvml().inventory().unwrap().driver_version, NEWER);
        },
    );
}

#[test]
fn driver_upgrade_leaves_processes_of_other_nodes_alone() {
    check(
        "driver_upgrade_leaves_processes_of_other_nodes_alone",
        |name, machine| {
            let folder = machine.state().with_file_name("other");
            std::fs::create_dir(&folder).unwrap();
            let other = SimulatedMachine::create(&folder.join("state"), A100).unwrap();
            let before = other.show().unwrap()["driver"].clone();
            let client = Client::start(name, "stays", "all", &other);
            machine.unload().unwrap();
            machine.load(NEWER).unwrap();
            assert_eq!(nvml().inventory().unwrap().driver_version, NEWER);
            assert!(client.has_driver_open(&other));
            let error = other.unload().unwrap_err().to_string();
            assert!(error.ends_with(&client.name(&other)), "{error}");
            assert_eq!(other.show().unwrap()["driver"], before);
        },
    );
}

#[test]
fn resets_only_gpus_that_no_other_process_has_open() {
    check(
        "resets_only_gpus_that_no_other_process_has_open",
        |name, machine| {
            let client = Client::start(name, "stays", "GPU-b", machine);
            let driver = nvml();
            assert_eq!(driver.set_mig("GPU-a", true).unwrap(), Activation::Now);
            machine.reset("GPU-a").unwrap();
            assert_eq!(driver.set_mig("GPU-b", true).unwrap(), Activation::AtReset);
            let error = machine.reset("GPU-b").unwrap_err().to_string();
            assert!(error.contains(&client.name(machine)), "{error}");
            drop(client);
            machine.reset("GPU-b").unwrap();
            assert!(driver.mig_layout("GPU-b").unwrap().geometry.is_some());
        },
    );
}

#[test]
fn monitor_closes_driver_for_a_change_of_mig_mode() {
    check(
        "monitor_closes_driver_for_a_change_of_mig_mode",
        |name, machine| {
            let client = Client::start(name, "releases", "all", machine);
            let driver = nvml();
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
            wait(|| client.has_driver_open(machine));
            second.open_or_release().unwrap();
            assert_eq!(second.inventory().unwrap().gpus.len(), 2);
        },
    );
}

#[test]
fn monitor_opens_driver_that_is_loaded_after_its_start() {
    check(
        "monitor_opens_driver_that_is_loaded_after_its_start",
        |_, machine| {
            machine.unload().unwrap();
            let monitor = releasable(machine);
            let reason = monitor.open_or_release().unwrap_err().to_string();
            assert!(reason.contains("driver is not loaded"), "{reason}");
            machine.load(NEWER).unwrap();
            wait(|| monitor.open_or_release().is_ok());
            assert_eq!(monitor.inventory().unwrap().driver_version, NEWER);
        },
    );
}

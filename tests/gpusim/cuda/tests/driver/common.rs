//! What the tests share: a machine for each test, and a process of its own to observe it from,
//! since the library reads its environment.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine};

use crate::client::MIB;

pub(crate) const TWO_A100: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-80GB}]";

/// The name of the test that a process runs, and its role where a test started it.
const NAME: &str = "GPUSIM_TEST_NAME";
const ROLE: &str = "GPUSIM_TEST_ROLE";

/// Runs `body`, a closure of a test, in a child process whose driver is the machine of `yaml`.
pub(crate) fn on_machine<F: FnOnce(&SimulatedMachine)>(yaml: &str, body: F) {
    on_machine_with(yaml, &[], body);
}

/// As `on_machine`, with more environment.
pub(crate) fn on_machine_with<F: FnOnce(&SimulatedMachine)>(
    yaml: &str,
    environment: &[(&str, &str)],
    body: F,
) {
    run_test(&name_of::<F>(), yaml, environment, body);
}

/// The name of the test that a closure is of.
pub(crate) fn name_of<F>() -> String {
    let path = std::any::type_name::<F>();
    let test = path.split("::{{closure}}").next().unwrap();
    test.split_once("::").unwrap().1.to_owned()
}

/// As `on_machine_with`, for the test of this name.
pub(crate) fn run_test(
    name: &str,
    yaml: &str,
    environment: &[(&str, &str)],
    body: impl FnOnce(&SimulatedMachine),
) {
    if let Some(state) = std::env::var_os(STATE_VARIABLE) {
        return body(&SimulatedMachine::at(&PathBuf::from(state)));
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), yaml).unwrap();
    let child = own_test(name)
        .env(STATE_VARIABLE, machine.state())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success(),
        "{printed}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    assert!(
        printed.contains("1 passed"),
        "no test of the name {name}: {printed}"
    );
}

fn own_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    command.env(NAME, name);
    command
}

/// Starts the test once more, in a process that gets `role` from [`role`].
pub(crate) fn start(role: &str) -> Started {
    start_with(role, &[])
}

/// As `start`, with more environment.
pub(crate) fn start_with(role: &str, environment: &[(&str, &str)]) -> Started {
    let mut command = own_test(&std::env::var(NAME).unwrap());
    command
        .env(ROLE, role)
        .envs(environment.iter().copied())
        .stdout(Stdio::null());
    Started(command.spawn().unwrap())
}

/// A process that a test started; it is killed with the test.
pub(crate) struct Started(Child);

impl Started {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its exit, which must be successful.
    pub(crate) fn finish(&mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Fails only where it is dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// MiB that all processes use on a GPU, contexts included.
pub(crate) fn used_mib(machine: &SimulatedMachine, gpu: &str) -> u64 {
    let holders = machine.process_usage(gpu).unwrap();
    holders.iter().map(|one| one.used / MIB).sum()
}

/// Waits until `holds` is true.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

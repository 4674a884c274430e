//! What the tests share: a machine for each test, and a process of its own to observe it from,
//! since the library reads its environment.

use std::path::PathBuf;
use std::process::Command;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine};

use crate::client::MIB;

/// Two A100s.
pub(crate) const TWO_A100: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-80GB}]";

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
    if let Some(state) = std::env::var_os(STATE_VARIABLE) {
        return body(&SimulatedMachine::at(&PathBuf::from(state)));
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), yaml).unwrap();
    let path = std::any::type_name::<F>();
    let test = path.split("::{{closure}}").next().unwrap();
    let name = test.split_once("::").unwrap().1;
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
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

/// MiB that all processes use on a GPU, contexts included.
pub(crate) fn used_mib(machine: &SimulatedMachine, gpu: &str) -> u64 {
    let holders = machine.process_usage(gpu).unwrap();
    holders.iter().map(|one| one.used / MIB).sum()
}

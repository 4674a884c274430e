//! What the tests share: a machine for each test, and a process of its own to observe it from,
//! since the library reads its environment.

use std::path::PathBuf;
use std::process::Command;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine};

/// Two A100s.
pub(crate) const TWO_A100: &str = "gpus: [{count: 2, model: NVIDIA A100-SXM4-80GB}]";

/// Runs `body` in a child process whose driver is the machine of `yaml`. `name` is the test's.
pub(crate) fn on_machine(name: &str, yaml: &str, body: impl FnOnce(&SimulatedMachine)) {
    if let Some(state) = std::env::var_os(STATE_VARIABLE) {
        return body(&SimulatedMachine::at(&PathBuf::from(state)));
    }
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), yaml).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(STATE_VARIABLE, machine.state())
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

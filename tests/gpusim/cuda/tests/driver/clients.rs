//! A client of NVIDIA's own runs unchanged.

use std::path::Path;
use std::process::Command;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use serde_json::{Value, json};

use crate::common::TWO_A100;

#[test]
fn cuda_10_2_runtime_allocates_copies_and_waits() {
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), TWO_A100).unwrap();
    place::link_cuda_into(folder.path()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients.sh");
    let output = Command::new(script)
        .arg("cudart")
        .arg(folder.path())
        .env(STATE_VARIABLE, machine.state())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown = machine.show().unwrap();
    assert_eq!(
        shown["gpus"][0]["memoryUsed"], 0,
        "it is gone and so is all it held"
    );
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let total = 81_920 - 634;
    for (key, value) in [
        ("count", json!(2)),
        ("free", json!(total - 416 - 900)),
        ("total", json!(total)),
        ("refused", json!(2)),
        ("same", json!(true)),
        ("freeAtEnd", json!(total - 416)),
    ] {
        assert_eq!(printed[key], value, "{key}: {printed}");
    }
}

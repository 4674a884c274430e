//! NVIDIA's own clients run unchanged.

use std::path::Path;
use std::process::Command;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use serde_json::{Value, json};

use crate::common::{TWO_A100, on_machine_with};
use crate::cudarc_client;

fn ask(client: &str) -> (Value, Value) {
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), TWO_A100).unwrap();
    place::link_cuda_into(folder.path()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients.sh");
    let output = Command::new(script)
        .arg(client)
        .arg(folder.path())
        .env(STATE_VARIABLE, machine.state())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{client} failed: {printed}{errors}"
    );
    let shown = machine.show().unwrap();
    assert_eq!(
        shown["gpus"][0]["memoryUsed"], 0,
        "it is gone and so is all it held"
    );
    (serde_json::from_str(&printed).unwrap(), shown)
}

#[test]
fn cuda_bindings_allocates_copies_launches_times_and_captures() {
    let (printed, shown) = ask("bindings");
    let uuid = shown["gpus"][0]["uuid"].as_str().unwrap();
    assert_eq!(printed["uuid"], uuid.replace("GPU-", "").replace('-', ""));
    let free = 81_920 - 634 - 416;
    for (key, value) in [
        ("version", json!(13_000)),
        ("name", json!("NVIDIA A100-SXM4-80GB")),
        ("free", json!(free)),
        ("total", json!(81_920 - 634)),
        ("same", json!(true)),
        ("refused", json!("CUDA_ERROR_OUT_OF_MEMORY")),
        ("missing", json!("CUDA_ERROR_NOT_FOUND")),
        ("took", json!(40.0)),
        ("freeAtEnd", json!(free)),
    ] {
        assert_eq!(printed[key], value, "{key}: {printed}");
    }
}

#[test]
fn cuda_10_2_runtime_allocates_copies_and_waits() {
    let (printed, _) = ask("cudart");
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

#[test]
fn cudarc_copies_launches_and_times() {
    let folder = tempfile::tempdir().unwrap();
    place::link_cuda_into(folder.path()).unwrap();
    let environment = [("LD_LIBRARY_PATH", folder.path().to_str().unwrap())];
    on_machine_with(TWO_A100, &environment, |_| {
        assert_eq!(cudarc_client::run() >> 20, 81_920 - 634);
    });
}

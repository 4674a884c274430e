//! nvidia-ml-py sees the simulated GPUs.

use std::path::Path;
use std::process::Command;

use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_nvml::Driver as _;
use serde_json::Value;

use crate::common::on_machine;
use crate::driver::open;

/// What it prints in a container that has these devices.
fn print_in(devices: &str, machine: &SimulatedMachine, folder: &Path) -> Value {
    place::link_into(folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients.sh");
    let output = Command::new(script)
        .arg("pynvml")
        .arg(folder)
        .env(STATE_VARIABLE, machine.state())
        .env("NVIDIA_VISIBLE_DEVICES", devices)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn mig_8_nvidia_ml_py_lists_only_the_containers_devices() {
    let gpus = "gpus: [{model: NVIDIA A100-SXM4-40GB, uuids: [GPU-a]}, {model: NVIDIA A100-SXM4-40GB, uuids: [GPU-b], set: {mig: on}}]";
    on_machine(gpus, |machine| {
        let folder = tempfile::tempdir().unwrap();
        let driver = open();
        for (profile, start) in [("1g.5gb", 5), ("1g.5gb", 6), ("3g.20gb", 0)] {
            driver.create_instance("GPU-b", profile, start).unwrap();
        }
        let shown = machine.show().unwrap();
        let instances = shown["gpus"][1]["instances"].as_array().unwrap();
        assert_eq!(instances.len(), 3);
        let check = |devices: &str, gpus: &[&str], listed: &[&Value]| {
            let printed = print_in(devices, machine, folder.path());
            let found = printed["gpus"].as_array().unwrap();
            let uuids: Vec<_> = found.iter().map(|gpu| gpu["uuid"].clone()).collect();
            assert_eq!(uuids, gpus, "{devices}");
            let all = found.iter().filter_map(|gpu| gpu["instances"].as_array());
            let found: Vec<_> = all.flatten().map(|one| &one["uuid"]).collect();
            let listed: Vec<_> = listed.iter().map(|one| &one["uuid"]).collect();
            assert_eq!(found, listed, "{devices}");
        };
        let uuid = |at: usize| instances[at]["uuid"].as_str().unwrap();
        check(uuid(1), &["GPU-b"], &[&instances[1]]);
        check("GPU-a", &["GPU-a"], &[]);
        let all: Vec<_> = instances.iter().collect();
        check("all", &["GPU-a", "GPU-b"], &all);
        let two = format!("{},{}", uuid(0), uuid(2));
        check(&two, &["GPU-b"], &[&instances[0], &instances[2]]);
    });
}

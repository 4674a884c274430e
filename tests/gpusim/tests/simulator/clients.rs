//! NVML clients of other projects see the simulated GPUs.

use std::path::Path;
use std::process::Command;

use aliquot_gpusim::edit::compute_process;
use aliquot_gpusim::{STATE_VARIABLE, SimulatedMachine, place};
use aliquot_nvml::Driver as _;
use serde_json::{Value, json};

use crate::common::{TWO_A100, on_machine};
use crate::driver::open;

fn ask(client: &str, machine: &SimulatedMachine, folder: &Path) -> String {
    ask_in(client, machine, folder, "all")
}

/// In a container that has these devices.
fn ask_in(client: &str, machine: &SimulatedMachine, folder: &Path, devices: &str) -> String {
    place::link_into(folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients.sh");
    let output = Command::new(script)
        .arg(client)
        .arg(folder)
        .env(STATE_VARIABLE, machine.state())
        .env("NVIDIA_VISIBLE_DEVICES", devices)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{client} failed: {printed}{errors}"
    );
    assert!(
        !printed.contains("ERROR") && !errors.contains("Traceback"),
        "{printed}{errors}"
    );
    printed
}

#[test]
fn nvidia_ml_py_lists_two_a100s_with_uuids_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), TWO_A100).unwrap();
    machine
        .add_process("1", compute_process(4242, 3000))
        .unwrap();
    let shown = machine.show().unwrap();

    let printed: Value = serde_json::from_str(&ask("pynvml", &machine, folder.path())).unwrap();
    assert_eq!(printed["driver"], "580.82.07");
    assert_eq!(printed["notSimulated"], "not supported");
    assert_eq!(printed["gpus"].as_array().unwrap().len(), 2);
    for index in 0..2 {
        let (gpu, truth) = (&printed["gpus"][index], &shown["gpus"][index]);
        assert_eq!(gpu["name"], "NVIDIA A100-SXM4-80GB");
        assert_eq!(gpu["uuid"], truth["uuid"]);
        assert_eq!(gpu["serial"], truth["serial"]);
        assert_eq!(gpu["pci"], truth["pci"]);
        assert_eq!(gpu["memory"], 81920);
        assert_eq!(gpu["capability"], json!([8, 0]));
        assert_eq!(gpu["mig"], json!([0, 0]));
    }
    assert_eq!(printed["gpus"][0]["processes"], json!([]));
    assert_eq!(printed["gpus"][1]["processes"], json!([[4242, 3000]]));
    assert_eq!(printed["gpus"][1]["used"], 3000);
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
            let printed = ask_in("pynvml", machine, folder.path(), devices);
            let printed: Value = serde_json::from_str(&printed).unwrap();
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

#[test]
fn nvitop_shows_two_a100s_and_the_process_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let machine = SimulatedMachine::create(&folder.path().join("state"), TWO_A100).unwrap();
    let own = std::process::id();
    machine
        .add_process("0", compute_process(own, 3000))
        .unwrap();
    machine
        .set("0", &[("temperature", "61"), ("utilisation", "37")])
        .unwrap();

    let printed = ask("nvitop", &machine, folder.path());
    let rows = printed
        .lines()
        .filter(|line| line.contains("A100-SXM4-80GB"))
        .count();
    assert_eq!(rows, 2, "{printed}");
    let wanted = [
        "580.82.07",
        "00000000:07:00.0",
        "00000000:0F:00.0",
        "80.00GiB",
        "61C",
        "37%",
    ];
    for text in wanted.into_iter().chain(["3000MiB", &own.to_string()]) {
        assert!(printed.contains(text), "{text} is not in {printed}");
    }
}

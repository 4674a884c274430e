//! A driver that lacks nearly every call loses only the facts that it cannot report.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aliquot_core::Mib;
use aliquot_nvml::{
    Driver, DriverAccess, DriverHealth, GpuEvent, MigMode, Nvml, NvmlError, Options,
    ReleasableNvml, UnfinishedRegistration, Usage as _,
};

fn old_driver(folder: &Path, defines: &[&str]) -> PathBuf {
    let library = folder.join("libnvidia-ml.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/old_driver.c");
    let output = Command::new("cc")
        .args(defines)
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source)
        .output()
        .expect("a C compiler, which linking Rust needs too");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    library
}

fn open(folder: &Path, defines: &[&str]) -> Nvml {
    let library = old_driver(folder, defines).into();
    let options = Options {
        library,
        ..Options::default()
    };
    Nvml::open(options).unwrap()
}

#[test]
fn reads_fabric_by_call_without_version() {
    let waiting = DriverHealth::FabricNotReady(UnfinishedRegistration::InProgress);
    for (state, expected) in [
        ("-DFABRIC_STATE=2", waiting),
        ("-DFABRIC_STATE=3", DriverHealth::Ok),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let health = open(folder.path(), &[state]).health().unwrap();
        assert_eq!((health.len(), &health[0].health), (1, &expected), "{state}");
    }
}

#[test]
fn reports_known_facts_of_old_driver_and_notes_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let driver = open(folder.path(), &[]);

    let inventory = driver.inventory().unwrap();
    assert_eq!(inventory.driver_version, "470.57.02");
    assert_eq!(inventory.gpus.len(), 1);
    let gpu = &inventory.gpus[0];
    assert_eq!((&*gpu.uuid, &*gpu.model), ("GPU-a", "Tesla V100"));
    assert_eq!((gpu.memory, gpu.reserved), (Mib(16_384), None));
    assert_eq!(gpu.usable(), Mib(16_384));
    let numbers = (gpu.minor, gpu.numa, gpu.compute_capability);
    assert_eq!(numbers, (None, None, None));
    assert_eq!(gpu.pci_bus_id, None);
    assert_eq!(gpu.mig, MigMode::default());

    let noted = |gpu: &str, call: &str| {
        let notes = inventory.notes.iter();
        let found = notes.filter(|note| note.gpu == gpu && note.call == call);
        assert_eq!(found.count(), 1, "{call}: {:?}", inventory.notes);
    };
    noted("GPU-b", "nvmlDeviceGetName");
    for call in [
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetNvLinkState",
    ] {
        noted("GPU-a", call);
    }

    let health = driver.health().unwrap();
    assert_eq!((health.len(), &health[0].health), (1, &DriverHealth::Ok));
    let error = driver.wait_events(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, NvmlError::EventSet(_)), "{error}");
}

#[test]
fn gpu_is_lost_only_if_the_driver_says_so_and_returns_when_nvml_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let answer = folder.path().join("answer");
    let define = format!("-DANSWER=\"{}\"", answer.display());
    let driver = open(folder.path(), &[&*define]);
    let health = |code: &str| {
        std::fs::write(&answer, code).unwrap();
        driver.health().unwrap().remove(0).health
    };
    let (ok, unknown, reset_required, is_lost) = ("0", "999", "16", "15");
    assert_eq!(health(ok), DriverHealth::Ok);
    assert_eq!(health(unknown), DriverHealth::Ok, "one call failed");
    let reset = DriverHealth::RecoveryRequested(1);
    assert_eq!(health(reset_required), reset);
    assert!(matches!(health(is_lost), DriverHealth::Lost(_)));
    assert_eq!(health(ok), DriverHealth::Ok);
}

#[test]
fn gpu_lost_at_the_start_is_read_when_nvml_is_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let answer = folder.path().join("answer");
    let define = format!("-DANSWER=\"{}\"", answer.display());
    let driver = open(folder.path(), &[&*define]);
    let (ok, is_lost) = ("0", "15");
    std::fs::write(&answer, is_lost).unwrap();
    assert!(driver.inventory().unwrap().gpus.is_empty());
    std::fs::write(&answer, ok).unwrap();
    let health = driver.health().unwrap();
    assert_eq!((health.len(), &health[0].health), (1, &DriverHealth::Ok));
}

#[test]
fn driver_that_is_opened_for_each_use_is_opened_again_for_a_lost_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let answer = folder.path().join("answer");
    let define = format!("-DANSWER=\"{}\"", answer.display());
    let library = old_driver(folder.path(), &[&*define]);
    let access = DriverAccess::new(folder.path());
    access.create().unwrap();
    let driver = ReleasableNvml::new(&library, None, access);
    let is_lost = |code: &str| {
        std::fs::write(&answer, code).unwrap();
        driver.open_or_release().unwrap();
        driver.utilization("GPU-a").is_err()
    };
    assert_eq!(["0", "15", "0"].map(is_lost), [false, true, false]);
}

#[test]
fn gpu_that_refuses_events_takes_those_of_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let driver = open(folder.path(), &["-DEVENTS"]);
    let next = || driver.wait_events(Duration::from_millis(1)).unwrap();
    let first = next();
    assert!(
        matches!(&first[..], [GpuEvent::Unwatched { uuid, .. }] if uuid == "GPU-b"),
        "{first:?}"
    );
    let second = next();
    assert!(
        matches!(&second[..], [GpuEvent::Xid { uuid, code: 79, .. }] if uuid == "GPU-a"),
        "{second:?}"
    );
    assert_eq!(next(), []);
}

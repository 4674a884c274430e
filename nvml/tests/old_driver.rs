//! A driver in which nearly every call is missing costs only the facts that it cannot tell.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail the test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aliquot_core::Mib;
use aliquot_nvml::{Driver, Health, Mig, Nvml, NvmlError, Options};

fn old_driver(folder: &Path) -> PathBuf {
    let library = folder.join("libnvidia-ml.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/old_driver.c");
    let output = Command::new("cc")
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

#[test]
fn an_old_driver_gives_the_facts_it_knows_and_notes_for_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let library = old_driver(folder.path()).into();
    let driver = Nvml::open(Options {
        library,
        ..Options::default()
    })
    .unwrap();

    let inventory = driver.inventory().unwrap();
    assert_eq!(
        (inventory.driver_version.as_str(), inventory.cuda_version),
        ("470.57.02", None)
    );
    assert_eq!(inventory.cards.len(), 1);
    let card = &inventory.cards[0];
    assert_eq!(
        (card.uuid.as_str(), card.model.as_str()),
        ("GPU-a", "Tesla V100")
    );
    assert_eq!((card.memory, card.reserved), (Mib(16_384), None));
    assert_eq!(
        (card.minor, card.numa, card.compute_capability),
        (None, None, None)
    );
    assert_eq!((card.pci_bus_id.as_ref(), card.mig), (None, Mig::default()));

    let noted = |card: Option<&str>, call: &str| {
        let found = |note: &&aliquot_nvml::Note| note.card.as_deref() == card && note.call == call;
        assert_eq!(
            inventory.notes.iter().filter(found).count(),
            1,
            "{call}: {:?}",
            inventory.notes
        );
    };
    noted(None, "nvmlSystemGetCudaDriverVersion_v2");
    noted(Some("GPU-b"), "nvmlDeviceGetName");
    for call in [
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetNvLinkState",
    ] {
        noted(Some("GPU-a"), call);
    }

    let health = driver.health().unwrap();
    assert_eq!((health.len(), &health[0].health), (1, &Health::Ok));
    let error = driver.wait_events(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, NvmlError::EventSet(_)), "{error}");
}

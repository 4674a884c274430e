//! The values that each field of a GPU accepts, and its processes.

use super::*;
use bytemuck::Zeroable as _;

fn check(field: &str, good: &[&str], bad: &[&str]) {
    let mut gpu = Gpu::zeroed();
    gpu.memory_total = 1024 * MIB;
    for value in good {
        set(&mut gpu, field, value).unwrap();
    }
    for value in bad {
        let error = set(&mut gpu, field, value).unwrap_err().to_string();
        assert!(error.contains(field) && error.contains(value), "{error}");
    }
}

#[test]
fn every_field_accepts_valid_and_rejects_other_values() {
    check("health", &["ok", "lost"], &["sick"]);
    check(
        "fabric",
        &["absent", "notStarted", "inProgress", "completed", "failed"],
        &["ready"],
    );
    check(
        "memoryUsed",
        &["0", "81920"],
        &["-1", "3k", "99999999999999999999"],
    );
    for field in [
        "utilisation",
        "memoryUtilisation",
        "encoderUtilisation",
        "decoderUtilisation",
    ] {
        check(field, &["0", "100"], &["101", "-1"]);
    }
    check("temperature", &["0", "150"], &["151"]);
    for field in [
        "power",
        "powerLimit",
        "graphicsClock",
        "smClock",
        "memoryClock",
    ] {
        check(field, &["0", "400000"], &["x"]);
    }
    check("pstate", &["0", "15"], &["16"]);
    for field in ["eccCorrected", "eccUncorrected"] {
        check(field, &["0", "7"], &["-7"]);
    }
    for field in ["ecc", "mig"] {
        check(field, &["on", "off", "absent"], &["1"]);
    }
    check("cutFaults", &["0", "1"], &["-1"]);
    check("cutMs", &["1000"], &["60001"]);
    check(
        "computeMode",
        &["default", "exclusiveProcess"],
        &["exclusiveThread"],
    );
    check("persistence", &["on", "off"], &["absent"]);
    check("numa", &["-1", "1"], &["-2"]);
    check("sliceUs", &["1"], &["0"]);
    check("sampleMs", &["170"], &["10"]);
    check("clockPpm", &["-50"], &["x"]);
    check("clockSwing", &["20"], &["101"]);
    check("contextMib", &["416"], &["x"]);
    check("blockKib", &["1", "2048"], &["0", "3", "4096"]);
    check("profile", &["harsh", "blind"], &["kind"]);
    check("reservedMib", &["0", "1023"], &["1024", "x"]);
    check("contextGrowthMib", &["0", "600"], &["x"]);
    for field in ["switchUs", "markLatencyUs", "launchUs"] {
        check(field, &["0", "100000"], &["100001"]);
    }
    for field in [
        "overlap",
        "otherAddresses",
        "strangeSamples",
        "bytesNotAvailable",
        "bytesWithoutManaged",
        "importedTwice",
    ] {
        check(field, &["on", "off"], &["absent", "1"]);
    }
    check(
        "processUtilisation",
        &["ok", "legacyNotSupported", "notSupported"],
        &["on"],
    );
}

#[test]
fn profiles_set_what_a_kind_driver_lacks() {
    let mut gpu = Gpu::zeroed();
    gpu.memory_total = 1024 * MIB;
    set(&mut gpu, "profile", "harsh").unwrap();
    let times = [gpu.slice_us, gpu.switch_us, gpu.mark_latency_us];
    assert_eq!((times, gpu.launch_us), ([2000, 200, 5], 4));
    let sizes = [
        gpu.memory_reserved,
        gpu.context_bytes,
        gpu.context_growth_bytes,
    ];
    assert_eq!(sizes.map(|bytes| bytes / MIB), [450, 300, 200]);
    let flags = [
        gpu.overlap,
        gpu.other_addresses,
        gpu.strange_samples,
        gpu.bytes_without_managed,
        gpu.imported_twice,
    ];
    assert_eq!(flags, [1; 5]);
    let unseen = |gpu: &Gpu| (gpu.process_utilisation, gpu.bytes_not_available);
    assert_eq!(unseen(&gpu), (PROCESS_UTILISATION_LEGACY_NOT_SUPPORTED, 0));
    set(&mut gpu, "profile", "blind").unwrap();
    assert_eq!(unseen(&gpu), (PROCESS_UTILISATION_NOT_SUPPORTED, 1));
    assert_eq!(gpu.switch_us, 200);
}

#[test]
fn names_unknown_field_in_error() {
    let error = set(&mut Gpu::zeroed(), "temprature", "1")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("temprature") && error.contains("temperature"),
        "{error}"
    );
}

#[test]
fn counts_process_memory_as_used_until_removed() {
    let mut gpu = Gpu::zeroed();
    gpu.memory_total = 100 * MIB;
    add_process(&mut gpu, compute_process(7, 10)).unwrap();
    add_process(&mut gpu, compute_process(8, 20)).unwrap();
    add_process(&mut gpu, compute_process(7, 30)).unwrap();
    assert_eq!((gpu.running().len(), gpu.used()), (2, 50 * MIB));
    remove_process(&mut gpu, 7).unwrap();
    assert_eq!((gpu.running().len(), gpu.used()), (1, 20 * MIB));
    remove_process(&mut gpu, 7).unwrap_err();
}

#[test]
fn rejects_more_than_128_processes_on_a_gpu() {
    let mut gpu = Gpu::zeroed();
    for pid in 1..=128 {
        add_process(&mut gpu, compute_process(pid, 1)).unwrap();
    }
    add_process(&mut gpu, compute_process(129, 1)).unwrap_err();
}

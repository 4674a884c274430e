//! Runs on the simulated GPU what `tests/gpu/limiter.sh` runs on a real one. The figures are
//! simulated and show only that the script's client works.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_limiter_tests::scene::{FIRST, device, machine};
use aliquot_limiter_tests::share::holds_once_of_three;
use aliquot_limiter_tests::{InjectionMethod, TestContainer, limiter, lines};
use aliquot_region::limits::ContainerLimits;

/// The output of the script's client within 3000 MiB and half of a GPU.
fn run_client(words: &[&str]) -> String {
    let (_temp, machine) = machine();
    let mut share = device(FIRST, 3000);
    share.cores = 50;
    let container = TestContainer::new(
        &machine,
        InjectionMethod::Replacement,
        ContainerLimits::default(),
        &[share],
    );
    let container = container.expect("a container");
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/limiter.py");
    let mut all = vec!["python3", client];
    all.extend(words);
    let output = container.command(&all).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    lines(&output).join("\n")
}

#[test]
fn runs_real_gpu_client_within_limit_and_share() {
    let memory = run_client(&["memory"]);
    assert_eq!(memory, "free=2520 total=3000 more=2 whole=0 after=2");
    for how in ["busy", "graph"] {
        holds_once_of_three(
            how,
            || run_client(&[how, "k_us_1000", "1"]),
            |found| {
                let part = found.strip_prefix("busy=");
                let part = part.and_then(|part| part.parse().ok());
                part.is_some_and(|part: f64| (25.0..75.0).contains(&part))
            },
        );
    }
    let rate = run_client(&["rate", "k_us_10", "1"]);
    assert!(rate.starts_with("rate="), "{rate}");
}

#[test]
fn builds_container_directory_like_node_agent() {
    let (temp, machine) = machine();
    let folder = temp.path().join("container");
    let library = limiter().expect("libvgpu.so");
    let status = Command::new(env!("CARGO_BIN_EXE_container-directory"))
        .arg(&folder)
        .arg(&library)
        .args(["/driver/cuda", "/driver/nvml", FIRST, "3000", "30", "480"])
        .status();
    assert!(status.expect("container-directory").success());
    let mut share = device(FIRST, 3000);
    share.cores = 30;
    let container = TestContainer::new(
        &machine,
        InjectionMethod::Replacement,
        ContainerLimits::default(),
        &[share],
    );
    let container = container.expect("a container");
    let other = container.directory();
    let read = |path: &Path| fs::read(path).expect("a file");
    for file in ["limits", "counters/slots", "lib/libvgpu.so"] {
        assert!(
            read(&folder.join(file)) == read(&other.join(file)),
            "{file}"
        );
    }
    let link = fs::read_link(folder.join("lib/libcuda-real.so.1")).expect("a link");
    assert_eq!(link, PathBuf::from("/driver/cuda"));
    let shim = read(&folder.join("driver/libnvidia-ml.so.1"));
    assert_eq!(&shim[..4], b"\x7fELF");
}

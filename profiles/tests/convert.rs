//! Converts files of NVIDIA's device plugin (samples/) and compares the whole result.

use std::fs;
use std::path::PathBuf;

use aliquot_profiles::convert::{Converted, convert};
use aliquot_profiles::{ProfileErrors, read};

fn sample(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samples")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(sample(name)).expect(name)
}

/// Compares with `converted/NAME`, and reads the YAML back.
fn check(name: &str, converted: &Result<Converted, ProfileErrors>) {
    let converted = converted.as_ref().expect(name);
    let yaml = converted.to_yaml().expect(name);
    let golden = format!("converted/{name}");
    if std::env::var_os("ALIQUOT_WRITE").is_some() {
        fs::write(sample(&golden), &yaml).expect("written");
    }
    assert_eq!(yaml, text(&golden), "ALIQUOT_WRITE=1 writes it anew");
    assert_eq!(read(&yaml).as_ref(), Ok(&converted.config));
}

#[test]
fn converts_files_of_nvidias_plugin() {
    for name in [
        "nvidia-time-slicing.yaml",
        "nvidia-groups.yaml",
        "nvidia-mps.yaml",
        "nvidia-flags.yaml",
        "nvidia-none.yaml",
    ] {
        check(name, &convert(&text(name), "nvidia"));
    }
}

#[test]
fn reports_errors_by_paths_of_original_format() {
    let nvidia = |text: &str| convert(&format!("version: v1\n{text}"), "nvidia");
    let sharing = |way: &str, resource: &str| {
        nvidia(&format!(
            "sharing: {{{way}: {{resources: [{{{resource}}}]}}}}"
        ))
    };
    for (converted, message) in [
        (
            nvidia("flags: {renameByDefault: true}"),
            "flags.renameByDefault: unknown key; expected: migStrategy, failOnInitError, mpsRoot, nvidiaDriverRoot, nvidiaDevRoot, gdrcopyEnabled, gdsEnabled, mofedEnabled, useNodeFeatureAPI, deviceDiscoveryStrategy, plugin, gfd",
        ),
        (
            sharing("timeSlicing", "name: nvidia.com/gpu, replicas: 1"),
            "sharing.timeSlicing.resources[0].replicas: 1 is out of range; expected: 2 or more with timeSlicing, 1 to 48 with mps",
        ),
        (
            sharing("mps", "name: nvidia.com/gpu, replicas: 60"),
            "sharing.mps.resources[0].replicas: 60 is out of range; expected: 2 or more with timeSlicing, 1 to 48 with mps",
        ),
        (
            sharing("mps", "name: nvidia.com/tpu, replicas: 2"),
            "sharing.mps.resources[0].name: \"nvidia.com/tpu\" is not a GPU resource; expected: nvidia.com/gpu, nvidia.com/mig-<profile>",
        ),
    ] {
        let found = converted.map_err(|errors| errors.to_string());
        assert_eq!(found, Err(message.to_owned()));
    }
}

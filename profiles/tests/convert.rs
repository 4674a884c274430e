//! Converts files in the formats of other projects (samples/) and compares the whole result.

use std::fs;
use std::path::PathBuf;

use aliquot_profiles::convert::{Converted, hami, mig_parted, nvidia};
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
fn converts_files_of_other_projects() {
    for name in [
        "nvidia-time-slicing.yaml",
        "nvidia-groups.yaml",
        "nvidia-mps.yaml",
        "nvidia-flags.yaml",
        "nvidia-none.yaml",
    ] {
        check(name, &nvidia::convert(&text(name), "nvidia"));
    }
    let parted = "mig-parted.yaml";
    check(parted, &mig_parted::convert(&text(parted)));
    let nodes = text("hami-nodes.json");
    let converted = hami::convert(&text("hami.yaml"), Some(&nodes));
    check("hami.yaml", &converted);
}

#[test]
fn reports_errors_by_paths_of_original_format() {
    let nvidia = |text: &str| nvidia::convert(&format!("version: v1\n{text}"), "nvidia");
    let sharing = |way: &str, resource: &str| {
        nvidia(&format!(
            "sharing: {{{way}: {{resources: [{{{resource}}}]}}}}"
        ))
    };
    let parted = |entry: &str| {
        mig_parted::convert(&format!("version: v1\nmig-configs: {{lab: [{{{entry}}}]}}"))
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
        (
            parted("devices: 0, mig-enabled: false"),
            "mig-configs.lab[0].devices: 0 does not name GPUs; expected: all, or a list of GPU indices",
        ),
        (
            parted("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
            "mig-configs.lab[0].mig-devices: lists instances of GPUs without MIG; expected: mig-devices with mig-enabled: true, or {}",
        ),
        (
            parted("devices: all, mig-enabled: false, device-filter: A100"),
            "mig-configs.lab[0].device-filter: \"A100\" is not a PCI device id; expected: such as 0x20B010DE, or a list of these",
        ),
        (
            hami::convert("nvidia: {deviceSplitCounts: 4}", None),
            "nvidia.deviceSplitCounts: unknown key; expected: deviceSplitCount, deviceMemoryScaling, deviceCoreScaling, preConfiguredDeviceMemory, libCudaLogLevel, enableNumaTopology, resourceCountName, resourceMemoryName, resourceMemoryPercentageName, resourceCoreName, resourcePriorityName, overwriteEnv, defaultMemory, defaultCores, defaultGPUNum, memoryFactor, disableCoreLimit, gpuCorePolicy, runtimeClassName, migProfileAllowlist, knownMigGeometries",
        ),
        (
            hami::convert("nvidia: {}", Some("nodeconfig: [{name: n1}, {name: n1}]")),
            "nodeconfig: \"n1\" is a duplicate, or the name of the default profile; expected: each node once",
        ),
    ] {
        let found = converted.map_err(|errors| errors.to_string());
        assert_eq!(found, Err(message.to_owned()));
    }
}

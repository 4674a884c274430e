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
fn converts_nvidia_files_with_devices_and_rename() {
    for name in [
        "nvidia-time-slicing.yaml",
        "nvidia-groups.yaml",
        "nvidia-mps.yaml",
        "nvidia-flags.yaml",
        "nvidia-none.yaml",
    ] {
        check(name, &nvidia::convert(&text(name), "nvidia"));
    }
}

#[test]
fn converts_each_mig_parted_configuration_to_a_profile() {
    check(
        "mig-parted.yaml",
        &mig_parted::convert(&text("mig-parted.yaml")),
    );
}

#[test]
fn converts_hami_files_to_default_and_node_profiles() {
    let nodes = text("hami-nodes.json");
    check(
        "hami.yaml",
        &hami::convert(&text("hami.yaml"), Some(&nodes)),
    );
}

fn check_refused(converted: Result<Converted, ProfileErrors>, message: &str) {
    assert_eq!(
        converted.map_err(|f| f.to_string()),
        Err(message.to_owned())
    );
}

#[test]
fn names_key_that_nvidia_plugin_ignores() {
    check_refused(
        nvidia::convert("version: v1\nflags: {renameByDefault: true}", "nvidia"),
        "flags.renameByDefault: unknown key; expected: migStrategy, failOnInitError, mpsRoot, nvidiaDriverRoot, nvidiaDevRoot, gdrcopyEnabled, gdsEnabled, mofedEnabled, useNodeFeatureAPI, deviceDiscoveryStrategy, plugin, gfd",
    );
}

#[test]
fn reports_errors_by_paths_of_original_format() {
    let sharing = |way: &str, resource: &str| {
        let text = format!("version: v1\nsharing: {{{way}: {{resources: [{{{resource}}}]}}}}");
        nvidia::convert(&text, "nvidia")
    };
    check_refused(
        sharing("timeSlicing", "name: nvidia.com/gpu, replicas: 1"),
        "sharing.timeSlicing.resources[0].replicas: 1 is out of range; expected: 2 or more with timeSlicing, 1 to 48 with mps",
    );
    check_refused(
        sharing("mps", "name: nvidia.com/gpu, replicas: 60"),
        "sharing.mps.resources[0].replicas: 60 is out of range; expected: 2 or more with timeSlicing, 1 to 48 with mps",
    );
    check_refused(
        sharing("mps", "name: nvidia.com/tpu, replicas: 2"),
        "sharing.mps.resources[0].name: \"nvidia.com/tpu\" is not a GPU resource; expected: nvidia.com/gpu, nvidia.com/mig-<profile>",
    );
    let parted = |entry: &str| {
        mig_parted::convert(&format!("version: v1\nmig-configs: {{lab: [{{{entry}}}]}}"))
    };
    check_refused(
        parted("devices: 0, mig-enabled: false"),
        "mig-configs.lab[0].devices: 0 does not name GPUs; expected: all, or a list of GPU indices",
    );
    check_refused(
        parted("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
        "mig-configs.lab[0].mig-devices: lists instances of GPUs without MIG; expected: mig-devices with mig-enabled: true, or {}",
    );
    check_refused(
        parted("devices: all, mig-enabled: false, device-filter: A100"),
        "mig-configs.lab[0].device-filter: \"A100\" is not a PCI device id; expected: such as 0x20B010DE, or a list of these",
    );
    check_refused(
        hami::convert("nvidia: {deviceSplitCounts: 4}", None),
        "nvidia.deviceSplitCounts: unknown key; expected: deviceSplitCount, deviceMemoryScaling, deviceCoreScaling, preConfiguredDeviceMemory, libCudaLogLevel, enableNumaTopology, resourceCountName, resourceMemoryName, resourceMemoryPercentageName, resourceCoreName, resourcePriorityName, overwriteEnv, defaultMemory, defaultCores, defaultGPUNum, memoryFactor, disableCoreLimit, gpuCorePolicy, runtimeClassName, migProfileAllowlist, knownMigGeometries",
    );
    check_refused(
        hami::convert("nvidia: {}", Some("nodeconfig: [{name: n1}, {name: n1}]")),
        "nodeconfig: \"n1\" is a duplicate, or the name of the default profile; expected: each node once",
    );
}

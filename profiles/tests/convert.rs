//! Files in the formats that other projects document, and what they become.
//!
//! Fed by: samples/, each with the YAML that it must give. Must not: compare parts.

use std::fs;
use std::path::PathBuf;

use aliquot_profiles::convert::{Converted, hami, mig_parted, nvidia};
use aliquot_profiles::{Faults, read};

fn sample(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/samples")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(sample(name)).expect(name)
}

/// Compares with `converted/NAME`, and reads the YAML back.
fn check(name: &str, converted: &Result<Converted, Faults>) {
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
fn nvidias_files_become_profiles_with_devices_and_rename_honoured() {
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
fn each_mig_parted_configuration_becomes_a_profile() {
    check(
        "mig-parted.yaml",
        &mig_parted::convert(&text("mig-parted.yaml")),
    );
}

#[test]
fn hamis_files_become_a_default_and_a_profile_for_each_node() {
    let nodes = text("hami-nodes.json");
    check(
        "hami.yaml",
        &hami::convert(&text("hami.yaml"), Some(&nodes)),
    );
}

fn refused(converted: Result<Converted, Faults>, message: &str) {
    assert_eq!(
        converted.map_err(|f| f.to_string()),
        Err(message.to_owned())
    );
}

#[test]
fn a_key_in_the_wrong_place_was_passed_over_there_and_is_named_here() {
    refused(
        nvidia::convert("version: v1\nflags: {renameByDefault: true}", "nvidia"),
        "flags.renameByDefault: true is under an unknown key; accepted: migStrategy, failOnInitError, mpsRoot, nvidiaDriverRoot, nvidiaDevRoot, gdrcopyEnabled, gdsEnabled, mofedEnabled, useNodeFeatureAPI, deviceDiscoveryStrategy, plugin, gfd",
    );
}

#[test]
fn what_cannot_be_meant_is_told_in_the_words_of_its_own_format() {
    let sharing = |way: &str, resource: &str| {
        let text = format!("version: v1\nsharing: {{{way}: {{resources: [{{{resource}}}]}}}}");
        nvidia::convert(&text, "nvidia")
    };
    refused(
        sharing("timeSlicing", "name: nvidia.com/gpu, replicas: 1"),
        "sharing.timeSlicing.resources[0].replicas: 1 cannot be; accepted: 2 or more with timeSlicing, 1 to 48 with mps",
    );
    refused(
        sharing("mps", "name: nvidia.com/gpu, replicas: 60"),
        "sharing.mps.resources[0].replicas: 60 cannot be; accepted: 2 or more with timeSlicing, 1 to 48 with mps",
    );
    refused(
        sharing("mps", "name: nvidia.com/tpu, replicas: 2"),
        "sharing.mps.resources[0].name: \"nvidia.com/tpu\" is no resource of a card; accepted: nvidia.com/gpu, nvidia.com/mig-<profile>",
    );
    let parted = |entry: &str| {
        mig_parted::convert(&format!("version: v1\nmig-configs: {{lab: [{{{entry}}}]}}"))
    };
    refused(
        parted("devices: 0, mig-enabled: false"),
        "mig-configs.lab[0].devices: 0 names no cards; accepted: all, or a list of card indices",
    );
    refused(
        parted("devices: all, mig-enabled: false, mig-devices: {1g.5gb: 1}"),
        "mig-configs.lab[0].mig-devices: names instances of cards without MIG; accepted: mig-devices with mig-enabled: true, or {}",
    );
    refused(
        parted("devices: all, mig-enabled: false, device-filter: A100"),
        "mig-configs.lab[0].device-filter: \"A100\" is no PCI device id; accepted: such as 0x20B010DE, or a list of such",
    );
    refused(
        hami::convert("nvidia: {deviceSplitCounts: 4}", None),
        "nvidia.deviceSplitCounts: 4 is under an unknown key; accepted: deviceSplitCount, deviceMemoryScaling, deviceCoreScaling, preConfiguredDeviceMemory, libCudaLogLevel, enableNumaTopology, resourceCountName, resourceMemoryName, resourceMemoryPercentageName, resourceCoreName, resourcePriorityName, overwriteEnv, defaultMemory, defaultCores, defaultGPUNum, memoryFactor, disableCoreLimit, gpuCorePolicy, runtimeClassName, migProfileAllowlist, knownMigGeometries",
    );
    refused(
        hami::convert("nvidia: {}", Some("nodeconfig: [{name: n1}, {name: n1}]")),
        "nodeconfig: \"n1\" is there twice, or has the name of the default profile; accepted: each node once",
    );
}

//! A table of nodes without a configured device list strategy.

use super::super::config::read;
use super::super::{DriverSources, RuntimeKind};
use super::*;

const PLUGIN: &str = "[plugins.'io.containerd.cri.v1.runtime']\n";
/// As NVIDIA's toolkit writes it.
const NVIDIA: &str = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n";
const USUALLY: &str =
    "[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'nvidia'\n";

fn written(kind: RuntimeKind, text: &str) -> RuntimeConfig {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("config.toml");
    fs::write(&path, text).expect("written");
    read(kind, None, Some(&path)).expect("read")
}

/// On a node with NVIDIA's runtime in a directory of its own and this configuration beside it.
fn on_node(
    config: &RuntimeConfig,
    class: &RuntimeClassState,
    toolkit: Option<&str>,
) -> Option<ToolkitSettings> {
    let node = tempfile::tempdir().expect("tempdir");
    let directory = node.path().join("usr/local/nvidia/toolkit");
    let beside = directory.join(".config/nvidia-container-runtime");
    fs::create_dir_all(&beside).expect("made");
    fs::write(directory.join("nvidia-container-runtime"), "").expect("written");
    if let Some(text) = toolkit {
        fs::write(beside.join("config.toml"), text).expect("written");
    }
    toolkit_below(&[Path::new("/nowhere"), node.path()], config, class)
}

fn check(
    version: &str,
    text: &str,
    class: &RuntimeClassState,
    toolkit: Option<&str>,
    expected: Option<DeviceListStrategy>,
) {
    let config = written(RuntimeKind::Containerd, text);
    let toolkit = on_node(&config, class, toolkit);
    let facts = RuntimeFacts {
        version,
        config: &Ok(config),
        cdi: Path::new("/var/run/cdi"),
        directories: &[],
        driver: &DriverSources::default(),
        class,
        device_list: DeviceListStrategy::Cdi,
        chosen: true,
    };
    assert_eq!(choose(&facts, toolkit), expected, "{version} {text}");
}

#[test]
fn leaves_cdi_only_where_nvidia_runtime_accepts_it() {
    let off = format!("{PLUGIN}enable_cdi = false\n{USUALLY}{NVIDIA}");
    let old = "containerd://1.6.20";
    let new = "containerd://2.1.0";
    let none = RuntimeClassState::NotSet;
    check(new, &off, &none, None, Some(DeviceListStrategy::Envvar));
    check(old, &off, &none, Some(""), Some(DeviceListStrategy::Envvar));
    let mounts = format!("{MOUNTS} = true\n");
    check(
        new,
        &off,
        &none,
        Some(&mounts),
        Some(DeviceListStrategy::VolumeMounts),
    );
    let neither = format!("{ENVIRONMENT} = false\n");
    check(
        new,
        &off,
        &none,
        Some(&neither),
        Some(DeviceListStrategy::Cdi),
    );
    // What cannot be read is not guessed.
    check(new, &off, &none, Some("["), Some(DeviceListStrategy::Cdi));
    // CDI is preferred wherever it is not known to be disabled.
    let on = format!("{PLUGIN}{USUALLY}{NVIDIA}");
    check(new, &on, &none, None, Some(DeviceListStrategy::Cdi));
    check(
        "docker://27.1",
        &off,
        &none,
        None,
        Some(DeviceListStrategy::Cdi),
    );
}

#[test]
fn keeps_choice_without_cdi_until_agent_restarts() {
    let old = "containerd://1.6.20";
    let (accepts, none) = (accepts(&DocumentMut::new()), None);
    let status = |version, chosen, handed, before, toolkit| {
        let facts = RuntimeFacts {
            version,
            config: &Ok(RuntimeConfig::default()),
            cdi: Path::new("/var/run/cdi"),
            directories: &[],
            driver: &DriverSources::default(),
            class: &RuntimeClassState::NotSet,
            device_list: handed,
            chosen,
        };
        assess(&facts, before, toolkit)
    };
    let (auto, env, cdi) = (
        DeviceListStrategy::Auto,
        DeviceListStrategy::Envvar,
        DeviceListStrategy::Cdi,
    );
    let summary = |status: &RuntimeStatus| {
        let reasons = status.problems.iter().map(|problem| problem.reason);
        (
            status.device_list,
            status.without_cdi.is_some(),
            reasons.collect::<Vec<_>>(),
        )
    };
    let check = |status: RuntimeStatus, expected: (DeviceListStrategy, bool, &[&str])| {
        let (handed, off, reasons) = summary(&status);
        let found = (handed.unwrap(), off, &*reasons);
        assert_eq!(found, expected, "{status:?}");
    };
    // Containers get no GPUs until NVIDIA's runtime is installed.
    let waits = status(old, true, auto, None, none);
    check(waits, (cdi, true, &["CdiOff"]));
    let found = status(old, true, auto, Some(cdi), Some(accepts));
    check(found, (env, true, &["WithoutCdi"]));
    // It stays, with CDI and without NVIDIA's runtime; containers that rely on CDI wait for CDI.
    let new = "containerd://2.1.0";
    let stays = status(new, true, auto, Some(env), none);
    check(stays, (env, false, &["WithoutCdi"]));
    check(status(new, true, auto, None, none), (cdi, false, &[]));
    // A configured strategy is not replaced.
    check(status(old, false, env, None, none), (env, true, &[]));
    check(
        status(old, false, cdi, None, Some(accepts)),
        (cdi, true, &["CdiOff"]),
    );
}

#[test]
fn uses_runtime_of_the_runtime_class() {
    let beside = format!("{PLUGIN}enable_cdi = false\n{NVIDIA}");
    let found = |handler: &str| RuntimeClassState::Found("gpu".to_owned(), handler.to_owned());
    let new = "containerd://2.1.0";
    let cases = [
        (RuntimeClassState::NotSet, Some(DeviceListStrategy::Cdi)),
        (found("runc"), Some(DeviceListStrategy::Cdi)),
        (found("nvidia"), Some(DeviceListStrategy::Envvar)),
        (
            RuntimeClassState::Missing("gpu".to_owned()),
            Some(DeviceListStrategy::Cdi),
        ),
        // The API server did not answer: nothing is chosen permanently.
        (RuntimeClassState::Unknown, None),
    ];
    for (class, expected) in cases {
        check(new, &beside, &class, None, expected);
    }
    // A runtime that is not installed on this node starts nothing.
    let elsewhere = beside.replace("/usr/local/nvidia", "/opt/nvidia");
    check(
        new,
        &elsewhere,
        &found("nvidia"),
        None,
        Some(DeviceListStrategy::Cdi),
    );
}

#[test]
fn reads_cri_o_runtime_programs() {
    let text = "[crio.runtime]\ndefault_runtime = 'nvidia'\n[crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/local/nvidia/toolkit/nvidia-container-runtime'\n";
    let config = written(RuntimeKind::Crio, text);
    let found = on_node(&config, &RuntimeClassState::NotSet, None).expect("NVIDIA's starts them");
    assert!(found.environment && !found.mounts, "{found:?}");
}

#[test]
fn nvidia_runtime_injects_driver_if_it_reads_the_environment() {
    let check = |toolkit: Option<ToolkitSettings>, expected: bool| {
        let facts = RuntimeFacts {
            version: "containerd://2.1.0",
            config: &Ok(RuntimeConfig::default()),
            cdi: Path::new("/var/run/cdi"),
            directories: &[],
            driver: &DriverSources::default(),
            class: &RuntimeClassState::NotSet,
            device_list: DeviceListStrategy::Cdi,
            chosen: false,
        };
        let status = assess(&facts, None, toolkit);
        assert_eq!(status.injects_driver, expected, "{toolkit:?}");
    };
    let settings = |environment, mounts| ToolkitSettings {
        environment,
        mounts,
    };
    check(None, false);
    check(Some(settings(true, false)), true);
    check(Some(settings(true, true)), true);
    // By mounts alone it injects nothing into a container that gets its GPUs by CDI.
    check(Some(settings(false, true)), false);
}
